"""`ramiform chat`: a conversation in the terminal.

It uses only OpenAI's chat route, so any server of that route will do.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from .lang.backends.http_client import HttpClient
from .lang.backends.model import ModelCall
from .runtime.protocol.errors import RamiformError

SETTINGS: dict[str, Callable[[str], float | int]] = {
    "temperature": float,
    "top_p": float,
    "max_tokens": int,
    "seed": int,
}
HELP = """\
/system TEXT       what the model is told before everything; without TEXT: nothing
/reset             forget what was said
/undo              take back the last question and its answer
/retry             answer the last question again
/history           show what was said
/save FILE         write the conversation as JSON; /load FILE reads it
/temperature X     likewise /top_p X, /max_tokens N, /seed N; without a value: the server's default
/help, /exit       Ctrl-C stops an answer, Ctrl-D ends; a line that ends with \\ goes on"""


class CommandError(RamiformError):
    """The input is not a command, or cannot be carried out."""


@dataclass
class Conversation:
    """Messages so far, and the settings of the next answer."""

    system: str = ""
    turns: list[dict[str, str]] = field(default_factory=list)  # role and content, as OpenAI has them
    settings: dict[str, float | int] = field(default_factory=dict)

    def body(self, model: str) -> dict[str, Any]:
        """Return the request body of the next answer."""
        before = [{"role": "system", "content": self.system}] if self.system else []
        return {"model": model, "messages": before + self.turns, "stream": True, **self.settings}

    def take_back(self) -> str:
        """Remove and return the last question, with its answer. Raises CommandError when there is none."""
        while self.turns:
            turn = self.turns.pop()
            if turn["role"] == "user":
                return turn["content"]
        raise CommandError("nothing was asked yet")

    def save(self, path: Path) -> None:
        value = {"system": self.system, "messages": self.turns, "settings": self.settings}
        path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def load(self, path: Path) -> None:
        """Load a saved conversation. Raises CommandError, and changes nothing, when the file is not one."""
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            system, turns, settings = str(value["system"]), value["messages"], value["settings"]
            turns = [{"role": str(turn["role"]), "content": str(turn["content"])} for turn in turns]
            settings = {name: SETTINGS[name](number) for name, number in settings.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CommandError(f"{path} is no saved conversation: {error!r}") from None
        self.system, self.turns, self.settings = system, turns, settings


class Chat:
    """Reads lines and answers them through the server at `url`."""

    def __init__(self, url: str, console: Console, *, model: str | None = None, api_key: str | None = None) -> None:
        # Clients of OpenAI are given the address with /v1.
        self._client = HttpClient(url.rstrip("/").removesuffix("/v1"), api_key, timeout=600)
        self._console = console
        self._model = model or str(self._client.get("/v1/models")["data"][0]["id"])
        self.conversation = Conversation()

    def run(self, lines: Iterator[str]) -> None:
        """Run until the lines end. Errors are shown, and the conversation continues."""
        self._console.print(Text(f"{self._model}: /help says what there is", style="dim"))
        try:
            for line in lines:
                if not self._take_or_complain(line):
                    return
        finally:
            self._client.close()

    def _take_or_complain(self, line: str) -> bool:
        try:
            return self._take(line)
        except RamiformError as error:
            self._console.print(Text(str(error), style="red"))
        except OSError as error:
            self._console.print(Text(f"{error.filename}: {error.strerror}", style="red"))
        return True

    def _take(self, line: str) -> bool:
        """Handle one line; return False at the end."""
        name, _, argument = line.strip().partition(" ")
        argument = argument.strip()
        match name:
            case "":
                return True
            case "/exit" | "/quit":
                return False
            case "/help":
                self._console.print(Text(HELP))
            case "/system":
                self.conversation.system = argument
            case "/reset":
                self.conversation.turns.clear()
            case "/undo":
                self.conversation.take_back()
            case "/retry":
                self._answer(self.conversation.take_back())
            case "/history":
                for turn in self.conversation.turns:
                    self._console.print(Text(f"{turn['role']}: {turn['content']}"))
            case "/save":
                self.conversation.save(_path(argument))
            case "/load":
                self.conversation.load(_path(argument))
            case _ if name.startswith("/"):
                self._set(name[1:], argument)
            case _:
                self._answer(line.strip())
        return True

    def _set(self, name: str, argument: str) -> None:
        if name not in SETTINGS:
            raise CommandError(f"there is no command /{name}; /help says what there is")
        if not argument:
            self.conversation.settings.pop(name, None)
            return
        try:
            self.conversation.settings[name] = SETTINGS[name](argument)
        except ValueError:
            raise CommandError(f"/{name} wants a number, not {argument!r}") from None

    def _answer(self, question: str) -> None:
        """Send the question and show the answer as it streams. Ctrl-C stops the answer and keeps its text so far."""
        turns = self.conversation.turns
        turns.append({"role": "user", "content": question})
        parts: list[str] = []

        def on_event(event: dict[str, Any]) -> None:
            for choice in event.get("choices", ()):
                delta = choice.get("delta", {})
                if reasoning := delta.get("reasoning_content"):
                    self._console.print(Text(reasoning, style="dim italic"), end="")
                if text := delta.get("content"):
                    parts.append(text)
                    self._console.print(Text(text), end="", soft_wrap=True)

        try:
            self._client.stream("/v1/chat/completions", self.conversation.body(self._model), ModelCall(), on_event)
        except KeyboardInterrupt:
            self._console.print(Text(" [stopped]", style="dim"), end="")
        except RamiformError:
            turns.pop()
            raise
        self._console.print()
        turns.append({"role": "assistant", "content": "".join(parts)})


def _path(argument: str) -> Path:
    if not argument:
        raise CommandError("say which file")
    return Path(argument).expanduser()


def typed_lines(prompt: str = "> ") -> Iterator[str]:
    """Yield lines from the terminal until Ctrl-D, with line editing and this run's history."""
    with contextlib.suppress(ImportError):  # a Python without it still reads lines
        import readline  # noqa: F401 - to be there is enough: it gives `input` its editing
    parts: list[str] = []
    while True:
        try:
            line = input("… " if parts else prompt)
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            parts.clear()
            continue
        if line.endswith("\\"):
            parts.append(line[:-1])
            continue
        yield "\n".join([*parts, line])
        parts.clear()
