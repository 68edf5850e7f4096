"""Speculative decoding: draft trees, and the sources that propose them."""
