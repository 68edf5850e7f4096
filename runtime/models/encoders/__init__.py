"""Encoders (BERT and its kin): models that read a whole text at once, keep no KV cache and generate nothing.

Transformers computes them. The core hands them batches (`core.encoder`); their pairs of texts are made by the
checkpoint's own tokenizer (`tokenizer.encoder`).
"""
