"""Backends beside the runtime over ZMQ; each is loaded when it is first used, and none needs a package of its own."""
