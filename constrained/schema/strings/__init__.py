"""Strings: parts of formulas, automata of their contents, and the states that read them."""
