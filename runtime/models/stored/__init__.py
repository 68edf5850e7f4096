"""Names and layouts of the tensors that checkpoints store, their files, and the stored scales of keys and values."""
