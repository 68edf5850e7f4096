"""Tell Python scripts of clients the server's address, its model and the tool, and print what came of their steps."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import traceback
from collections.abc import Callable
from typing import Any

URL, MODEL = os.environ["RAMIFORM_URL"], os.environ["RAMIFORM_MODEL"]
SWITCH: Any = {  # for clients that take a tool as chat completions have it
    "type": "function",
    "function": {
        "name": "switch",
        "description": "Switch a room's light",
        "parameters": {
            "type": "object",
            "properties": {"on": {"type": "boolean"}, "room": {"enum": ["kitchen", "hall"]}},
            "required": ["on", "room"],
            "additionalProperties": False,
        },
    },
}


def report(**steps: Callable[[], Any]) -> None:
    """Run the four steps and print their outcomes. A step that the client has nothing for is None.

    `streamed` returns the pieces of a text, `called` the arguments of a forced call and the text that follows its
    result, `structured` a place, and `refused` what the user is shown of a model that is not there.
    """
    outcomes = {}
    with asyncio.Runner() as runner:
        for name, step in steps.items():
            try:
                outcome = step()
                outcomes[name] = runner.run(outcome) if inspect.iscoroutine(outcome) else outcome
            except Exception as error:
                traceback.print_exc()
                outcomes[name] = {"raised": f"{type(error).__name__}: {error}"}
    print("\n" + json.dumps(outcomes))
