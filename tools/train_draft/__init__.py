"""Training of EAGLE draft heads: data, the target's features, losses, and the accepted length of the result."""
