"""Says what a generation asks of an endpoint beside text, and reads the program's output from the answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from msgspec.structs import replace

from ....runtime.protocol import session
from ....runtime.protocol.core import Finish
from ....runtime.protocol.errors import RequestError
from ....runtime.protocol.sampling import Constraint, SamplingParams
from ..model import ModelOutput, OnText
from ..stop_cutter import StopCutter
from ..transcript import NativeCall, Transcript, TranscriptPart
from .native_tools import NativeTools, native_tools, without_tools
from .structured_output import OutputForm

SELECT_TOKENS = 1024  # of an answer that is one of given choices; models that think first need more than the choice


@dataclass(frozen=True)
class AskedOutput:
    """Tools that may be called, the form of the text, and stops that are looked for here.

    `constraint` is what the form or a field of the endpoint's own says.
    """

    constraint: Constraint | None = None
    tools: NativeTools | None = None
    form: OutputForm | None = None
    stops: tuple[str, ...] = ()

    def pieces_to(self, on_text: OnText) -> OnText:
        """Return what takes the pieces of the answer's text and gives those of the program's."""
        if self.form is None:
            return on_text
        return (lambda piece: None) if self.stops else self.form.pieces_to(on_text)

    def output(self, sequences: Sequence[session.Sequence], calls: tuple[NativeCall, ...]) -> ModelOutput:
        """Return the output of answers; `calls` are those of the first. Raises RequestError for one in another form."""
        read = [self._read(sequence) for sequence in sequences]
        said = read[0].text
        if calls and self.tools is not None:
            read[0] = replace(read[0], text=self.tools.text.written(said, calls))
            return ModelOutput(read, (TranscriptPart("generated", read[0].text, calls=calls, said=said),))
        return ModelOutput(read, (TranscriptPart("generated", said),))

    def _read(self, sequence: session.Sequence) -> session.Sequence:
        if self.form is None:
            return sequence
        text, finish = self.form.text_of(sequence.text), sequence.finish
        if self.stops:
            cutter = StopCutter(self.stops)
            text = cutter.take(text) + cutter.end()
            finish = finish if cutter.found is None else Finish("stop", cutter.found)
        return replace(sequence, text=text, finish=finish)


def asked_tools(transcript: Transcript, sampling: SamplingParams) -> AskedOutput:
    """Return the tools that a generation may call, and the constraint that is left."""
    tools = native_tools(transcript, sampling.constraint)
    return AskedOutput(sampling.constraint if tools is None else without_tools(sampling.constraint), tools)


def gen_of_select(select: session.Select) -> session.Gen:
    """Return the generation whose text is one of the choices. Raises RequestError for what needs their scores."""
    if select.method != "token_length_normalized" or not select.append:
        refuse_scores("choices_method", "leave choices_method out")
    constraint = Constraint("choices", json.dumps(select.choices))
    tokens = SELECT_TOKENS + max(len(choice.encode()) for choice in select.choices)
    sampling = SamplingParams(
        temperature=select.temperature, seed=select.seed, max_new_tokens=tokens, constraint=constraint
    )
    return session.Gen(sampling=sampling)


def choice_of_output(select: session.Select, output: ModelOutput) -> session.Choice:
    """Return the choice that was generated, without scores. Raises RequestError for a text that is none."""
    [sequence] = output.sequences
    if sequence.text not in select.choices:
        raise RequestError(
            f"the endpoint wrote {sequence.text[:200]!r}, which is none of the choices {list(select.choices)}",
            param="choices",
            code="invalid_result",
        )
    return session.Choice(
        index=select.choices.index(sequence.text),
        text=sequence.text,
        scores=[],
        normalized_prompt_logprobs=[],
        token_logprobs=[],
        prompt_tokens=sequence.prompt_tokens,
        cached_tokens=sequence.cached_tokens,
    )


def refuse_scores(param: str, way_out: str) -> NoReturn:
    """Raise the error of choices that would have to be scored."""
    raise RequestError(
        f"a chat endpoint gives no log-probabilities of given text, so choices are generated and have no scores: "
        f"{way_out}, or run on a Runtime",
        param=param,
        code="unsupported",
    )
