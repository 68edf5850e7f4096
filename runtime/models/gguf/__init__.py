"""GGUF files: format, configuration, tensor names and weights."""
