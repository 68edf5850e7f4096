"""Speculative decoding on the device: sources that propose draft trees with a model, a head or prediction layers."""
