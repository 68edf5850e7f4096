"""Products of packed weights, in compiled loops."""
