"""One model on several processes: who holds which part of it, how they add up, and how they are led."""
