"""GGUF files: metadata, tensor names, block formats."""
