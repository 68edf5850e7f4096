"""Builds the rows of a plan: tokens, masks, sampling and scores."""
