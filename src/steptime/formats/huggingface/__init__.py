"""Networks of a `config.json` of Hugging Face: one function for each family of `model_type`.

`config` reads fields with their defaults, `types` is the table of types, `reading` makes a file a
network. Families stand in `decoders`, `mixtures`, `encoders` and `images`.
"""
