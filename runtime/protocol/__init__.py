"""The values that processes exchange, and the client's end of the wire. Imports no torch, no FastAPI."""
