"""Process that renders the chat templates of requests: programs of strangers, bounded in time, memory and output.

Jinja's sandbox keeps a template from Python, but not from `{% for %}` without end or from texts that double at each
step, and no check between its operations can stop a single one that is large. So the limits are the kernel's, on a
process that does nothing else and holds no secrets. One that exceeds them dies; the frontend starts another when it
needs one (../frontend/chat/request_templates.py). The model's own template came with its checkpoint and renders in the
frontend's process, in tens of microseconds, where loops and calls check a deadline (chat_template.py).

Frames on standard input and output are 4 bytes, the length, and a message.
"""

from __future__ import annotations

import math
import os
import resource
import sys
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import IO, Any

import msgspec

from ..protocol.errors import RequestError
from .chat_template import ChatTemplate
from .errors import TokenizerError

CPU_SECONDS = 2.0  # for one rendering
MEMORY_BYTES = 512 << 20  # beyond what the process has when it starts
MAX_FRAME = 1 << 30
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


def write_frame(stream: IO[bytes], data: bytes) -> None:
    """Write one message and flush."""
    stream.write(len(data).to_bytes(4, "big") + data)
    stream.flush()


def main() -> None:
    """Answer requests until standard input ends."""
    stdin, stdout = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_AS, _num_virtual_bytes() + MEMORY_BYTES)
    decoder, encoder = msgspec.msgpack.Decoder(RenderRequest), msgspec.msgpack.Encoder()
    while head := stdin.read(4):
        request = decoder.decode(stdin.read(int.from_bytes(head, "big")))
        _limit(resource.RLIMIT_CPU, math.ceil(time.process_time() + CPU_SECONDS))  # SIGXCPU ends the process
        write_frame(stdout, encoder.encode(_render(request)))


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


def _limit(kind: int, most: int) -> None:
    """Lower the soft limit, so that a later request can have a later one."""
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _num_virtual_bytes() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:  # no Linux
        return 1 << 30


if __name__ == "__main__":
    main()
