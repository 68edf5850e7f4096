"""JSON Schema, compiled to lazily built automata."""
