"""Interprets programs: plays the operations of their states in order, for any executor of states."""
