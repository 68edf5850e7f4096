"""Process that renders the chat templates of requests: programs of strangers, bounded in time, memory and output.

Jinja's sandbox keeps a template from Python, but not from `{% for %}` without end or from texts that double at each
step, and no check between its operations can stop a single one that is large. So the limits are the kernel's, on a
process that does nothing else and holds no secrets (child_frames.py). The model's own template came with its checkpoint
and renders in the frontend's process, in tens of microseconds, where loops and calls check a deadline
(chat_template.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from ..protocol.errors import RequestError
from .chat_template import ChatTemplate
from .child_frames import answer_frames
from .errors import TokenizerError

CPU_SECONDS = 2.0  # for one rendering
MEMORY_BYTES = 512 << 20  # beyond what the process has when it starts
_MAX_CACHED = 16


class RenderRequest(msgspec.Struct, frozen=True):
    """A template, its variables such as `bos_token`, and the arguments of `ChatTemplate.render`."""

    source: str
    names: dict[str, str]
    arguments: dict[str, Any]


class RenderAnswer(msgspec.Struct, frozen=True):
    """The text, or the error of the client and its parameter."""

    text: str = ""
    error: str | None = None
    param: str | None = None


def main() -> None:
    """Answer requests until standard input ends."""
    decoder, encoder = msgspec.msgpack.Decoder(RenderRequest), msgspec.msgpack.Encoder()
    answer_frames(
        lambda request: encoder.encode(_render(decoder.decode(request))),
        cpu_seconds=CPU_SECONDS,
        memory_bytes=MEMORY_BYTES,
    )


def _render(request: RenderRequest) -> RenderAnswer:
    try:
        template = _compiled(request.source, tuple(sorted(request.names.items())))
        return RenderAnswer(template.render(**_keywords(request.arguments)))
    except TokenizerError as error:
        return RenderAnswer(error=str(error), param="chat_template")
    except RequestError as error:
        return RenderAnswer(error=str(error), param=error.param)
    except (MemoryError, RecursionError):
        return RenderAnswer(error="the chat template exceeds its limit of memory or depth", param="chat_template")


@lru_cache(_MAX_CACHED)
def _compiled(source: str, names: tuple[tuple[str, str], ...]) -> ChatTemplate:
    return ChatTemplate(source, dict(names))


def _keywords(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {str(name): value for name, value in arguments.items()}


if __name__ == "__main__":
    main()
