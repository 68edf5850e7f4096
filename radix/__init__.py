"""The prefix cache: which KV pages hold which tokens, who pins them, which go first. Knows no device, no torch."""
