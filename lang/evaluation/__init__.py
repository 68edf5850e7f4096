"""Evaluation of programs on datasets, comparison of two runs, and the search for better prompts."""
