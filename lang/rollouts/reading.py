"""Reading the tokens of a run's states as trajectories: the runtime's own ids, and what its answers tell of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...runtime.protocol import session
from ...runtime.protocol.errors import RamiformError, RequestError
from ...runtime.protocol.sampling import DEFAULT_VERSION
from ..operations.state_handle import StateHandle
from ..states.state import ProgramState
from .trajectory import GeneratedSpan, TokenPath, ToolResult


@dataclass(frozen=True)
class Branch:
    """A state of a run at which a branch ends, with its tokens from the beginning."""

    state: ProgramState
    tokens: TokenPath
    generations: tuple[GeneratedSpan, ...]
    tools: tuple[ToolResult, ...]


class Answered(NamedTuple):
    """An operation of a state that is part of its content, and its answer."""

    state: int
    place: int
    operation: session.Operation
    done: session.Done
    name: str | None


async def branches_of(states: Sequence[ProgramState], run: int) -> tuple[list[Branch], list[RamiformError]]:
    """Return the branches of a run that has ended, and the errors of states that failed.

    `states` are all states of the run. A state that others were forked from is a branch of its own if it generated
    after the last fork. Raises RequestError for a gen of several samples, and for a backend that holds texts, or that
    records no experts where they were asked for.
    """
    parents = {id(state._handle.parent) for state in states}
    asked: list[tuple[ProgramState, int]] = []
    errors: list[RamiformError] = []
    for state in states:
        if id(state._handle) in parents and not _generated_after_forks(state._handle):
            continue
        try:
            asked.append((state, state._handle.append([session.Sync(ids=True)])))
        except RamiformError as error:
            errors.append(error)
    branches = []
    for state, operation in asked:
        await state._log.wait_answered_async(operation + 1)
        try:
            ids = state._log.wait_for(operation).ids
        except RamiformError as error:
            if refuses_all(error):
                raise
            errors.append(error)
            continue
        assert ids is not None
        branch = _read(state, ids, run)
        if branch.generations:
            branches.append(branch)
    return branches, errors


def refuses_all(error: Exception) -> bool:
    """Return whether an error says that the backend can record no run as it was asked to."""
    if not isinstance(error, RequestError):
        return False
    return error.code == "no_token_ids" or (error.code == "not_supported" and error.param == "return_routed_experts")


def _generated_after_forks(handle: StateHandle) -> bool:
    """Return whether a state has a Gen behind its last fork."""
    kinds = [operation for operation in handle.log.operations if isinstance(operation, session.Fork | session.Gen)]
    return bool(kinds) and isinstance(kinds[-1], session.Gen)


def _answered(handle: StateHandle) -> Iterator[Answered]:
    for log, end in handle.segments():
        for index in log.visible(0, end):
            yield Answered(log.number, index, log.operations[index], log.done[index], log.names.get(index))


def _read(state: ProgramState, ids: list[int], run: int) -> Branch:
    tokens = TokenPath.given(ids)
    generations: list[GeneratedSpan] = []
    tools: list[ToolResult] = []
    logs = {log.number: log for log, _ in state._handle.segments()}
    for one in _answered(state._handle):
        if (outcome := logs[one.state].outcomes.get(one.place)) is not None:
            text = outcome.text or one.done.text
            tools.append(ToolResult(len(generations) - 1, outcome.name, outcome.arguments, text, outcome.error))
        if not isinstance(one.operation, session.Gen) or not one.done.sequences:
            continue
        if one.operation.n > 1:
            raise RequestError(
                f"a rollout has one sample of each gen, not n = {one.operation.n}: fork the state instead", param="n"
            )
        span = _note_generated(tokens, one.done.sequences[0], (run, one.state, one.place))
        if span is not None:
            generations.append(GeneratedSpan(one.name, *span, one.done.sequences[0].finish.type))
    return Branch(state, tokens, tuple(generations), tuple(tools))


def _note_generated(
    tokens: TokenPath, sequence: session.Sequence, draw: tuple[int, int, int]
) -> tuple[int, int] | None:
    """Note what is known of a generated sequence's tokens; return their span, stop token included.

    None where the content does not have them at the place where they were drawn: a checked gen whose invalid attempts
    were told, a gen without tokens. A stop token is the next token of the content, or is appended at its end.
    """
    start, end = sequence.prompt_tokens, sequence.prompt_tokens + len(sequence.ids)
    entries = sequence.logprobs or []
    if tokens.ids[start:end] != sequence.ids or len(entries) < len(sequence.ids) or not entries:
        return None
    if len(entries) > len(sequence.ids) and end == len(tokens):
        tokens.append_given(entries[-1].id)
    versions = [name for name, count in sequence.weight_versions for _ in range(count)]
    last = start
    for place, entry in enumerate(entries, start):
        if place >= len(tokens) or tokens.ids[place] != entry.id:
            break  # a stop token that the program did not write
        tokens.origins[place] = "forced" if entry.details and entry.details.origin == "forced" else "sampled"
        tokens.logprobs[place] = entry.logprob
        tokens.drawn_logprobs[place] = entry.details.drawn_logprob if entry.details else None
        tokens.versions[place] = versions[place - start] if place - start < len(versions) else DEFAULT_VERSION
        tokens.draws[place] = draw
        last = place + 1
    if sequence.routes is not None:
        for place, experts in enumerate(sequence.routes.of_tokens()[:last], sequence.routes.first):
            if tokens.experts[place] is None:  # else an earlier generation read this token
                tokens.experts[place] = experts
    return start, last
