"""A whole decoder step in one compiled call."""
