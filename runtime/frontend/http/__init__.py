"""HTTP side of the frontend: a FastAPI app, and the server that runs it inside the frontend's event loop."""
