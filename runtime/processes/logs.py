"""Logging of the runtime's processes: for people on a terminal, as JSON lines otherwise."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from ..protocol.config import ServeConfig

REQUESTS = "ramiform.requests"  # the logger of a line for each HTTP request


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object: time (UTC, ISO 8601), level, logger, process, message, the record's `fields`
    if it has any, and an error's traceback."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": self._process,
            "message": record.getMessage(),
        }
        entry |= getattr(record, "fields", {})
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def set_up_logging(config: ServeConfig, process: str) -> None:
    """Configure logging of this process to its standard error. `process` names it: "frontend", "core"."""
    rich = config.log_format == "rich" or (config.log_format == "auto" and sys.stderr.isatty())
    handler: logging.Handler
    if rich:
        from rich.console import Console
        from rich.logging import RichHandler

        handler = RichHandler(console=Console(stderr=True), show_path=False, log_time_format="[%X]")
        handler.setFormatter(logging.Formatter(f"{process}: %(message)s"))
    else:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonFormatter(process))
    logging.basicConfig(level=config.log_level.upper(), handlers=[handler], force=True)
    logs_requests = config.log_requests == "on" or (config.log_requests == "auto" and sys.stderr.isatty())
    logging.getLogger(REQUESTS).setLevel("INFO" if logs_requests else "WARNING")
