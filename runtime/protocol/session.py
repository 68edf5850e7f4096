"""Client <-> frontend: a program's operations one way, what they produced the other.

A *state* is a growing sequence of token ids held by the frontend. The client numbers its states and each state's
operations itself, so that nothing waits for a round trip: opening, appending, forking are one-way messages, and a
whole program may come as one. Each operation is answered once, by `Done` or `Failed`, in order within its state; a
streamed Gen also by `Delta`s before.
After `Failed` every later operation of that state fails with the same error.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from .core import CoreStats, Finish, ModelInfo, Timings
from .decisions import DecisionAnswer, Question
from .errors import ErrorInfo
from .sampling import LogprobParams, SamplingParams, TokenLogprob

ChoicesMethod = Literal["token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized"]

# Operations


class Text(msgspec.Struct, frozen=True, tag="text"):
    """Append text. Tokenised together with adjacent text when the next Gen or Select needs it."""

    text: str


class RoleBegin(msgspec.Struct, frozen=True, tag="role_begin"):
    """Open a chat message: append what the model's chat template puts before its content."""

    role: str


class RoleEnd(msgspec.Struct, frozen=True, tag="role_end"):
    """Close the open chat message: append what the template puts after its content."""


class Gen(msgspec.Struct, frozen=True, kw_only=True, tag="gen"):
    """Generate and append. With n > 1 the samples are forks; the state goes on with the first."""

    sampling: SamplingParams
    logprobs: LogprobParams | None = None
    n: int = 1
    stream: bool = False
    token_texts: bool = False  # with log-probabilities: what each token that they name adds to the text


class Select(msgspec.Struct, frozen=True, kw_only=True, tag="select"):
    """Score each choice as a continuation and append the best (temperature 0) or a draw among them.

    Without `append` the choices are only scored: the client decides, and the `Ask` that follows appends.
    """

    choices: tuple[str, ...]
    method: ChoicesMethod = "token_length_normalized"
    temperature: float = 0.0
    seed: int | None = None
    append: bool = True


class Ask(msgspec.Struct, frozen=True, kw_only=True, tag="ask"):
    """Append what the client supplies; wait for it. `chosen`: it is one of the choices that were scored just before."""

    chosen: bool = False


class Decide(msgspec.Struct, frozen=True, tag="decide"):
    """Answer questions about what the state holds; append nothing."""

    questions: tuple[Question, ...]


class Fork(msgspec.Struct, frozen=True, tag="fork"):
    """Open `children` as copies of this state as it is at this point."""

    children: tuple[int, ...]


class Concatenate(msgspec.Struct, frozen=True, tag="concatenate"):
    """Append what each child appended since its fork, in order; waits for the children."""

    children: tuple[int, ...]


class Sync(msgspec.Struct, frozen=True, tag="sync"):
    """Do nothing; its `Done` says that everything before it is done."""


Operation = Text | RoleBegin | RoleEnd | Gen | Select | Ask | Decide | Fork | Concatenate | Sync

# Client -> frontend


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The first message. Answered by `Welcome` once the model is loaded, or by `Fatal`."""

    version: str


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Sent every few seconds; a client that falls silent loses its states."""


class Bye(msgspec.Struct, frozen=True, tag="bye"):
    """The client leaves; its states are closed and its running requests aborted."""


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What a program may use, all its states together; when it is spent they are lost, with an error that names it."""

    seconds: Annotated[float, msgspec.Meta(gt=0)] | None = None  # since the program was opened
    tokens: Annotated[int, msgspec.Meta(gt=0)] | None = None  # generated


class Open(msgspec.Struct, frozen=True, tag="open"):
    """A new, empty state of program `program` (numbered by the client). The program's first brings the budget."""

    state: int
    program: int
    budget: Budget | None = None


class Append(msgspec.Struct, frozen=True, tag="append"):
    """Play `operations`, numbered `first`, `first + 1`, ..., on `state`."""

    state: int
    first: int
    operations: list[Operation]


class Close(msgspec.Struct, frozen=True, tag="close"):
    """Forget states, and every state of `programs`; what they still run is aborted. A single state that others wait
    for goes on unseen until they have what they need."""

    states: tuple[int, ...]
    programs: tuple[int, ...] = ()


