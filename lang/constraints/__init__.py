"""Composable constraints: parts that make one grammar together, and the variables captured in its text."""
