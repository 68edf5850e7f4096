"""Alternatives and conditions on objects: rewriting them, searching those apart that share no names, their limits."""
