"""What checkpoints store: names and layouts of tensors, safetensors files, scales of keys and values."""
