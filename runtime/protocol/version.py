"""The version, written once: client and frontend compare it when they connect."""

__version__ = "0.1.0"
