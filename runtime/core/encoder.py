"""The core of an encoder: requests wait, are computed in batches of like lengths, and are answered. There is no KV."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from ..engine.build import choose_device, choose_dtype
from ..models.checkpoint import find_checkpoint, listed_names, served_name
from ..models.encoders.model import EncoderInput, EncoderModel, load_encoder, read_encoder
from ..models.hub import hub_origin
from ..protocol.config import PAGE_SIZE, CoreConfig
from ..protocol.core import (
    Abort,
    Attach,
    CoreReady,
    CoreReply,
    CoreStats,
    EndStates,
    Finish,
    FlushCache,
    FromCore,
    Generate,
    GetStats,
    ModelInfo,
    Pause,
    RequestFailed,
    Timings,
    ToCore,
    Tokens,
    TurnEnded,
)
from ..protocol.errors import BusyError, ErrorInfo, ModelError, RamiformError, RequestError, context_exceeded
from ..protocol.version import __version__

logger = logging.getLogger("ramiform.core")

# Settings of the core that mean something here. Others are refused unless they have their defaults.
_SETTINGS = frozenset(
    "model served_model_name model_impl device dtype context_length prefill_budget max_running max_waiting "
    "wait_for_loops".split()
)
_MAX_ROWS = 256  # texts of a batch by default


@dataclass(frozen=True)
class WaitingText:
    """A request that waits to be computed."""

    message: Generate
    owner: bytes
    serial: int
    arrived: float

    @property
    def place(self) -> tuple[int, int]:
        return -self.message.priority, self.serial

    @property
    def input(self) -> EncoderInput:
        assert self.message.pooling is not None
        return EncoderInput(self.message.tokens, self.message.token_types, self.message.pooling)


class EncoderCore:
    """The requests of an encoder, in the order of priority and arrival."""

    def __init__(self, config: CoreConfig, info: ModelInfo, encoder: EncoderModel) -> None:
        self._config, self.info, self._encoder = config, info, encoder
        self._waiting: dict[str, WaitingText] = {}
        self._is_paused = False
        self._num_steps = self._num_tokens = self._serial = 0

    @property
    def idle(self) -> bool:
        """True if there is nothing to compute until a message comes."""
        return self._is_paused or not self._waiting

    def handle(self, owner: bytes, message: ToCore, now: float) -> list[FromCore]:
        """Handle a message of a frontend; return what it is answered at once."""
        match message:
            case Attach():
                return [CoreReady(self.info)]
            case Generate():
                return self._arrive(owner, message, now)
            case Abort(rid=rid):
                return [self._abort(each) for each in self._of(owner, rid)]
            case EndStates() | TurnEnded():
                return []
            case FlushCache(call=call):
                return [CoreReply(call)]
            case Pause(call=call, hold=hold):
                self._is_paused = hold != "nothing"
                return [CoreReply(call)]
            case GetStats(call=call):
                return [CoreReply(call, stats=self._stats())]
            case _:
                error = RequestError(
                    f"{self.info.architecture} is an encoder: it has no KV cache, no adapters, and keeps its weights",
                    code="not_supported",
                )
                return [CoreReply(message.call, error=ErrorInfo.of(error))]

    def step(self) -> list[FromCore]:
        """Compute a batch and return the answers; none if nothing waits."""
        if self.idle:
            return []
        batch = batch_of([*self._waiting.values()], self._config.prefill_budget, self._config.max_running or _MAX_ROWS)
        for each in batch:
            del self._waiting[each.message.rid]
        self._num_steps += 1
        self._num_tokens += sum(len(each.message.tokens) for each in batch)
        began = time.monotonic()
        outputs = self._compute(batch)
        seconds = time.monotonic() - began
        return [
            _answer(each, output, Timings(queue=max(0.0, began - each.arrived), prefill=seconds, decode=0.0))
            for each, output in zip(batch, outputs, strict=True)
        ]

    def _compute(self, batch: Sequence[WaitingText]) -> list[bytes | RamiformError]:
        """Return each request's output, or its error. If a batch fails, each is computed by itself: a request that
        fails harms no other."""
        try:
            return [*self._encoder.compute([each.input for each in batch])]
        except (RuntimeError, MemoryError, IndexError, ValueError) as error:
            if len(batch) > 1:
                return [output for each in batch for output in self._compute([each])]
            logger.warning("a text of %d tokens failed: %s", len(batch[0].message.tokens), error)
            return [ModelError(f"the encoder failed on this text: {type(error).__name__}: {error}")]

    def _arrive(self, owner: bytes, message: Generate, now: float) -> list[FromCore]:
        try:
            self._check(message)
        except (RequestError, BusyError) as error:
            return [RequestFailed(message.rid, ErrorInfo.of(error))]
        self._serial += 1
        self._waiting[message.rid] = WaitingText(message, owner, self._serial, now)
        return []

    def _check(self, message: Generate) -> None:
        """Raise RequestError for what the encoder does not compute, BusyError when too much waits."""
        outputs, name = self._encoder.outputs, self.info.architecture
        if message.pooling is None or message.sampling.max_new_tokens or message.logprobs is not None:
            raise RequestError(f"{name} is an encoder: it generates no text", param="model", code="not_supported")
        if message.pooling not in outputs:
            raise RequestError(
                f"{name} gives {' or '.join(outputs)}, not {message.pooling}", param="model", code="not_supported"
            )
        if message.pictures or message.adapter is not None:
            param = "images" if message.pictures else "model"
            raise RequestError(f"{name} is an encoder: it has no images and no adapters", param=param)
        tokens, types = message.tokens, message.token_types
        if not tokens:
            raise RequestError("the text is empty", param="prompt", code="empty_prompt")
        if len(tokens) > self.info.context_length:
            raise context_exceeded(self.info.context_length, len(tokens))
        if (wrong := next((token for token in tokens if not 0 <= token < self.info.vocab_size), None)) is not None:
            raise RequestError(
                f"token id {wrong} is not in the vocabulary of {self.info.vocab_size} tokens", param="prompt"
            )
        if types and (len(types) != len(tokens) or not 0 <= min(types) <= max(types) <= 1):
            raise RequestError("token_types must have a 0 or a 1 for each token", param="token_types")
        if len(self._waiting) >= self._config.max_waiting:
            raise BusyError(f"{self._config.max_waiting} requests are waiting already")

    def _of(self, owner: bytes, rid: str | None) -> list[WaitingText]:
        found = self._waiting.values() if rid is None else filter(None, [self._waiting.get(rid)])
        return [each for each in found if each.owner == owner]

    def _abort(self, request: WaitingText) -> FromCore:
        del self._waiting[request.message.rid]
        return Tokens(rid=request.message.rid, ids=[], num_cached=0, finish=Finish("abort"))

    def _stats(self) -> CoreStats:
        return CoreStats(
            num_running=0,
            num_waiting=len(self._waiting),
            num_pages=0,
            num_free_pages=0,
            num_cached_pages=0,
            num_steps=self._num_steps,
            num_prompt_tokens=self._num_tokens,
            num_cached_tokens=0,
            num_output_tokens=0,
            num_retractions=0,
            num_evicted_pages=0,
            is_paused=self._is_paused,
        )


def batch_of(waiting: Sequence[WaitingText], budget: int, max_rows: int) -> list[WaitingText]:
    """Return the request that is first in order, with those whose lengths are nearest to its own: as many as have
    `budget` tokens, each as long as the longest. The first is computed however long it is, so none starves."""
    first = min(waiting, key=lambda each: each.place)
    length = len(first.message.tokens)
    others = [each for each in waiting if each is not first and each.message.priority == first.message.priority]
    others.sort(key=lambda each: (abs(len(each.message.tokens) - length), each.serial))
    batch, longest = [first], length
    for each in others:
        longest = max(longest, len(each.message.tokens))
        if len(batch) == max_rows or (len(batch) + 1) * longest > budget:
            break
        batch.append(each)
    return batch


def _answer(request: WaitingText, output: bytes | RamiformError, timings: Timings) -> FromCore:
    rid = request.message.rid
    if not isinstance(output, RamiformError) and not np.isfinite(np.frombuffer(output, "<f4")).all():
        output = ModelError("the model computed NaN or infinity for this text")
    if isinstance(output, RamiformError):
        return RequestFailed(rid, ErrorInfo.of(output))
    return Tokens(rid=rid, ids=[], num_cached=0, finish=Finish("length"), embedding=output, timings=timings)


def load_encoder_core(config: CoreConfig) -> EncoderCore:
    """Load the encoder that the settings name. Raises RamiformError when the checkpoint or a setting is at fault."""
    path = find_checkpoint(config.model)
    plan = read_encoder(path)
    _check_settings(config, plan.name, plan.context_length)
    device = choose_device(config.device)
    encoder = load_encoder(path, plan, device=device, dtype=choose_dtype(config.dtype, device, plan.num_parameters))
    origin = hub_origin(path)
    info = ModelInfo(
        name=served_name(config.model, config.served_model_name),
        aliases=listed_names(config.served_model_name)[1:],
        path=str(path),
        revision=None if origin is None else origin.commit,
        architecture=plan.name,
        num_parameters=plan.num_parameters,
        vocab_size=encoder.vocab_size,
        context_length=config.context_length or plan.context_length,
        dtype=str(encoder.dtype).removeprefix("torch."),
        device=str(encoder.device),
        page_size=PAGE_SIZE,
        num_pages=0,
        max_running=config.max_running or _MAX_ROWS,
        version=__version__,
        is_classifier=plan.output == "head",
        encoder=plan.output,
        labels=encoder.labels,
        independent_labels=encoder.independent_labels,
    )
    return EncoderCore(config, info, encoder)


def _check_settings(config: CoreConfig, name: str, context_length: int) -> None:
    """Raise RequestError for a setting that does nothing for an encoder."""
    defaults = CoreConfig()
    for setting, value in msgspec.structs.asdict(config).items():
        if setting not in _SETTINGS and value != getattr(defaults, setting):
            raise RequestError(
                f"{setting} does nothing for {name}, an encoder, which keeps no KV and generates no text: leave it out",
                param=setting,
            )
    if config.model_impl == "native":
        raise RequestError(f"transformers computes {name}: model_impl 'native' has no encoders", param="model_impl")
    if (config.context_length or 0) > context_length:
        raise RequestError(
            f"context_length {config.context_length} is longer than the model's {context_length}",
            param="context_length",
        )
