"""Drafts from texts, and the choice of what to draft and verify: needs no device."""
