"""Entry point of the process that runs NVIDIA Dynamo's frontend, with its HTTP server and router.

Run as a module by `ramiform cluster`, whose end, or death, ends it. The DYN_* variables are its settings.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import NoReturn

from ...runtime.processes import parent_watchdog
from ...runtime.processes.bounded_sleep import bounded_sleep

EXIT_SECONDS = 5.0  # after which a frontend that is stuck exits


def main() -> NoReturn:
    parent_watchdog.redirect_stdout()
    parent_watchdog.read_config(sys.stdin.buffer)

    def on_end(requested: bool) -> None:
        if not requested:  # nobody else is left to remove the cluster's folder
            shutil.rmtree(Path(os.environ["DYN_FILE_KV"]).parent, ignore_errors=True)
        os.kill(os.getpid(), signal.SIGTERM)
        bounded_sleep(EXIT_SECONDS)
        parent_watchdog.exit_now(0 if requested else 1)

    parent_watchdog.watch_parent(sys.stdin.buffer, on_end)
    from dynamo.frontend.main import main as run_frontend

    run_frontend()
    parent_watchdog.exit_now(0)


if __name__ == "__main__":
    main()
