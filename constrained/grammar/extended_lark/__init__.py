"""Grammars in llguidance's dialect of Lark: its syntax, terminals, parameters and rules."""
