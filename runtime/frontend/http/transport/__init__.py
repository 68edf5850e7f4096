"""Sockets, HTTP protocol, bodies and streams."""
