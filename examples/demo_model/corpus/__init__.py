"""The text the demo model learns from: generated, seeded, and true of a small world."""
