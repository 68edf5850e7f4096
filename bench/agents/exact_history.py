"""Time of encoding a chat turn on a long history: with remembered ids, and without.

    python -P bench/agents/exact_history.py [--tokens 32000] [--out FILE]

A conversation grows by turns until its prompt has that many tokens. `render` is the chat template with the renderer,
`encode` makes the ids of the rendered prompt, `remember` adds the answer, after it was sent. Medians of CPU time over
the last turns, so that other processes do not count.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from typing import Annotated, Any

import typer

from ramiform.bench.harness import Out, report, table
from ramiform.runtime.frontend.chat.exact_history import ExactHistory
from ramiform.runtime.frontend.chat.renderer import MessageRenderer
from ramiform.runtime.frontend.text.encoding import Encoder
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.tokenizer import load_tokenizer

WORDS = "the tool returned a list of files and every one of them has been read before tests were run again".split()
NUM_TIMED = 20


async def measure(num_tokens: int, turn_tokens: int, *, remembers: bool) -> dict[str, Any]:
    """Play turns up to `num_tokens`, and time the last ones. Times are in milliseconds."""
    tokenizer = load_tokenizer(SHIPPED_MODEL)
    encoder, renderer, draw = Encoder(tokenizer), MessageRenderer(tokenizer), random.Random(1)
    history = ExactHistory(tokenizer, encoder)
    messages: list[dict[str, Any]] = [{"role": "user", "content": _text(draw, turn_tokens)}]
    times: dict[str, list[float]] = {"render ms": [], "encode ms": [], "remember ms": []}
    num = 0
    while num < num_tokens:
        began = time.process_time()
        segments = renderer.render(messages)
        rendered = time.process_time()
        if remembers:
            conversation = await history.encode(segments, "", bound=None)
            num = len(conversation.tokens)
        else:
            num = len(await encoder.encode_async(segments, at_start=True))
        encoded = time.process_time()
        answer = _text(draw, turn_tokens)
        said = [token for word in answer.split(" ") for token in tokenizer.encode(f" {word}", continues=True)]
        began_remembering = time.process_time()
        if remembers:
            history.remember(conversation, said)
        times["render ms"].append(1e3 * (rendered - began))
        times["encode ms"].append(1e3 * (encoded - rendered))
        times["remember ms"].append(1e3 * (time.process_time() - began_remembering))
        messages.append({"role": "assistant", "content": tokenizer.decode(said)})
        messages.append({"role": "user", "content": _text(draw, turn_tokens)})
    medians = {name: statistics.median(values[-NUM_TIMED:]) for name, values in times.items()}
    return {"history": "remembered" if remembers else "tokenised", "tokens": num, "messages": len(messages), **medians}


def _text(draw: random.Random, num_words: int) -> str:
    return " ".join(draw.choices(WORDS, k=num_words))


def main(
    tokens: Annotated[int, typer.Option(help="tokens of the last prompt")] = 32_000,
    turn: Annotated[int, typer.Option(help="words of each message")] = 100,
    out: Out = None,
) -> None:
    rows = [asyncio.run(measure(tokens, turn, remembers=remembers)) for remembers in (False, True)]
    report("Encoding a chat turn on a long history", table(rows), out=out)


if __name__ == "__main__":
    typer.run(main)
