"""Tools: Python functions and described functions that a model may call."""
