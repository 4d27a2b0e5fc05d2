"""Networks of Keras: what `.keras` archives and `model.to_json()` say, nothing of it executed."""
