"""Quantising dense checkpoints (`ramiform quantize`) and measuring KV scales (`ramiform calibrate-kv`)."""
