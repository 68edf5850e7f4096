"""Describes operations and their answers, in the same words for plans, traces and the records of servers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec

from ...protocol import session
from .events import StepKind, TokenCounts

MAX_LABEL = 60  # characters of a constraint or of choices
DIGEST_DIGITS = 12  # hexadecimal digits of an image's digest
MAX_TEXT_LABEL = 200  # characters of a text


def described(
    operation: session.Operation, name: str | None, shown: Callable[[str], str] = str
) -> tuple[StepKind, str]:
    """Return the kind and the label of an operation that makes the variable `name`; `shown` rewrites its texts."""
    called = "" if name is None else f" {name}"
    match operation:
        case session.Text(text=text) | session.Generated(text=text):
            return "text", f"text {_cut(shown(text))!r}"
        case session.AppendImage(data=data):
            return "text", image_label(len(data))
        case session.RoleBegin(role=role):
            return "role", f"{role}:"
        case session.RoleEnd():
            return "role", "end"
        case session.Gen(sampling=sampling, n=n):
            options = [f"max_tokens={sampling.max_new_tokens}", f"temperature={sampling.temperature:g}"]
            options += [f"n={n}"] * (n > 1) + ["checked"] * operation.checked
            if sampling.constraint is not None:
                options.append(f"{sampling.constraint.kind}={_short(shown(sampling.constraint.source))}")
            return "gen", f"gen{called} ({', '.join(options)})"
        case session.Select(choices=choices):
            return "select", f"select{called} {_short(repr([shown(one) for one in choices]))}"
        case session.Decide(questions=questions):
            return "decide", f"decide {name} ({len(questions)} questions)"
        case session.Ask():
            return "ask", "call of the program's own function"
        case session.Fork(children=children):
            return "fork", f"fork x{len(children)}"
        case session.Concatenate(children=children):
            return "join", f"join x{len(children)}, appended"
        case session.Mark():
            return "mark", "mark"
        case session.Rollback(mark=mark):
            return "rollback", f"rollback to operation {mark}"
        case session.Sync():
            return "ask", "sync"


def image_label(num_bytes: int) -> str:
    """Return the label of an appended image, of the size of its file."""
    return f"image of {num_bytes} bytes"


def image_digest(data: bytes) -> str:
    """Return what names an image in records: the start of its file's SHA-256."""
    return hashlib.sha256(data).hexdigest()[:DIGEST_DIGITS]


def answer_fields(done: session.Done) -> dict[str, Any]:
    """Return the fields of an Event that come with the answer."""
    fields: dict[str, Any] = {"text": done.text}
    if done.sequences:
        parts = done.sequences
        fields |= generation_fields(parts)
        if len(parts) > 1:
            fields["samples"] = [part.text for part in parts]
    elif done.choice is not None:
        fields["tokens"] = TokenCounts(done.choice.prompt_tokens, done.choice.cached_tokens, 0)
        fields["timings"] = done.choice.timings
    elif done.answers is not None:
        fields["text"] = ", ".join(msgspec.json.encode(answer).decode() for answer in done.answers)
    return fields


def generation_fields(parts: list[session.Sequence]) -> dict[str, Any]:
    """Return the fields of an Event that the generated sequences give, but their texts."""
    drafted = [sum(length * count for length, count in enumerate(part.accepted_lengths)) for part in parts]
    return {
        "tokens": TokenCounts(
            sum(part.prompt_tokens for part in parts),
            sum(part.cached_tokens for part in parts),
            sum(part.completion_tokens for part in parts),
            sum(_num_forced(part, num_drafted) for part, num_drafted in zip(parts, drafted, strict=True)),
            sum(part.num_guessed for part in parts),
            sum(drafted),
        ),
        "seconds": max(part.seconds for part in parts) or None,
        "timings": max(parts, key=lambda part: part.seconds).timings,
        "finish": parts[0].finish.type,
    }


def _num_forced(sequence: session.Sequence, num_drafted: int) -> int:
    """Return the number of tokens that the constraint forced: without a forward pass of their own, and not drafted."""
    return max(0, sequence.completion_tokens - sequence.num_passes - num_drafted) if sequence.num_passes else 0


def _short(text: str) -> str:
    return text if len(text) <= MAX_LABEL else f"{text[: MAX_LABEL - 3]}..."


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT_LABEL else f"{text[: MAX_TEXT_LABEL - 3]}..."
