"""Messages between processes, and the client's end of the connection. Imports neither torch nor FastAPI."""
