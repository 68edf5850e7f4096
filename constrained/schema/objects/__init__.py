"""Objects: their goals, and the states that read their names and members."""
