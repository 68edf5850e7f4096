"""Guessing the next tokens cheaply, so that one pass of the model confirms several: trees, and who proposes them."""
