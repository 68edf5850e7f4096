"""Trains EAGLE draft heads: data, the target's features, losses, and the measure that counts, accepted length. Knows
targets and heads; knows no requests and no scheduler."""
