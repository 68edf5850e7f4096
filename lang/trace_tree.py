"""A trace as a tree for the terminal: a line an operation, branches below their fork. Measures nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text
from rich.tree import Tree

if TYPE_CHECKING:
    from .trace import Event, Trace, TracedState

MAX_SHOWN = 72  # characters of a text


def tree_of(trace: Trace) -> Tree:
    root = Tree(Text(_summary(trace), style="bold"))
    _grow(root, trace, trace.states[0])
    return root


def _grow(tree: Tree, trace: Trace, state: TracedState) -> None:
    branches = {child.number: child for child in trace.states if child.parent == state.number}
    for event in state.events:
        node = tree.add(Text.assemble(*_line(event)))
        if event.kind == "fork":
            for place, number in enumerate(event.states):
                if number in branches:
                    _grow(node.add(f"branch {place}"), trace, branches[number])


def _summary(trace: Trace) -> str:
    tokens = trace.tokens
    counts = f"{tokens.prompt} prompt tokens, {tokens.cached} of them cached, {tokens.completion} generated"
    return f"{trace.title}: {len(trace.states)} states, {counts}, {trace.seconds * 1000:.1f} ms"


def _line(event: Event) -> Iterator[tuple[str, str]]:
    """Pieces of text with their styles."""
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
        parts = ((timings.queue, "queue"), (timings.prefill, "prefill"), (timings.decode, "decode"))
        yield (f" ({', '.join(f'{name} {seconds * 1000:.1f}' for seconds, name in parts)})", "dim")
    if event.error is not None:
        yield (f"  failed: {event.error}", "red")
    elif event.end is None:
        yield ("  not answered", "red")
    yield (f"   ({event.place.rpartition('/')[2]})", "dim")


def _short(text: str) -> str:
    shown = repr(text)
    return shown if len(shown) <= MAX_SHOWN else f"{shown[: MAX_SHOWN - 4]}...{shown[0]}"
