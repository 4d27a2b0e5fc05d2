"""Networks and ops under the ceilings of their devices."""
