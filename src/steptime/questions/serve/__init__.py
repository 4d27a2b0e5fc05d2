"""The question `serve`: a language model that answers prompts."""
