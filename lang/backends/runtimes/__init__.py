"""Channels to a running runtime: over ZMQ, which may move its programs to a replica, and over HTTP."""
