"""Expressions: what programs append, and the operations that expressions become."""
