"""Replays recorded plans without a model."""
