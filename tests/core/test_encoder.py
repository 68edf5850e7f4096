"""The core of an encoder: which requests share a batch, and what one of them may do to the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from ramiform.runtime.core.encoder import EncoderCore, load_encoder_core
from ramiform.runtime.models.encoders.model import EncoderInput
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.core import (
    Abort,
    Attach,
    CoreReady,
    CoreReply,
    FlushCache,
    Generate,
    GetStats,
    LoadAdapter,
    Pause,
    RequestFailed,
    Tokens,
)
from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.protocol.sampling import LogprobParams, SamplingParams
from ramiform.tests.models.encoder_checkpoints import make_encoder


class Recorded:
    """An encoder that notes its batches, and fails on token 66 as a broken device would; 77 is not a number."""

    outputs = ("head",)

    def __init__(self) -> None:
        self.lengths: list[list[int]] = []

    def compute(self, inputs: Sequence[EncoderInput]) -> list[bytes]:
        self.lengths.append([len(each.tokens) for each in inputs])
        if any(66 in each.tokens for each in inputs):
            raise RuntimeError("out of memory")
        values = [float("nan") if 77 in each.tokens else float(sum(each.tokens)) for each in inputs]
        return [np.array([value], "<f4").tobytes() for value in values]


@pytest.fixture(scope="module")
def info(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("bert")
    make_encoder(folder, "BertForSequenceClassification", num_labels=1)
    return load_encoder_core(CoreConfig(model=str(folder), dtype="float32")).info


def core_of(info: Any, **settings: Any) -> tuple[EncoderCore, Recorded]:
    encoder: Any = Recorded()
    return EncoderCore(CoreConfig(**settings), info, encoder), encoder


def asked(rid: str, tokens: Sequence[int], **fields: Any) -> Generate:
    nothing = SamplingParams(max_new_tokens=0, temperature=0.0, seed=0)
    values: dict[str, Any] = {"rid": rid, "tokens": [*tokens], "sampling": nothing, "pooling": "head"}
    return Generate(**(values | fields))


def error_of(answers: Sequence[Any]) -> str:
    [answer] = answers
    assert isinstance(answer, RequestFailed), answer
    return answer.error.message


def test_a_batch_has_texts_of_like_lengths_within_the_budget(info: Any) -> None:
    core, encoder = core_of(info, prefill_budget=32)
    for number, length in enumerate([10, 60, 9, 3, 11, 10, 2]):
        assert core.handle(b"", asked(str(number), [1] * length), 0.0) == []
    answers = []
    while not core.idle:
        answers.append([answer.rid for answer in core.step()])
    # The oldest goes first and takes those nearest to it; a text beyond the budget is computed alone.
    assert encoder.lengths == [[10, 10, 9], [60], [3, 2], [11]]
    assert answers == [["0", "5", "2"], ["1"], ["3", "6"], ["4"]]
    assert core.step() == []


def test_a_higher_priority_goes_first_and_shares_with_no_other(info: Any) -> None:
    core, _ = core_of(info, prefill_budget=64, max_running=2)
    for rid, priority in (("a", 0), ("b", 1), ("c", 0), ("d", 0)):
        core.handle(b"", asked(rid, [1] * 4, priority=priority), 0.0)
    order = []
    while not core.idle:
        order.append([answer.rid for answer in core.step()])
    assert order == [["b"], ["a", "c"], ["d"]]


def test_a_text_that_fails_harms_no_other(info: Any) -> None:
    core, _ = core_of(info)
    for rid, token in (("a", 5), ("broken", 66), ("nan", 77), ("b", 6)):
        core.handle(b"", asked(rid, [token] * 3), 0.0)
    found = {answer.rid: answer for answer in core.step()}
    assert {rid for rid, answer in found.items() if isinstance(answer, RequestFailed)} == {"broken", "nan"}
    for rid, total in (("a", 15.0), ("b", 18.0)):
        answer = found[rid]
        assert isinstance(answer, Tokens)
        assert answer.embedding is not None
        assert np.frombuffer(answer.embedding, "<f4").tolist() == [total]
    assert [found[rid].error.kind for rid in ("broken", "nan")] == ["model", "model"]


def test_requests_end_by_abort_of_their_owner_alone(info: Any) -> None:
    core, _ = core_of(info)
    for rid, owner in (("a", b"x"), ("b", b"x"), ("c", b"y")):
        core.handle(owner, asked(rid, [1]), 0.0)
    assert core.handle(b"y", Abort("a"), 0.0) == []
    [ended] = core.handle(b"x", Abort("a"), 0.0)
    assert (ended.rid, ended.finish.type) == ("a", "abort")
    assert [answer.rid for answer in core.handle(b"x", Abort(None), 0.0)] == ["b"]
    assert [answer.rid for answer in core.step()] == ["c"]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"pooling": None}, "generates no text"),
    ({"pooling": "mean"}, "gives head, not mean"),
    ({"sampling": SamplingParams(max_new_tokens=3, seed=0)}, "generates no text"),
    ({"logprobs": LogprobParams()}, "generates no text"),
    ({"adapter": "a"}, "no adapters"),
    ({"tokens": []}, "empty"),
    ({"tokens": [1] * 65}, "maximum context length is 64"),
    ({"tokens": [1, 10**6]}, "token id 1000000"),
    ({"tokens": [-1]}, "token id -1"),
    ({"token_types": [0]}, "token_types"),
    ({"token_types": [0, 2]}, "token_types"),
]


@pytest.mark.parametrize(("fields", "words"), REFUSED)
def test_what_cannot_be_computed_is_refused_at_once(info: Any, fields: dict[str, Any], words: str) -> None:
    core, _ = core_of(info)
    assert words in error_of(core.handle(b"", asked("a", **({"tokens": [1, 2]} | fields)), 0.0))
    assert core.idle


def test_calls_are_answered_and_what_waits_is_bounded(info: Any) -> None:
    core, _ = core_of(info, max_waiting=1)
    assert core.handle(b"", Attach(), 0.0) == [CoreReady(core.info)]
    assert core.handle(b"", FlushCache(3), 0.0) == [CoreReply(3)]
    core.handle(b"", Pause(4, "waiting"), 0.0)
    core.handle(b"", asked("a", [1]), 0.0)
    assert core.idle
    assert "1 requests are waiting" in error_of(core.handle(b"", asked("b", [1]), 0.0))
    [reply] = core.handle(b"", GetStats(5), 0.0)
    assert (reply.stats.num_waiting, reply.stats.is_paused) == (1, True)
    core.handle(b"", Pause(6, "nothing"), 0.0)
    assert [answer.rid for answer in core.step()] == ["a"]
    [refusal] = core.handle(b"", LoadAdapter(7, "a", "b"), 0.0)
    assert "encoder" in refusal.error.message


def test_settings_that_do_nothing_are_refused(info: Any) -> None:
    useless: dict[str, Any] = {"speculative": "ngram", "lora": ["a=b"], "tp": 2, "quantize": "int8", "num_pages": 64}
    for name, value in useless.items():
        with pytest.raises(RequestError, match=f"{name} does nothing") as raised:
            load_encoder_core(CoreConfig(model=info.path, **{name: value}))
        assert raised.value.param == name
    with pytest.raises(RequestError, match="native"):
        load_encoder_core(CoreConfig(model=info.path, model_impl="native"))
    with pytest.raises(RequestError, match="longer than the model's 64"):
        load_encoder_core(CoreConfig(model=info.path, context_length=65))
    short = load_encoder_core(CoreConfig(model=info.path, context_length=16))
    assert "maximum context length is 16" in error_of(short.handle(b"", asked("a", [1] * 17), 0.0))


def test_messages_of_encoders_travel() -> None:
    message = asked("a", [1, 2], token_types=[0, 1])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Generate) == message
