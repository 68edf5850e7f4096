"""Results that are kept: a cache of answers, and checkpoints from which a run goes on."""
