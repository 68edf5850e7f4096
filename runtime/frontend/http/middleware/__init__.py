"""Checks around every HTTP request: keys, sizes, rates, metrics."""
