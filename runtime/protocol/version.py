"""The version, written once: client and frontend compare it when they meet."""

__version__ = "0.1.0"
