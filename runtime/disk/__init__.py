"""KV pages on disk, which outlive the process and its memory (docs/operate/memory.md)."""
