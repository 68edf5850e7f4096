"""Traces of runs: what each operation did, when, and at which line."""
