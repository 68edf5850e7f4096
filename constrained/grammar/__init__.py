"""Context-free grammars in Lark and GBNF notation, parsed by Earley items."""
