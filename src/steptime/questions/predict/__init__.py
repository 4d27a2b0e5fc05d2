"""The question `predict`: how long a step takes."""
