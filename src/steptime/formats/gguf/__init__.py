"""GGUF: types of tensors and files, headers of files, and the networks that they hold."""
