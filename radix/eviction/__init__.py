"""Eviction: the strategies, and the heap of leaves in their order."""
