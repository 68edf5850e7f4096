"""Ollama's API on the chat service and the embeddings."""
