"""Decides what each step computes. Pure: messages and results in, plans and tokens out. Knows no device, no socket."""
