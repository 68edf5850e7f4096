"""Sharding of a model: shards, stages, the process group as layers see it, parallel layers."""
