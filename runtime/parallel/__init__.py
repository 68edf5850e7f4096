"""Tensor and pipeline parallelism: shards and stages of a model, and the processes and nodes that compute them."""
