"""Linear layers of few bits: how numbers are rounded, stored and multiplied, and which checkpoints hold them."""