class Play(msgspec.Struct, frozen=True, tag="play"):
    """Several messages as one, in order: all that a program has said so far.

    `complete`: nothing more will be appended to the states of the programs opened here, so that what they hold is
    needed only as far as these messages use it.
    """

    messages: list[Open | Append | Close]
    complete: bool = False


class Supply(msgspec.Struct, frozen=True, kw_only=True, tag="supply"):
    """What the `Ask` that is operation `op` of `state` waits for: a text, or why there is none."""

    state: int
    op: int
    text: str = ""
    error: ErrorInfo | None = None


class Call(msgspec.Struct, frozen=True, tag="call"):
    """A question outside any state. Answered by `Reply`."""

    call: int
    method: Literal["info", "stats", "flush_cache"]


ToFrontend = Hello | Ping | Bye | Open | Append | Close | Play | Supply | Call

# Frontend -> client


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """With `move_to`, say Hello there instead: another frontend of the same core has room, and answers at once."""

    info: ModelInfo
    move_to: str | None = None


class Fatal(msgspec.Struct, frozen=True, tag="fatal"):
    """Nothing more will be answered: the runtime goes down, or could not start."""

    error: ErrorInfo


class Sequence(msgspec.Struct, frozen=True, kw_only=True):
    """One generated sequence. `text` and `ids` are without the stop; a stop string may cut the last token, then
    `ids` ends before it and `text` is longer than the ids' text."""

    text: str
    ids: list[int]
    prompt_tokens: int
    completion_tokens: int  # counts the stop token too: what was computed
    cached_tokens: int
    finish: Finish
    logprobs: list[TokenLogprob] | None = None  # one per id, and one for a stop token
    prompt_logprobs: list[TokenLogprob | None] | None = None
    seconds: float = 0.0  # from submission to finish
    num_retractions: int = 0
    num_passes: int = 0  # of the model, that gave the tokens
    accepted_lengths: list[int] = []  # how many verifications accepted 0, 1, 2, ... of their guesses
    timings: Timings | None = None  # None: it was aborted
    token_texts: dict[int, str] | None = None  # of every id that the log-probabilities name

    @property
    def accept_length(self) -> float:
        """Tokens of a pass: 1 unless guesses proved right, or text was forced."""
        return self.completion_tokens / self.num_passes if self.num_passes else 0.0


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """How a select decided, or would have. Lists have one entry per choice, in the user's order."""

    index: int
    text: str
    scores: list[float]  # what the method compared
    normalized_prompt_logprobs: list[float]  # mean log-probability of the choice's tokens
    token_logprobs: list[list[TokenLogprob]]
    unconditional_logprobs: list[list[TokenLogprob]] | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0


class Delta(msgspec.Struct, frozen=True, tag="delta"):
    """More text of a streamed Gen."""

    state: int
    op: int
    text: str
    ids: list[int]
    logprobs: list[TokenLogprob] | None = None


class Done(msgspec.Struct, frozen=True, tag="done"):
    """Operation `op` appended `text` to the state (what `s.text()` shows). A Gen has `sequences`, a Select `choice`, a
    Decide `answers`."""

    state: int
    op: int
    text: str
    sequences: list[Sequence] | None = None
    choice: Choice | None = None
    answers: list[DecisionAnswer] | None = None


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Operation `op` failed, and with it the state."""

    state: int
    op: int
    error: ErrorInfo


class AnswerBatch(msgspec.Struct, frozen=True, tag="answers"):
    """Several answers as one message, in order."""

    answers: list[Delta | Done | Failed]


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """The runtime has closed these states: a budget is spent, the client was silent, or there are too many."""

    states: tuple[int, ...]
    error: ErrorInfo


class Reply(msgspec.Struct, frozen=True, tag="reply"):
    call: int
    info: ModelInfo | None = None
    stats: CoreStats | None = None
    error: ErrorInfo | None = None


class Malformed(msgspec.Struct, frozen=True, tag="malformed"):
    """A message of yours could not be read. The connection goes on."""

    error: ErrorInfo


FromFrontend = Welcome | Fatal | Delta | Done | Failed | AnswerBatch | Lost | Reply | Malformed
