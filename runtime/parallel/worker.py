"""A rank other than rank 0: a process that computes every plan of rank 0 on its own part of the model.

Rank 0 or its node runs it as a module, with the configuration on its standard input (see `parent_watchdog`) and its
rank as argument. It reports on its standard output, in lines of JSON (`messages.RankReport`). Its only state is its KV
and the last step's tokens, which follow from the plans and from the tokens that rank 0 broadcasts.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
import torch
import zmq

from ..engine import ForwardEngine, build_engine
from ..engine.draft_source import DraftSource, DraftStep
from ..engine.in_flight_step import InFlightStep
from ..models.checkpoint import find_checkpoint
from ..models.decoder import Decoder
from ..models.lora.peft import AdapterWeights
from ..processes import logs, parent_watchdog
from ..processes.bounded_sleep import bounded_sleep
from ..protocol.config import RuntimeConfig
from ..protocol.errors import ErrorInfo, RamiformError
from ..scheduler.drafts.tree import DraftTree
from ..scheduler.plan import PageCopy, Row
from ..speculation.build import draft_bytes
from .collectives import join_group
from .messages import (
    AdoptConstants,
    CopyPages,
    DropAdapter,
    DropWeights,
    PagesPart,
    PrepareWeights,
    PutAdapter,
    RankFailed,
    RankReady,
    RankReport,
    ReadConstants,
    ReadPages,
    ReleaseRankMemory,
    RunPlan,
    SampleStep,
    StartSteps,
    TakeWeights,
    ToRank,
    WeightsPrepared,
    WritePages,
    plan_address,
)
from .placement import placement_of

# Seconds until a rank reports an unexpected error. Its cause may be the exit of another rank, which is then noticed
# first and ends this process too.
_REPORT_DELAY = 0.5


@dataclass(frozen=True)
class CaptureOnlySource:
    """A draft source that never drafts: this rank computes the captures of rank 0's draft source."""

    captures: tuple[int, ...]
    caught_up: float = 0.0

    def follow(self, step: DraftStep) -> list[DraftTree | None]:
        return [None] * len(step.rows)

    def skip(self, rows: Sequence[Row]) -> None:
        """Do nothing: there is no state."""

    def copy(self, copies: Sequence[PageCopy]) -> None:
        """Do nothing: there is no memory."""


def serve(config: RuntimeConfig, rank: int, report: Callable[[RankReport], None]) -> None:
    """Compute plans forever. Raises RamiformError when the checkpoint or a setting is wrong."""
    socket = zmq.Context.instance().socket(zmq.PAIR)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(plan_address(config.serve.socket_dir, rank))
    decoder = msgspec.msgpack.Decoder(ToRank)

    def source(target: Decoder, *, num_pages: int, num_host_pages: int) -> DraftSource | None:
        report(RankReady())
        begin = decoder.decode(socket.recv())
        assert isinstance(begin, StartSteps), "the first message is StartSteps"
        return CaptureOnlySource(begin.captures) if begin.captures else None

    path = find_checkpoint(config.core.model)
    place = placement_of(config.core, path, rank)
    group = join_group(place, config)
    core = msgspec.structs.replace(config.core, device=str(place.device))
    engine = build_engine(core, path, make_source=source, draft_memory=partial(draft_bytes, core, path), group=group)
    launched: InFlightStep | None = None
    adapter_parts: list[bytes] = []
    while True:
        match decoder.decode(socket.recv()):
            case RunPlan(plan):
                launched = engine.launch(plan)  # rank 0 alone reads the result
            case SampleStep(sampling):
                assert launched is not None, "SampleStep follows a RunPlan"
                launched.sample(sampling)
            case CopyPages(copies):
                engine.copy_pages(copies)
            case ReadPages(pages):
                _send_part(socket, engine, engine.read_part(pages))
            case WritePages(row, first, data):
                shape = (-1, *engine.kv_shape.page_shape)
                engine.write_pages(row, first, torch.frombuffer(bytearray(data), dtype=torch.uint8).view(shape))
            case ReadConstants():
                own = engine.read_constants()
                assert own is not None, "rank 0 has some too"
                _send_part(socket, engine, own)
            case AdoptConstants(shape, data):
                engine.adopt_constants(torch.frombuffer(bytearray(data), dtype=torch.float32).view(shape))
            case PutAdapter(number, adapter_rank, data, is_last):
                adapter_parts.append(data)
                if is_last:
                    engine.load_adapter(number, AdapterWeights.from_bytes(b"".join(adapter_parts), adapter_rank))
                    adapter_parts.clear()
            case DropAdapter(number):
                engine.unload_adapter(number)
            case PrepareWeights(path=weights):
                socket.send(msgspec.msgpack.encode(_prepared(engine, weights)))
            case TakeWeights():
                engine.take_weights()
            case DropWeights():
                engine.drop_weights()
            case ReleaseRankMemory(tags):
                engine.release_memory(tags)
            case StartSteps():
                raise AssertionError("StartSteps comes once")


def _send_part(socket: zmq.Socket[bytes], engine: ForwardEngine, data: torch.Tensor) -> None:
    part = msgspec.msgpack.encode(PagesPart(*engine.own_part))
    socket.send_multipart([part, data.cpu().contiguous().numpy().tobytes()])


def _prepared(engine: ForwardEngine, path: str | None) -> WeightsPrepared:
    try:
        return WeightsPrepared(engine.prepare_weights(path))
    except RamiformError as error:
        return WeightsPrepared(error=ErrorInfo.of(error))


def main() -> int:
    reports = parent_watchdog.redirect_stdout()

    def report(value: RankReport) -> None:
        reports.write(msgspec.json.encode(value) + b"\n")

    rank = int(sys.argv[1])
    config = parent_watchdog.read_config(sys.stdin.buffer)
    parent = "core" if config.core.node_rank == 0 else "node"
    parent_watchdog.exit_with_parent(
        sys.stdin.buffer, who=f"rank {rank}", parent=parent, socket_dir=config.serve.socket_dir
    )
    logs.set_up_logging(config.serve, f"rank {rank}")
    try:
        serve(config, rank, report)
    except Exception as error:
        if not isinstance(error, RamiformError):
            bounded_sleep(_REPORT_DELAY)
            parent_watchdog.say(traceback.format_exc())
        report(RankFailed(ErrorInfo.of(error)))
    return 1


if __name__ == "__main__":
    parent_watchdog.exit_now(main())
