"""Copies of the logs of a state, its ancestors and its branches, taken without waiting for anything."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ...runtime.protocol.session import Fork
from ..operations.operation_log import OperationLog
from ..operations.recording import OperationTimes
from ..operations.state_handle import StateHandle

MAX_STATES = 200


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
        if log is None or len(snapshot.logs) >= MAX_STATES:
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
