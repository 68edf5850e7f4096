"""Explains a constraint: what of it is enforced or refused, where a text leaves it, and what following it costs."""
