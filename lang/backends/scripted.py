"""A backend that answers from a script: for doctests, tests of programs, and demonstrations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...runtime.protocol import choices, decisions
from ...runtime.protocol import session as protocol
from ...runtime.protocol.core import Finish
from ...runtime.protocol.decisions import DecisionAnswer, Question
from ...runtime.protocol.errors import RamiformError, RequestError
from ...runtime.protocol.sampling import TokenLogprob
from .channel import LocalBackend
from .model import Method, ModelCall, ModelOutput, OnText
from .transcript import Transcript, TranscriptPart

_UNLIKELY = -1e9  # a log-probability whose exponential is 0


class Scripted(LocalBackend):
    """Answers programs with `answers`, in the order in which they ask. One thread asks, so the order is reproducible.

    >>> import ramiform
    >>> @ramiform.function
    ... def capital(s, country):
    ...     s += f"The capital of {country} is" + ramiform.gen("city", stop=".")
    ...     s += ". It is" + ramiform.select("size", [" big", " small"])
    >>> state = capital.run("France", backend=ramiform.Scripted([" Paris", " big"]))
    >>> state["city"], state["size"]
    (' Paris', ' big')

    `answers` is a sequence, or a function of the text before (chat roles are shown by ChatML's marks). Each answer is a
    str; for a gen with n > 1 a list of n, for a streamed gen maybe the list of its pieces; for a select the choice or
    its index; for each question of a decide the answer's label; or an exception, which the program then raises.
    What is generated ends before the gen's first stop string. Raises RequestError in the program when the script has
    ended or an answer does not fit. `prompts` lists the texts before each answer, for tests.
    """

    def __init__(self, answers: Iterable[Any] | Callable[[str], Any]) -> None:
        self.prompts: list[str] = []
        self._answers = answers if callable(answers) else _in_turn(tuple(answers))
        super().__init__(num_threads=0)

    # Methods of `Model`

    def generate(self, transcript: Transcript, gen: protocol.Gen, on_text: OnText, call: ModelCall) -> ModelOutput:
        answer = self._next(transcript)
        texts = [answer] if isinstance(answer, str) else answer
        are_texts = isinstance(texts, list | tuple) and all(isinstance(text, str) for text in texts)
        if not are_texts or (len(texts) != gen.n and (gen.n > 1 or not texts)):
            raise RequestError(f"a gen of {gen.n} is answered by {answer!r}", param="answers")
        if gen.n == 1:
            texts = ["".join(texts)] if not gen.stream else texts
        whole = texts if gen.n > 1 else ["".join(texts)]
        sequences = [_sequence(transcript, text, gen.sampling.stop) for text in whole]
        left = len(sequences[0].text)
        for piece in texts if gen.stream and gen.n == 1 else ():
            if left:
                on_text(piece[:left])
            left = max(0, left - len(piece))
        return ModelOutput(sequences, (TranscriptPart("generated", sequences[0].text),))

    def select(self, transcript: Transcript, select: protocol.Select, call: ModelCall) -> protocol.Choice:
        answer = self._next(transcript)
        index = select.choices.index(answer) if answer in select.choices else answer
        if type(index) is not int or not 0 <= index < len(select.choices):
            raise RequestError(f"a select among {list(select.choices)} is answered by {answer!r}", param="answers")
        logprobs = [[TokenLogprob(0.0 if place == index else -1.0, 0)] for place in range(len(select.choices))]
        means = choices.token_length_normalized([[token.logprob for token in tokens] for tokens in logprobs])
        return protocol.Choice(
            index=index,
            text=select.choices[index],
            scores=means,
            normalized_prompt_logprobs=means,
            token_logprobs=logprobs,
            unconditional_logprobs=logprobs if select.method == "unconditional_likelihood_normalized" else None,
        )

    def decide(self, transcript: Transcript, questions: tuple[Question, ...], call: ModelCall) -> list[DecisionAnswer]:
        decisions.check(questions)
        return [_decided(question, self._next(transcript)) for question in questions]

    def answer_call(self, method: Method, number: int) -> protocol.Reply:
        return protocol.Reply(number)

    def _next(self, transcript: Transcript) -> Any:
        self.prompts.append(transcript.text)
        answer = self._answers(transcript.text)
        if isinstance(answer, RamiformError):
            raise answer
        if isinstance(answer, BaseException):
            raise RequestError(f"{type(answer).__name__}: {answer}", code="scripted")
        return answer


def _in_turn(answers: Sequence[Any]) -> Callable[[str], Any]:
    rest = iter(answers)

    def answer(prompt: str) -> Any:
        for value in rest:
            return value
        raise RequestError(
            f"the script has {len(answers)} answers, and one more is asked for, after {prompt[-80:]!r}",
            param="answers",
            code="script_ended",
        )

    return answer


def _sequence(transcript: Transcript, text: str, stops: tuple[str, ...]) -> protocol.Sequence:
    """Return the sequence of a scripted text up to its first stop. A token is a word here."""
    found = [(text.index(stop), stop) for stop in stops if stop in text]
    end, matched = min(found) if found else (len(text), None)
    return protocol.Sequence(
        text=text[:end],
        ids=[],
        prompt_tokens=len(transcript.text.split()),
        completion_tokens=len(text[:end].split()),
        cached_tokens=0,
        finish=Finish("stop", matched),
    )


def _decided(question: Question, label: Any) -> DecisionAnswer:
    labels = decisions.labels(question)
    if label not in labels:
        raise RequestError(f"a question with the answers {labels} is answered by {label!r}", param="answers")
    return decisions.answer(question, [0.0 if one == label else _UNLIKELY for one in labels])
