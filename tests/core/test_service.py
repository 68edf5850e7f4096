"""Services of the core's loop as one: who answers, who counts, and how long an idle loop waits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from ramiform.runtime.core.core_metrics import CoreMetricsRecorder
from ramiform.runtime.core.service import Reply, Service, Services, shortest
from ramiform.runtime.core.transfers import NoTransfers
from ramiform.runtime.protocol.core import (
    Abort,
    CoreReply,
    FlushCache,
    FromCore,
    Generate,
    MovePrefixes,
    Timings,
    ToCore,
    Tokens,
)
from ramiform.runtime.protocol.sampling import SamplingParams


class Toy(Service):
    """Service that answers flushes, raises priorities, and has all else."""

    def __init__(self, name: str, wait_ms: int | None = None) -> None:
        self._name, self._wait_ms = name, wait_ms
        self.noted: list[FromCore] = []

    @property
    def wait_ms(self) -> int | None:
        return self._wait_ms

    def handle(self, owner: bytes, message: ToCore) -> ToCore | list[Reply]:
        match message:
            case FlushCache(call=call):
                return [(owner, CoreReply(call))]
            case Generate(priority=priority):
                return replace(message, priority=10 * priority + 1)
            case _:
                return message

    def advance(self) -> Iterator[Reply]:
        yield self._name.encode(), CoreReply(1)

    def after_step(self) -> Iterator[Reply]:
        yield self._name.encode(), CoreReply(2)

    def note_answers(self, answers: list[FromCore]) -> None:
        self.noted += answers


def test_the_first_service_that_knows_a_message_answers_it() -> None:
    services = Services([CoreMetricsRecorder(), Toy("a"), NoTransfers()])
    assert services.handle(b"one", FlushCache(3)) == [(b"one", CoreReply(3))]
    [(owner, reply)] = services.handle(b"two", MovePrefixes(4, "tcp://x:1"))
    assert (owner, reply.call, reply.error.param) == (b"two", 4, "to")
    assert services.handle(b"one", Abort("r")) == Abort("r")  # for the scheduler


def test_each_service_may_add_to_a_request() -> None:
    asked = Generate(rid="r", tokens=[1], sampling=SamplingParams(seed=0))
    assert Services([Toy("a"), Toy("b")]).handle(b"one", asked) == replace(asked, priority=11)


def test_services_work_and_count_in_turn() -> None:
    toys, recorder = (Toy("a"), Toy("b")), CoreMetricsRecorder()
    services = Services([*toys, recorder])
    assert list(services.advance()) == [(b"a", CoreReply(1)), (b"b", CoreReply(1))]
    assert list(services.after_step()) == [(b"a", CoreReply(2)), (b"b", CoreReply(2))]
    answers: list[FromCore] = [Tokens(rid="r", ids=[], num_cached=0, timings=Timings(queue=1, prefill=1, decode=1))]
    services.note_answers(answers)
    assert [toy.noted for toy in toys] == [answers, answers]
    measures = services.count(CoreReply(5)).measures
    assert measures is not None
    assert measures.queue.num == 1


@pytest.mark.parametrize(("waits", "wait"), [([None, None], None), ([None, 50], 50), ([50, 2, None], 2), ([2, 0], 0)])
def test_an_idle_loop_waits_until_the_first_service_has_work(waits: list[int | None], wait: int | None) -> None:
    assert Services([Toy("a", each) for each in waits]).wait_ms == shortest(*waits) == wait
