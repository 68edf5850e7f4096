"""Reads patterns: from text to an expression, with its classes of characters and a bound of its automaton."""
