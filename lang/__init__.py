"""The language: programs, states, gen, select and fork, recorded as operations for a runtime."""
