"""Traces, checkpoints and caches of programs that a stranger wrote are read or refused by name."""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import strategies as st

import ramiform
from ramiform import ProgramState, RequestError, Scripted, gen
from ramiform.lang.storage.checkpoint import open_checkpoint
from ramiform.lang.tracing import trace as traces
from ramiform.tests.fuzzing import dump, fuzz, mutated_bytes, mutated_json

FOLDER = tempfile.TemporaryDirectory(prefix="ramiform-any-files-")


@ramiform.function
def ask(s: ProgramState, name: str) -> None:
    s += ramiform.user(f"Who is {name}?")
    forks = s.fork(2)
    forks += ramiform.assistant(gen("answer", max_tokens=3))
    forks.join()
    s += ramiform.assistant(gen("last", max_tokens=3))


@functools.cache
def written() -> tuple[bytes, bytes, str]:
    """A trace, a checkpoint, and the program that the latter names."""
    folder = Path(FOLDER.name)
    state = ask.run("Ada", backend=Scripted(["a", "b", "c"]), checkpoint=folder / "run.jsonl", trace=True)
    state.trace.save(folder / "trace.json")
    checkpoint = (folder / "run.jsonl").read_bytes()
    del state
    gc.collect()
    return (folder / "trace.json").read_bytes(), checkpoint, header(checkpoint)


def header(checkpoint: bytes) -> str:
    program: str = json.loads(checkpoint.splitlines()[0])["program"]
    return program


@pytest.mark.slow
@fuzz(
    st.deferred(lambda: mutated_json([json.loads(written()[0])]).map(dump) | mutated_bytes([written()[0]])), examples=60
)
def test_any_trace_is_read_or_refused(data: bytes) -> None:
    path = Path(FOLDER.name) / "any.json"
    path.write_bytes(data)
    for read in (traces.load, traces.load_views):
        with contextlib.suppress(RequestError):
            read(path)


@pytest.mark.exhaustive
@fuzz(st.deferred(lambda: mutated_bytes([written()[1]])), examples=12)
def test_any_checkpoint_is_continued_or_refused(data: bytes) -> None:
    path = Path(FOLDER.name) / "any.jsonl"
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    with contextlib.suppress(RequestError):
        open_checkpoint(path, written()[2])
        ask.run("Ada", backend=Scripted(["a", "b", "c"]), checkpoint=path)
    gc.collect()  # the file is closed with its last user
