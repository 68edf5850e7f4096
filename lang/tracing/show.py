"""Traces as trees for the terminal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ...runtime.programs.records.events import Event, RunRecord, TracedState
from ...runtime.programs.records.spans import Cause, spans_of

if TYPE_CHECKING:
    from rich.tree import Tree

MAX_SHOWN = 72  # characters of a text in the tree
MIN_SHOWN = 0.001  # seconds: shorter gaps are left out


def tree_of(record: RunRecord) -> Tree:
    """Return the tree for rich's `Console.print`: a line for each operation, branches below their fork."""
    from rich.text import Text
    from rich.tree import Tree

    branches = {state.number: state for state in record.states}

    def grow(tree: Tree, state: TracedState) -> None:
        gaps: defaultdict[int, defaultdict[Cause, float]] = defaultdict(lambda: defaultdict(float))
        for span in spans_of(record, state):
            if span.is_gap:
                gaps[span.event][span.cause] += span.seconds
        for index, event in enumerate(state.events):
            node = tree.add(Text.assemble(*_line(event, gaps[index])))
            if event.kind == "fork":
                for branch, number in enumerate(event.states):
                    if number in branches and branches[number].parent == state.number:
                        grow(node.add(f"branch {branch}"), branches[number])

    root = Tree(Text(_summary(record), style="bold"))
    grow(root, record.states[0])
    return root


def _summary(trace: RunRecord) -> str:
    tokens = trace.tokens
    counts = f"{tokens.prompt} prompt tokens, {tokens.cached} of them cached, {tokens.completion} generated"
    saved = f", {trace.saved * 1000:.1f} ms saved by early tools" if trace.saved else ""
    return f"{trace.title}: {len(trace.states)} states, {counts}, {trace.seconds * 1000:.1f} ms{saved}"


def _line(event: Event, gaps: Mapping[Cause, float]) -> Iterator[tuple[str, str]]:
    """Yield the pieces of an event's line in the tree, with their styles. `gaps`: seconds before it by cause."""
    yield (event.kind if event.states else f"{event.kind:<6}", "dim")
    yield (f" {event.name}" if event.name else "", "bold cyan")
    if event.states:
        yield (f" x{len(event.states)}", "")
    for text in event.samples or ([event.text] if event.text else []):
        yield (f" {_short(text)}", "" if event.tokens is None else "green")
    if event.tokens is not None:
        tokens = event.tokens
        yield (f"  {tokens.prompt} in ({tokens.cached} cached), {tokens.completion} out", "yellow")
    if event.end is not None and event.tokens is not None:
        yield (f"  {(event.end - event.start) * 1000:.1f} ms", "magenta")
    if (timings := event.timings) is not None:
        parts = ((name, getattr(timings, name)) for name in ("queue", "grammar", "prefill", "retracted", "decode"))
        shown = (one for one in parts if one[1] or one[0] in ("queue", "prefill", "decode"))
        yield (f" ({', '.join(f'{name} {seconds * 1000:.1f}' for name, seconds in shown)})", "dim")
    if event.saved:
        yield (f"  {event.saved * 1000:.1f} ms early", "magenta")
    before = [f"{cause} {seconds * 1000:.1f}" for cause, seconds in gaps.items() if seconds >= MIN_SHOWN]
    if before:
        yield (f"  after {', '.join(before)} ms", "dim")
    if event.error is not None:
        yield (f"  failed: {event.error}", "red")
    elif event.end is None:
        yield ("  not answered", "red")
    yield (f"   ({event.place.rpartition('/')[2]})", "dim")


def _short(text: str) -> str:
    shown = repr(text)
    return shown if len(shown) <= MAX_SHOWN else f"{shown[: MAX_SHOWN - 4]}...{shown[0]}"
