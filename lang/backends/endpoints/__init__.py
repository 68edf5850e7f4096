"""Calls of other servers' endpoints: retries, rate limits, counts, addresses and keys."""
