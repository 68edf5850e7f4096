"""Rotary embeddings: their configuration and angles."""
