"""`ramiform chat`: over the real runtime, typed by a script."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from ramiform.chat import Chat

RAMIFORM = str(Path(sys.executable).parent / "ramiform")


def talk(url: str, *lines: str) -> tuple[Chat, str]:
    shown = io.StringIO()
    chat = Chat(url, Console(file=shown, width=500, highlight=False))
    chat.run(iter(lines))
    return chat, shown.getvalue()


def test_an_answer_is_what_the_server_says_and_the_next_one_knows_it(url: str) -> None:
    chat, shown = talk(url, "/temperature 0", "/max_tokens 12", "Hello", "And then?")
    turns = chat.conversation.turns
    assert [turn["role"] for turn in turns] == ["user", "assistant"] * 2
    body = {"model": "ramiform-demo", "temperature": 0, "max_tokens": 12}
    for index in (1, 3):
        answer = httpx.post(f"{url}/v1/chat/completions", json={**body, "messages": turns[:index]}, timeout=120).json()
        assert turns[index]["content"] == answer["choices"][0]["message"]["content"]
        assert turns[index]["content"] in shown


def test_commands_change_what_is_asked(url: str, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    chat, _ = talk(url, "/system Be brief.", "/max_tokens 3", "/top_p 0.5", "Hi", "/retry", "/undo", f"/save {file}")
    assert chat.conversation.turns == []
    assert chat.conversation.body("m") == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}],
        "stream": True,
        "max_tokens": 3,
        "top_p": 0.5,
    }
    other, shown = talk(url, f"/load {file}", "One", "/history", "/top_p", "/exit", "Never asked")
    assert other.conversation.system == "Be brief."
    assert other.conversation.settings == {"max_tokens": 3}
    assert len(other.conversation.turns) == 2
    assert "user: One" in shown
    other.run(iter(["/reset"]))
    assert other.conversation.turns == []


def test_the_address_may_end_as_clients_of_openai_write_it(url: str) -> None:
    chat, _ = talk(f"{url}/v1", "/max_tokens 2", "Hi")
    assert [turn["role"] for turn in chat.conversation.turns] == ["user", "assistant"]


def test_mistakes_are_said_and_the_conversation_goes_on(url: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"system": 1}')
    lines = ["/nonsense", "/temperature hot", "/undo", "/load", "/load /no/such/file", f"/load {tmp_path / 'x.json'}"]
    chat, shown = talk(url, *lines, "/temperature 99", "Hi", "/temperature 0", "/max_tokens 2", "Hi")
    for word in ("/nonsense", "'hot'", "nothing was asked", "which file", "No such file", "no saved conversation"):
        assert word in shown
    assert "temperature" in shown.splitlines()[-2]  # the server's own complaint
    assert len(chat.conversation.turns) == 2


@pytest.mark.exhaustive
def test_the_command_talks_with_a_model_of_its_own(tmp_path: Path) -> None:
    typed = f"/max_tokens 4\nHello \\\nagain\n/save {tmp_path / 't.json'}\n"
    done = subprocess.run(
        [RAMIFORM, "chat", "--num-pages", "64", "--system", "S"],
        input=typed,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    saved = json.loads((tmp_path / "t.json").read_text())
    assert saved["system"] == "S"
    assert saved["messages"][0] == {"role": "user", "content": "Hello \nagain"}
    assert saved["messages"][1]["content"] in done.stdout


@pytest.mark.slow
def test_a_server_that_is_not_there_is_one_line() -> None:
    done = subprocess.run(
        [RAMIFORM, "chat", "--url", "http://127.0.0.1:9"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert "nothing listens" in line
