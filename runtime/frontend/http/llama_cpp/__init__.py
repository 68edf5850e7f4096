"""llama-server's own routes: completions, filling in, and the facts of the server."""
