"""Programs: plans of their calls, and the ways to run them."""
