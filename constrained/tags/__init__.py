"""Structural tags: free text with constrained spans."""
