"""Bodies of the APIs and their answers as JSON values, without a web framework."""
