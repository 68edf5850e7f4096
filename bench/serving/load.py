"""Latency and throughput over HTTP: `ramiform bench serve` against a server that this script starts.

    python -P bench/serving/load.py [MODEL] [options of `ramiform bench serve`]

The default is a closed loop of one client.
"""

from __future__ import annotations

import subprocess
import sys

import ramiform


def main(words: list[str]) -> None:
    if "--help" in words:
        print(__doc__)
        return
    model = words.pop(0) if words and not words[0].startswith("-") else None
    with ramiform.Runtime(model, port=0) as runtime:
        command = [sys.executable, "-P", "-m", "ramiform.cli", "bench", "serve", str(runtime.url), *words]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
