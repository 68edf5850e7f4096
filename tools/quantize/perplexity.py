"""Perplexity of a checkpoint on a text, by the engine.

Perplexity is exp of the mean negative log-probability of each token but the first, given those before it in its window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from ...runtime.engine.build import build_engine
from ...runtime.engine.engine import ForwardEngine
from ...runtime.protocol.config import CoreConfig, QuantizeName
from ...runtime.protocol.errors import RequestError
from ...runtime.scheduler.plan import ForwardPlan, Row, Score


def perplexity_of(
    path: Path,
    text: str,
    *,
    window: int = 512,
    quantize: QuantizeName | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> float:
    """Compute the perplexity over windows of `window` tokens, or of the context length if that is shorter.

    Raises RequestError when the text has fewer than two tokens, CheckpointError when the checkpoint cannot be served.
    """
    tokens = Tokenizer.from_file(str(path / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    if len(tokens) < 2:
        raise RequestError("the text has fewer than two tokens: there is nothing to predict", param="data")
    engine = build_engine(CoreConfig(quantize=quantize, window_ratio=1), path)
    return perplexity(engine, tokens, min(window, engine.info.context_length), on_progress)


def perplexity(
    engine: ForwardEngine, tokens: Sequence[int], window: int, on_progress: Callable[[int, int], None] | None = None
) -> float:
    """Compute the perplexity of `tokens` with a loaded engine."""
    total, count = 0.0, 0
    for start in range(0, len(tokens), window):
        part = list(tokens[start : start + window])
        if len(part) > 1:
            total -= _log_probability(engine, part)
            count += len(part) - 1
        if on_progress is not None:
            on_progress(min(start + window, len(tokens)), len(tokens))
    return math.exp(total / count)


def _log_probability(engine: ForwardEngine, tokens: list[int]) -> float:
    """Sum the log-probabilities of all tokens but the first."""
    score = Score(first=0, targets=tokens[1:], num_top=0)
    pages = list(range(-(-len(tokens) // engine.info.page_size)))
    widened = 0 < engine.info.widened_from <= len(tokens)  # as a prompt's rows are
    row = Row(rid="perplexity", tokens=tokens, first_position=0, pages=pages, score=score, widened=widened)
    result = engine.run(ForwardPlan(step=0, copies=[], rows=[row]))
    return sum(entry.logprob for entry in result.rows[0].scores)
