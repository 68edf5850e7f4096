"""Quantised linear layers: rounding, storage, products, and the checkpoint formats that hold them."""
