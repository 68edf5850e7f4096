"""Commands beside the server, which imports and starts none of them."""
