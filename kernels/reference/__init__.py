"""Plain torch definition of each device op."""
