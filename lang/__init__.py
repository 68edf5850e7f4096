"""What a user writes: programs, states, gen, select, fork. Recorded as operations; knows the protocol's values only."""
