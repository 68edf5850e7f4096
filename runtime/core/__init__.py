"""The core process: message loop, scheduler and engine, metrics."""
