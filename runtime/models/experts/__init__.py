"""Mixtures of experts: their configuration, layers and router."""
