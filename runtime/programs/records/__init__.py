"""Records of runs: the operations of all states with texts, tokens and times, and what follows from these."""
