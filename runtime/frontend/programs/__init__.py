"""Programs: their states, sessions and operations in the frontend."""
