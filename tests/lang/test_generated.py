"""Text that was generated before is appended as the same token ids, and nothing is generated again."""

from __future__ import annotations

import pytest

import ramiform
from ramiform import ProgramState, RequestError, assistant, gen, select, user
from ramiform.lang.backends.backend import channel_of
from ramiform.lang.operations.execution import Execution
from ramiform.lang.operations.state_handle import StateHandle
from ramiform.runtime.protocol import session


@ramiform.function
def chat(s: ProgramState, stop: str) -> None:
    s += user("What is the capital of France?")
    s += assistant(gen("first", max_tokens=12, stop=stop))
    s += user("Is Paris in France?")
    s += assistant(select("sure", ["Yes", "No"]) + gen("second", max_tokens=8))


def replayed(state: ProgramState) -> list[session.Operation]:
    """The operations of a run, with its results in place of its generations."""
    operations: list[session.Operation] = []
    for operation, done in state._handle.history():
        match operation:
            case session.Gen():
                [sequence] = done.sequences or []
                operations.append(session.Generated(text=sequence.text, ids=sequence.ids))
            case session.Select():
                assert done.choice is not None
                operations.append(session.Generated(text=done.choice.text, chosen=True))
            case _:
                operations.append(operation)
    return operations


@pytest.mark.parametrize("stop", ["zzz", "is", "pital"])  # the last two cut within the text, perhaps within a token
def test_what_follows_is_generated_from_the_same_tokens(backend: ramiform.Runtime, stop: str) -> None:
    state = chat.run(stop, temperature=0)
    again = StateHandle.open(Execution(channel_of(None)))
    *before, last = replayed(state)
    generation = next(op for op in reversed(state._log.operations) if isinstance(op, session.Gen))
    assert isinstance(last, session.RoleEnd)
    again.append([*before[:-1], generation, last])
    assert again.settle() is None
    assert [done.text for _, done in again.history()] == [done.text for _, done in state._handle.history()]
    [sequence] = again.log.done[len(before) - 1].sequences or []
    assert sequence.ids == state.get_meta_info("second")["output_ids"]
    # The prompt has the same ids, since the tree knows all of it but the last token.
    assert sequence.prompt_tokens == state.get_meta_info("second")["prompt_tokens"]
    assert sequence.cached_tokens >= sequence.prompt_tokens - 1 - 16


def test_ids_outside_the_vocabulary_are_refused(backend: ramiform.Runtime) -> None:
    handle = StateHandle.open(Execution(channel_of(None)))
    handle.append([session.Generated(text="x", ids=[10**9])])
    with pytest.raises(RequestError, match="ids holds 1000000000, but the vocabulary ends at"):
        raise handle.settle() or AssertionError


def test_text_backends_append_the_text() -> None:
    seen: list[str] = []
    handle = StateHandle.open(Execution(ramiform.Scripted(lambda text: seen.append(text) or "answer").connection()))
    handle.append(
        [session.Text("a "), session.Generated(text="b", ids=[1, 2]), session.Generated(text=" c", chosen=True)]
    )
    assert handle.settle() is None
    assert handle.text_so_far() == "a b c"
