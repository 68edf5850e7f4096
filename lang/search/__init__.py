"""Generating again and searching: checked attempts of one generation, and branches that compete."""
