"""The training text of the demo model: generated from a seed, and true of a small synthetic world."""
