"""More than one runtime of a model: workers of NVIDIA Dynamo, and the command that starts a cluster of them."""
