"""Text to tokens and back: encoding, generation, scoring, embeddings."""
