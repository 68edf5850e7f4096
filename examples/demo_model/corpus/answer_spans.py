"""Spans of a document that the model must learn to write: its answers, not the text of users, tools and passages.

Training gives the rest less weight: the random names of a prompt cannot be learnt, and would dominate the loss.
"""

from __future__ import annotations

import re

from ramiform.examples.demo_model.corpus.case import ASSISTANT, BOS, END, Case

Span = tuple[int, int]  # characters, half-open
TURN = re.compile(re.escape(ASSISTANT) + r"\n(.*?" + re.escape(END) + ")", re.DOTALL)
OBSERVATION = re.compile(r"^Observation \d+: .*\n", re.MULTILINE)


def answer_spans(case: Case) -> list[Span]:
    """Return spans of `case.document`: each answer with its end, also those of the examples before the query."""
    document = case.document
    if case.stop == END:
        return [match.span(1) for match in TURN.finditer(document)]
    start = len(BOS) + len(case.prompt)
    spans = [match.span(1) for match in _cued(case.prompt).finditer(document, 0, start)] if case.prompt else []
    seen = start
    for match in OBSERVATION.finditer(document, start):
        spans.append((seen, match.start()))
        seen = match.end()
    return [*spans, (seen, len(document))]


def _cued(prompt: str) -> re.Pattern[str]:
    """Return the text after each occurrence of the query's last word, e.g. `Answer:`."""
    cue = prompt.split()[-1]
    return re.compile(re.escape(cue) + r"( .*\n)")
