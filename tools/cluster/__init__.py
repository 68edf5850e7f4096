"""Starts runtimes of a model behind NVIDIA Dynamo's frontend and router: `ramiform cluster`."""
