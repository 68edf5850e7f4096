"""Given values: those that `enum` and `const` list, whether they satisfy goals, and the states that read them."""
