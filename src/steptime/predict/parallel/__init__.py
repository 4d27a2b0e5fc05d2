"""Steps of several devices: collectives, replicas, layers placed on devices."""
