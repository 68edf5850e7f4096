"""`ramiform batch`: a file of requests from the shell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from ramiform.runtime.protocol.errors import RequestError, RuntimeFailed
from ramiform.tools import batch as command
from ramiform.tools.batch import batch

ROWS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "The capital of France is", "max_tokens": 4, "temperature": 0}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 2}),
    ("/v1/embeddings", {"input": "a"}),
    ("/v1/completions", {"prompt": "a", "top_p": 7}),
    ("/v1/score", {"prompt": "The capital of France is", "continuations": [" Paris", " Rome"]}),
]


def written(path: Path, rows: list[tuple[str, dict[str, Any]]]) -> Path:
    lines = [{"custom_id": f"{n}", "method": "POST", "url": url, "body": body} for n, (url, body) in enumerate(rows)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def results(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_results_have_the_order_of_the_file(url: str, tmp_path: Path) -> None:
    file = written(tmp_path / "in.jsonl", ROWS)
    with pytest.raises(typer.Exit) as ended:
        batch(file, url=url)
    assert ended.value.exit_code == 1
    found = results(tmp_path / "in.results.jsonl")
    assert [one["custom_id"] for one in found] == ["0", "1", "2", "3", "4"]
    assert [one["response"]["status_code"] for one in found] == [200, 200, 200, 400, 200]


def test_the_same_command_goes_on_where_one_was_interrupted(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out = written(tmp_path / "in.jsonl", ROWS[:3]), tmp_path / "out"
    begun: list[str] = []

    def interrupted(self: Any, found: dict[str, Any]) -> None:
        begun.append(found["id"])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(command._ServerBatch, "_follow", interrupted)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                batch(file, url=url, out=out)
    assert begun[0] == begun[1]
    assert not out.exists()
    follow = command._ServerBatch._follow
    monkeypatch.setattr(
        command._ServerBatch, "_follow", lambda self, found: begun.append(found["id"]) or follow(self, found)
    )
    batch(file, url=url, out=out)
    assert begun[2] == begun[0]
    assert len(results(out)) == 3
    batch(file, url=url, out=out)  # asked anew, since its results were written
    assert begun[3] != begun[0]


def test_a_file_that_is_no_batch_is_refused_by_its_lines(url: str, tmp_path: Path) -> None:
    file = written(tmp_path / "in", [ROWS[0], ("/v1/rerank", {})])
    with pytest.raises(RequestError, match=r"failed\nline 2: url '/v1/rerank' is none of"):
        batch(file, url=url, out=tmp_path / "out")
    with pytest.raises(RuntimeFailed, match="does not answer"):
        batch(file, url="http://127.0.0.1:9", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_runtime_of_its_own_answers_a_file(tmp_path: Path) -> None:
    file = written(tmp_path / "in.jsonl", ROWS[:2])
    batch(file, out=tmp_path / "out", num_pages=64, dtype="float32", log_level="error")
    assert [one["response"]["status_code"] for one in results(tmp_path / "out")] == [200, 200]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out"]
