"""aider-chat: the command, asked one thing. It edits by texts: it has no tools and no schemas."""

from __future__ import annotations

import subprocess
from typing import Any

from outcomes import MODEL, URL, report


def asked(model: str, text: str) -> list[str]:
    """Return what the command prints, in the pieces in which it came."""
    command = ["aider", "--model", f"openai/{model}", "--openai-api-base", f"{URL}/v1", "--openai-api-key", "none"]
    command += ["--no-git", "--no-pretty", "--no-show-model-warnings", "--no-check-update", "--analytics-disable"]
    command += ["--no-gitignore", "--yes-always", "--map-tokens", "0", "--chat-mode", "ask", "--message", text]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        return [piece.decode() for piece in iter(lambda: process.stdout.read1(4096), b"")]


def streamed() -> Any:
    return asked(MODEL, "What is the capital of France? Answer in one sentence.")


def refused() -> Any:
    return "".join(asked("no-such-model", "Hi"))


report(streamed=streamed, refused=refused)
