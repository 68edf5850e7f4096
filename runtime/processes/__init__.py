"""Processes of a runtime: entry points, launch, supervision, logs."""
