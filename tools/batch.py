"""`ramiform batch`: answers a file of requests from the shell, as a batch of a runtime of its own or of a server."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import httpx2
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from ..runtime.protocol.errors import RequestError, RuntimeFailed

POLL_SECONDS = 0.5
MAX_UPLOAD_MIB = 1024  # for a runtime of its own
errors = Console(stderr=True, soft_wrap=True, highlight=False)


def batch(
    file: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, help="Lines of requests, as OpenAI and vLLM have them.")
    ],
    model: Annotated[str | None, typer.Option(help="Path or hub id of a model; default: the one that ships.")] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="File of the results; default: FILE with the ending .results.jsonl."),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="URL of a running server, without /v1; default: start a runtime.")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="RAMIFORM_API_KEY", show_envvar=True, help="API key of the server.")
    ] = None,
    **settings: Any,
) -> None:
    """Answer the requests of a file, each shared prefix once. The same command goes on where one was interrupted.

    The results have the order of the file. The status is 1 if a request was refused.
    """
    out = out or file.with_suffix(".results.jsonl")
    folder = None if url is not None else out.with_name(f"{out.name}.batch")
    with contextlib.ExitStack() as stack:
        if folder is not None:
            from ..runtime.processes.launch import Runtime

            own = {"port": 0, "page": False, "batch_dir": str(folder), "max_body_mib": MAX_UPLOAD_MIB}
            url = stack.enter_context(Runtime(model, **own, **settings)).url
        assert url is not None
        headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        client = stack.enter_context(httpx2.Client(base_url=url, headers=headers, timeout=600, trust_env=False))
        num_refused = _ServerBatch(client, file).run(out)
    if folder is not None:
        shutil.rmtree(folder)
    errors.print(Text(f"{out}" + (f": refused requests: {num_refused}" if num_refused else "")))
    if num_refused:
        raise typer.Exit(1)


class _ServerBatch:
    """A file of requests as a batch of a server."""

    def __init__(self, client: httpx2.Client, file: Path) -> None:
        self._client = client
        self._file = file
        with file.open("rb") as data:
            self._digest = hashlib.file_digest(data, "sha256").hexdigest()

    def run(self, out: Path) -> int:
        """Answer the file, write the results, and return how many are refusals."""
        batch = self._follow(self._earlier(written=out.exists()) or self._begin())
        if batch["status"] != "completed":
            faults = (batch["errors"] or {}).get("data", [])
            told = [
                f"line {fault['line']}: {fault['message']}" if fault["line"] else fault["message"] for fault in faults
            ]
            raise RequestError("\n".join([f"{self._file}: the batch is {batch['status']}", *told]), param="file")
        lines = [line for name in ("output_file_id", "error_file_id") for line in self._lines(batch[name])]
        place = {name: number for number, name in enumerate(self._names())}
        lines.sort(key=lambda line: place[json.loads(line)["custom_id"]])
        part = out.with_name(f"{out.name}.part")
        part.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        part.replace(out)
        return int(batch["request_counts"]["failed"])

    def _names(self) -> Iterator[str]:
        with self._file.open("rb") as data:
            yield from (json.loads(line)["custom_id"] for line in data if line.strip())

    def _earlier(self, *, written: bool) -> dict[str, Any] | None:
        """Return the batch of an interrupted command for the same file; one that is over only if its results are not
        written."""
        usable = {"validating", "in_progress", "finalizing"} | (set() if written else {"completed"})
        after: str | None = None
        while True:
            page = self._ask("GET", "/v1/batches", params={"limit": 100} | ({} if after is None else {"after": after}))
            for found in page["data"]:
                if (found["metadata"] or {}).get("sha256") == self._digest and found["status"] in usable:
                    return dict(found)
            if not page["has_more"]:
                return None
            after = page["last_id"]

    def _begin(self) -> dict[str, Any]:
        with self._file.open("rb") as data:
            form: dict[str, Any] = {"files": {"file": (self._file.name, data)}, "data": {"purpose": "batch"}}
            uploaded = self._ask("POST", "/v1/files", **form)
        asked = {
            "input_file_id": uploaded["id"],
            "endpoint": "*",
            "completion_window": "30d",
            "metadata": {"sha256": self._digest},
        }
        return self._ask("POST", "/v1/batches", json=asked)

    def _follow(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Show how far the batch is until it is over."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=errors, disable=not errors.is_terminal) as progress:
            bar = progress.add_task(batch["status"], total=None)
            while True:
                counts = batch["request_counts"]
                done = counts["completed"] + counts["failed"]
                progress.update(bar, description=batch["status"], total=counts["total"] or None, completed=done)
                if batch["status"] in ("completed", "failed", "expired", "cancelled"):
                    return batch
                time.sleep(POLL_SECONDS)
                batch = self._ask("GET", f"/v1/batches/{batch['id']}")

    def _lines(self, name: str | None) -> list[str]:
        if name is None:
            return []
        return self._answer("GET", f"/v1/files/{name}/content").text.split("\n")[:-1]

    def _ask(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        return dict(self._answer(method, path, **request).json())

    def _answer(self, method: str, path: str, **request: Any) -> httpx2.Response:
        """Return an answer. Raises RequestError for a refusal, RuntimeFailed without an answer."""
        try:
            answer = self._client.request(method, path, **request)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise RuntimeFailed(f"{self._client.base_url} does not answer: {error}") from None
        if answer.is_success:
            return answer
        try:
            told = answer.json()["error"]["message"]
        except (ValueError, LookupError, TypeError):
            told = f"{answer.status_code} {answer.reason_phrase}"
        raise RequestError(f"{path}: {told}", param="file")
