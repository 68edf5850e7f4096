"""Decoder-only language models from Hugging Face checkpoints. Knows tensors and files; knows no requests or plans."""
