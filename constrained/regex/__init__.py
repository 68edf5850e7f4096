"""Regular expressions, compiled to deterministic automata over bytes."""
