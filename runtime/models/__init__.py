"""Decoder-only language models: configurations, weights and the forward pass."""
