"""The runtime's own HTTP routes."""
