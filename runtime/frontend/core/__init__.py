"""The connection to the core process: requests, metrics, tracing."""
