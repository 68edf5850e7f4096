"""Attention over paged keys and values, in compiled loops."""
