"""Runs with a checkpoint: their channel, and the stored results of tool calls."""

from __future__ import annotations

import hashlib
import inspect
import os
import typing
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from ...runtime.protocol.errors import RequestError
from ...runtime.protocol.session import Done
from ..backends.backend import Channel
from ..expressions.callbacks import Callback
from ..states.agent import AgentCallback
from ..tools.tool_set import ToolCallback
from .answers import StoredRun, identity_of
from .channel import StoredChannel
from .checkpoint import Checkpoint, KeptCall, Key, open_checkpoint

if TYPE_CHECKING:
    from ...runtime.protocol.client import Listener


class CheckpointedRun:
    """The runs of one call of `run` or `run_batch` that share a checkpoint, and their channel."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._channel: tuple[Channel, StoredChannel] | None = None

    def channel(self, channel: Channel) -> StoredChannel:
        """Return the channel with the checkpoint before it. Raises RequestError for another model than the file's."""
        if self._channel is None or self._channel[0] is not channel:
            self.checkpoint.check_model(identity_of(None, channel))
            self._channel = channel, StoredChannel(self.checkpoint, channel)
        return self._channel[1]


@dataclass(frozen=True)
class CheckpointItem:
    """Part of a checkpoint that belongs to one run: in a batch, to the item with this index and these arguments."""

    run: CheckpointedRun
    item: str

    def channel(self, channel: Channel) -> ItemChannel:
        """Return the channel for the run's state."""
        return ItemChannel(self, self.run.channel(channel))


class ItemChannel:
    """The `Channel` of one run with a checkpoint."""

    def __init__(self, item: CheckpointItem, stored: StoredChannel) -> None:
        self._item = item
        self._stored = stored
        self.detach, self.send, self.call = stored.detach, stored.send, stored.call
        self.check = stored.check
        self._new: StoredRun | None = StoredRun(item.item)  # until the program's first state is attached

    def attach(self, listener: Listener) -> int:
        run, self._new = self._new, None
        return self._stored.attach(listener) if run is None else self._stored.attach_run(listener, run)

    def name_state(self, state: int, path: str) -> None:
        """Note the path of the first state of a program that the run calls."""
        self._stored.name_state(state, path)

    def kept_callback(self, state: int, callback: Callback) -> Callback:
        """Return the callback of an Ask; that of a tool makes its call only if it was not made before."""
        return KeptToolCallback(self, state, callback) if isinstance(callback, ToolCallback) else callback

    def answer_again(self, state: int, callback: ToolCallback) -> str | None:
        """Return the text of a tool call that the checkpoint holds, and fill its outcome; None if it holds none."""
        key = self._key(state, callback)
        kept = None if key is None else self._item.run.checkpoint.call(key)
        if kept is None:
            return None
        outcome = callback.outcome
        outcome.name, outcome.arguments = kept.name, kept.arguments
        outcome.result = _restored(callback, kept.name, kept.result)
        outcome.text, outcome.error = kept.text, kept.error
        return kept.appended

    def keep_call(self, state: int, callback: ToolCallback, appended: str) -> None:
        """Keep a tool's call. Raises RequestError if its result would not come back as it is."""
        key = self._key(state, callback)
        if key is None:
            return  # the state is gone
        outcome = callback.outcome
        try:
            result = msgspec.Raw(msgspec.json.encode(outcome.result))
            arguments = msgspec.to_builtins(outcome.arguments)
            same = _restored(callback, outcome.name, result) == outcome.result
        except (TypeError, ValueError):
            same = False
        if not same:
            raise RequestError(
                f"the tool {outcome.name} returned {outcome.result!r}, which a checkpoint cannot keep: return strings, "
                "numbers, lists and dicts, or annotate the function with the type that it returns",
                param="checkpoint",
                code="checkpoint_unsupported",
            )
        self._item.run.checkpoint.keep_call(
            KeptCall(*key, outcome.name, arguments, result, outcome.text, appended, outcome.error)
        )

    def _key(self, state: int, callback: ToolCallback) -> Key | None:
        place = self._stored.place_of(state)
        if place is None:
            return None
        path, index = place
        if isinstance(callback, AgentCallback):  # calls of a turn run at once, so the state does not wait for each
            return self._item.item, f"{path}/agent", callback.op
        return self._item.item, path, index


@dataclass(frozen=True)
class KeptToolCallback:
    """Callback that makes a tool's call unless the checkpoint has it."""

    channel: ItemChannel
    state: int
    callback: ToolCallback

    def __call__(self, done: Done) -> Any:
        kept = self.channel.answer_again(self.state, self.callback)
        if kept is not None:
            return kept
        text = self.callback(done)
        return self._await_text(text) if inspect.isawaitable(text) else self._keep(text)

    async def _await_text(self, text: Awaitable[str]) -> str:
        return self._keep(await text)

    def _keep(self, text: str) -> str:
        self.channel.keep_call(self.state, self.callback, text)
        return text


def checkpointed(
    path: str | os.PathLike[str], program: str, calls: Sequence[tuple[Sequence[Any], Mapping[str, Any]]]
) -> list[CheckpointItem]:
    """Return the item of each call, by its index and arguments."""
    run = CheckpointedRun(open_checkpoint(path, program))
    return [CheckpointItem(run, f"{index}:{digest(args, kwargs)}") for index, (args, kwargs) in enumerate(calls)]


def digest(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return a digest of arguments; values without a JSON form count by their type."""
    data = msgspec.json.encode([_plain(list(args)), _plain(dict(kwargs))], order="deterministic")
    return hashlib.sha256(data).hexdigest()[:16]


def _plain(value: Any) -> Any:
    """Return a value as data that is equal in every process; of an object without a JSON form that is its type."""
    match value:
        case None | bool() | int() | float() | str() | bytes():
            return repr(value)
        case list() | tuple():
            return [_plain(each) for each in value]
        case dict():
            return [[_plain(key), _plain(each)] for key, each in value.items()]
    try:
        return repr(msgspec.to_builtins(value, str_keys=True))
    except (TypeError, ValueError):
        return f"{type(value).__module__}.{type(value).__qualname__}"


def _restored(callback: ToolCallback, name: str | None, result: msgspec.Raw) -> Any:
    """Return a tool's result of the type that its function is annotated with."""
    value = msgspec.json.decode(result)
    declared = callback.tools.tools.get(name or "")
    function = None if declared is None else declared.function
    try:
        annotation = typing.get_type_hints(function, include_extras=True).get("return", Any)
    except (TypeError, NameError):
        annotation = Any
    try:
        return msgspec.convert(value, annotation)
    except (msgspec.ValidationError, TypeError):
        return value  # an error's text, in place of the result
