"""Pages for notebooks: states and traces as HTML without scripts or files, for light and dark themes.

The functions neither wait nor raise, since a notebook calls them on whatever the last line of a cell gives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from ...runtime.programs.records.events import Event, RunRecord, ShownImage, TracedState, total_of
from ...runtime.programs.records.spans import CAUSES, MEANINGS, Cause, spans_of, track_of
from ...runtime.protocol.session import Fork
from ..operations.operation_log import OperationLog
from ..operations.recording import OperationTimes
from ..operations.state_handle import StateHandle
from .collect import traced_states
from .text_flow import BranchPiece, Origin, TextFlow, TextPiece, flow_of

MAX_SHOWN_PIECE = 20_000  # characters shown of one piece of text
MAX_VALUE = 300  # characters shown of a variable's value
MAX_BRANCH_DEPTH = 12  # levels of branches
MAX_TRACKS = 40  # states in the timeline
MAX_SHOWN_LOGS = 200  # whose logs are copied
MAX_TRACK_SPANS = 300  # of a track

# Transparent colours over the page's own, so that its text stays readable in either theme.
_ORIGINS: Mapping[Origin, tuple[str, str]] = {  # style, meaning
    "program": ("", "the program's text"),
    "template": ("opacity:.55;", "chat template"),
    "cached": ("background:rgba(56,139,253,.28);", "its tokens were cached (boundaries by token counts)"),
    "generated": ("background:rgba(46,160,67,.32);", "generated or selected"),
    "forced": ("background:rgba(210,153,34,.42);", "forced by the constraint"),
    "tool": ("background:rgba(163,113,247,.28);", "from the program's functions"),
    "joined": ("border-bottom:1px dashed;", "joined from branches"),
    "failed": ("background:rgba(248,81,73,.35);", "failed"),
}
_CAUSE_COLOURS: Mapping[Cause, str] = {
    "start": "rgba(130,130,130,.55)",
    "python": "rgba(56,139,253,.6)",
    "tool": "rgba(163,113,247,.65)",
    "wait": "rgba(210,153,34,.6)",
    "queue": "rgba(248,81,73,.6)",
    "grammar": "rgba(219,109,40,.6)",
    "prefill": "rgba(46,160,67,.35)",
    "decode": "rgba(46,160,67,.65)",
    "retracted": "rgba(248,81,73,.35)",
    "model": "rgba(46,160,67,.5)",
    "transport": "rgba(130,130,130,.3)",
}
_ALWAYS = ("queue", "prefill", "decode")  # phases that are shown even if they took no time
_PAGE = "font-family:monospace;font-size:13px;line-height:1.5;color:inherit;"
_TEXT = "white-space:pre-wrap;overflow-wrap:anywhere;"
_BOX = "border:1px solid rgba(128,128,128,.4);border-radius:4px;padding:4px 8px;"


def state_html(handle: StateHandle, variables: Callable[[], Mapping[str, Any]]) -> str:
    """Return a state with its text so far, its branches and the variables that are there."""
    return _safe(lambda: _page("ProgramState", *_state_parts(handle), _variables(variables())))


def group_html(handles: Sequence[StateHandle]) -> str:
    """Return the branches of a fork side by side."""

    def page() -> str:
        columns = [_column(f"branch {index}", "".join(_state_parts(handle))) for index, handle in enumerate(handles)]
        return _page("ForkGroup", _legend(), _columns(columns))

    return _safe(page)


def trace_html(record: RunRecord) -> str:
    """Return a trace: its text, and the timeline of its states."""

    def page() -> str:
        flow = flow_of(iter(()), {state.number: state for state in record.states}, 0, {}, MAX_BRANCH_DEPTH)
        title = f"{record.title} · {len(record.states)} states · {_ms(record.seconds)}"
        return _page(title, _counts(record.events), _legend(), _flow(flow), _timeline(record))

    return _safe(page)


def _state_parts(handle: StateHandle) -> tuple[str, str, str]:
    snapshot = snapshot_of(handle)
    states = {state.number: state for state in traced_states(snapshot.logs, snapshot.times)}
    inherited = [event for log in snapshot.inherited for event in _events_of(log)]
    flow = flow_of(iter(inherited), states, 0, snapshot.partial, MAX_BRANCH_DEPTH)
    return _counts([event for state in states.values() for event in state.events]), _legend(), _flow(flow)


def _events_of(log: OperationLog) -> list[Event]:
    """Return the events of one log; its branches are empty."""
    forked = [child for operation in log.operations if isinstance(operation, Fork) for child in operation.children]
    logs = [(-1, log), *((child, OperationLog()) for child in forked)]
    return traced_states(logs, [OperationTimes() for _ in logs])[0].events


def _safe(page: Callable[[], str]) -> str:
    try:
        return page().encode("utf-8", "replace").decode()  # a lone surrogate cannot be sent to a browser
    except Exception as error:
        return f"<pre>{escape(f'{type(error).__name__}: {error}')}</pre>"


def _page(title: str, *parts: str) -> str:
    # The classes keep MathJax from reading dollar signs as mathematics.
    head = f'<div style="font-weight:bold">{escape(title)}</div>'
    return f'<div class="ramiform tex2jax_ignore mathjax_ignore" style="{_PAGE}">{head}{"".join(parts)}</div>'


def _legend() -> str:
    keys = [
        f'<span style="{colour}padding:0 4px;margin-right:6px" title="{escape(meaning)}">{origin}</span>'
        for origin, (colour, meaning) in _ORIGINS.items()
    ]
    return f'<div style="font-size:11px">{"".join(keys)}</div>'


def _counts(events: Sequence[Event]) -> str:
    total = total_of([event.tokens for event in events if event.tokens is not None])
    text = f"{total.prompt} prompt tokens, {total.cached} cached · {total.completion} generated, {total.forced} forced"
    return f'<div style="opacity:.7">{text}</div>'


def _flow(flow: TextFlow) -> str:
    parts = []
    for piece in flow.pieces:
        if isinstance(piece, TextPiece):
            parts.append(_piece(piece))
        elif piece.branches:
            parts.append(_branches(piece))
        else:
            parts.append(f'<div style="opacity:.7">fork x{len(piece.event.states)}: not shown</div>')
    return f'<div style="{_TEXT}{_BOX}">{"".join(parts)}</div>'


def _piece(piece: TextPiece) -> str:
    text, event = piece.text, piece.event
    cut = "" if len(text) <= MAX_SHOWN_PIECE else f"<i>… {len(text) - MAX_SHOWN_PIECE} more characters</i>"
    shown = escape(text[:MAX_SHOWN_PIECE]) + cut
    if event is None:
        return f'<span style="{_ORIGINS[piece.origin][0]}">{shown}</span>'
    if event.image is not None and piece.origin != "failed":
        return _image(event, event.image)
    span = f'<span style="{_ORIGINS[piece.origin][0]}" title="{escape(_details(event))}">{shown}</span>'
    if event.kind not in ("gen", "select"):
        return span
    name = f"<sub><b>{escape(event.name)}</b></sub>" if event.name else ""
    forced = ""
    if event.tokens is not None and 0 < event.tokens.forced < event.tokens.completion:
        badge = f"{event.tokens.forced} of {event.tokens.completion} forced"
        forced = f'<sub style="{_ORIGINS["forced"][0]}">{badge}</sub>'
    open_end = "<i>…</i>" if event.text is None and event.error is None else ""
    samples = "".join(f"<li>{escape(sample[:MAX_SHOWN_PIECE])}</li>" for sample in event.samples or ())
    others = f"<details><summary>{len(event.samples or ())} samples</summary><ol>{samples}</ol></details>"
    return f"{span}{open_end}{name}{forced}{others if samples else ''}"


def _image(event: Event, image: ShownImage) -> str:
    """Return an image as a thumbnail, or as a block with its size and digest."""
    named = escape(f"{event.label}, SHA-256 {image.digest}")
    if image.url is None or not image.url.startswith("data:image/"):  # a trace may be another's file
        return f'<span style="{_BOX}" title="{escape(event.place)}">{named}</span>'
    return f'<img src="{escape(image.url)}" alt="{named}" title="{named}" style="vertical-align:middle">'


def _branches(piece: BranchPiece) -> str:
    columns = [_column(f"branch {index}", _flow(flow)) for index, flow in enumerate(piece.branches)]
    head = f'<summary title="{escape(piece.event.place)}">fork x{len(piece.branches)}</summary>'
    return f'<details open style="white-space:normal">{head}{_columns(columns)}</details>'


def _columns(columns: Sequence[str]) -> str:
    return f'<div style="display:flex;gap:8px;flex-wrap:wrap">{"".join(columns)}</div>'


def _column(title: str, content: str) -> str:
    return f'<div style="flex:1 1 16em;min-width:12em"><div style="opacity:.7">{escape(title)}</div>{content}</div>'


def _details(event: Event) -> str:
    """Return the tooltip of a piece of text."""
    parts = [f"{event.kind} {event.name or ''}".strip(), event.place]
    if event.tokens is not None:
        tokens = event.tokens
        parts.append(f"prompt {tokens.prompt} tokens, {tokens.cached} cached")
        parts.append(f"{tokens.completion} generated, {tokens.forced} forced")
    if event.seconds is not None:
        parts.append(_ms(event.seconds))
    elif event.end is not None:
        parts.append(_ms(event.end - event.start))
    if (timings := event.timings) is not None:
        phases = ((name, getattr(timings, name)) for name in timings.__struct_fields__)
        parts.append(", ".join(f"{name} {_ms(seconds)}" for name, seconds in phases if name in _ALWAYS or seconds))
    if event.finish is not None:
        parts.append(f"finished by {event.finish}")
    return "\n".join(parts)


def _variables(values: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><b>{escape(name)}</b></td><td>{escape(_short(value))}</td></tr>" for name, value in values.items()
    )
    return f"<details><summary>{len(values)} variables</summary><table>{rows}</table></details>" if values else ""


def _timeline(record: RunRecord) -> str:
    whole = max((track_of(record, state)[1] for state in record.states), default=0.0)
    if whole <= 0:
        return ""
    keys = "".join(
        f'<span style="background:{_CAUSE_COLOURS[cause]};padding:0 4px;margin-right:6px" '
        f'title="{escape(MEANINGS[cause])}">{cause}</span>'
        for cause in CAUSES
    )
    tracks = "".join(_track(record, state, whole) for state in record.states[:MAX_TRACKS])
    more = f"<div>… {len(record.states) - MAX_TRACKS} more states</div>" if len(record.states) > MAX_TRACKS else ""
    legend = f'<div style="font-size:11px">{keys}</div>'
    return f"<details open><summary>times, {_ms(whole)}</summary>{legend}{tracks}{more}</details>"


def _track(record: RunRecord, state: TracedState, whole: float) -> str:
    spans = sorted(spans_of(record, state), key=lambda span: -span.seconds)[:MAX_TRACK_SPANS]
    bars = "".join(
        f'<div style="position:absolute;top:0;bottom:0;left:{100 * span.start / whole:.3f}%;'
        f'width:{100 * span.seconds / whole:.3f}%;background:{_CAUSE_COLOURS[span.cause]}" '
        f'title="{span.cause} {_ms(span.seconds)}&#10;{escape(span.place)}"></div>'
        for span in spans
    )
    title = "program" if state.parent is None else f"state {state.number}"
    bar = f'<div style="position:relative;flex:1;height:14px;background:rgba(128,128,128,.12)">{bars}</div>'
    name = f'<div style="width:6em;opacity:.7">{title}</div>'
    return f'<div style="display:flex;gap:8px;align-items:center;margin:2px 0">{name}{bar}</div>'


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]}…"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


@dataclass
class LogSnapshot:
    """The logs of a state and its branches, of which the state's own comes first, and their times if recorded.

    `inherited` are the logs of its ancestors up to the forks, oldest first. `partial` are streamed texts that are not
    complete, by position in `logs`.
    """

    inherited: list[OperationLog]
    logs: list[tuple[int, OperationLog]] = field(default_factory=list)
    times: list[OperationTimes] = field(default_factory=list)
    partial: dict[int, str] = field(default_factory=dict)


def snapshot_of(handle: StateHandle) -> LogSnapshot:
    """Return copies of the logs as they are now. Branches that were garbage-collected are empty."""
    recording = handle.execution.recording
    known: dict[int, OperationTimes] = {}
    if recording is not None:
        known = {id(log): times for (_, log), times in zip(recording.logs, recording.times, strict=False)}
    *older, (own, _) = handle.segments()
    snapshot = LogSnapshot([_copied(log, end) for log, end in older])
    waiting: deque[tuple[int, OperationLog | None]] = deque([(handle.number, own)])
    while waiting:
        number, log = waiting.popleft()
        if log is None or len(snapshot.logs) >= MAX_SHOWN_LOGS:
            snapshot.logs.append((number, OperationLog()))
            snapshot.times.append(OperationTimes())
            continue
        with log.changed:
            copy = _copied(log, len(log.operations))
            branches: dict[int, list[OperationLog | None]] = {}
            for forking, child in log._branches:
                branches.setdefault(forking, []).append(child())
            if log.partial:
                snapshot.partial[len(snapshot.logs)] = log.partial
        snapshot.logs.append((number, copy))
        snapshot.times.append(known.get(id(log), OperationTimes()))
        for index, operation in enumerate(copy.operations):
            if isinstance(operation, Fork):
                found = branches.get(index, [])
                waiting.extend(zip(operation.children, [*found, *[None] * len(operation.children)], strict=False))
    return snapshot


def _copied(log: OperationLog, end: int) -> OperationLog:
    """Return a copy of a log's first `end` operations."""
    copy = OperationLog()
    with log.changed:
        copy.operations = log.operations[:end]
        copy.locations = log.locations[:end]
        copy.done = log.done[:end]
        copy.names = {op: name for op, name in log.names.items() if op < end}
        copy.error = log.error if len(log.done) < end else None
    return copy
