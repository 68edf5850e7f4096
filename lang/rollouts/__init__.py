"""Programs as rollouts: runs of a program as trees of tokens with log-probabilities and rewards, for training."""
