"""Result types: from Python types to constraints on text and back to values."""
