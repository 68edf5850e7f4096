"""Batches: files of requests that run beside live traffic, at low priority, and outlast the server."""
