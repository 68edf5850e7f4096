"""The worker of NVIDIA Dynamo: answers requests of its router with this runtime's core."""
