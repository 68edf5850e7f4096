"""Other projects' grammar engines behind the same interface."""
