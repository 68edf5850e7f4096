"""Moves KV pages between runtimes: prompts computed elsewhere, and prefixes of a replica that is drained."""
