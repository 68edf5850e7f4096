"""Capacity planning: memory, speed and cost of a model on given devices, computed without weights or devices."""
