"""Items of arrays whose items must differ."""
