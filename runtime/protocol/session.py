"""Messages between a client and a frontend: a program's operations one way, their results the other.

A *state* is a growing sequence of token ids that the frontend holds. The client numbers its states and each state's
operations itself, so nothing waits for a round trip: opening, appending and forking are one-way messages, and a whole
program may come as one message. Each operation is answered once, by `Done` or `Failed`, in order within its state; a
streamed Gen also by `Delta`s before, a checked one by `Attempted`s. After `Failed` every later operation of that state
fails with the same error, up to a `Rollback`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from .core import CoreStats, Finish, ModelInfo, RoutedExperts, Timings
from .decisions import DecisionAnswer, Question
from .errors import ErrorInfo
from .sampling import DEFAULT_VERSION, LogprobParams, SamplingParams, TokenLogprob

ChoicesMethod = Literal["token_length_normalized", "greedy_token_selection", "unconditional_likelihood_normalized"]

# Operations


class Text(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="text"):
    """Append text. It is tokenised together with adjacent text when the next Gen or Select needs it."""

    text: str


class AppendImage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="image"):
    """Append an image: the bytes of a PNG, JPEG, WebP or GIF file."""

    data: bytes


class OfferedTools(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tools that a chat offers. `schemas` is a JSON list in OpenAI's form, for the chat template. `text` describes them
    to models whose chat template takes no tools."""

    schemas: str
    text: str


class RoleBegin(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="role_begin"):
    """Open a chat message: append what the model's chat template puts before its content. The first message may offer
    tools, for the whole chat."""

    role: str
    tools: OfferedTools | None = None


class RoleEnd(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="role_end"):
    """Close the open chat message: append what the template puts after its content."""


class Gen(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="gen"):
    """Generate and append. With n > 1 the samples are forks; the state goes on with the first."""

    sampling: SamplingParams
    logprobs: LogprobParams | None = None
    n: int = 1
    stream: bool = False
    token_texts: bool = False  # with log-probabilities: return the text of each token that they name
    num_api_spec_tokens: int | None = None  # one call of an API may generate so many, for later gens too
    checked: bool = False  # answer each attempt by `Attempted`, and wait for a `Supply` that accepts it; with n = 1
    lora: str | None = None  # LoRA adapter; None: the base alone
    heal: bool = False  # tokens at the end of the text before may be replaced by longer ones that begin with their text
    routed_experts: bool = False  # return the experts of all tokens, those before the generation included


class Generated(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="generated"):
    """Append text that was generated before, as its token ids, or a choice that was made before. Generates nothing.

    `ids` may end before `text` does, as in `Sequence`; the rest is tokenised as text. Those of a Gen that healed begin
    with the end of the text before it. `chosen`: `text` is a choice of a Select, without ids.
    """

    text: str
    ids: list[int] = []
    chosen: bool = False


class Select(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="select"):
    """Score each choice as a continuation and append the best (temperature 0) or a draw among them.

    Without `append` the choices are only scored: the client decides, and the `Ask` that follows appends.
    """

    choices: tuple[str, ...]
    method: ChoicesMethod = "token_length_normalized"
    temperature: float = 0.0
    seed: int | None = None
    append: bool = True
    lora: str | None = None


class Ask(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag="ask"):
    """Wait for a text that the client supplies, and append it. `chosen`: one of the choices scored just before."""

    chosen: bool = False


class Decide(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="decide"):
    """Answer questions about the state's content; append nothing."""

    questions: tuple[Question, ...]
    lora: str | None = None


class Fork(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="fork"):
    """Open `children` as copies of this state at this point."""

    children: tuple[int, ...]


class Concatenate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="concatenate"):
    """Append what each child appended since its fork, in order; waits for the children."""

    children: tuple[int, ...]


class Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="mark"):
    """Append nothing; remember the content, for `Rollback`."""


class Rollback(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="rollback"):
    """Return the state to its content at the `Mark` with number `mark`, also after an operation since then has failed.

    Operations after the mark that are not done yet are aborted as soon as this one arrives, and answered by `Failed`
    with code "rolled_back", except those that forks of this state or joins wait for. Later marks are forgotten.
    """

    mark: int


class Sync(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="sync"):
    """Append nothing; its `Done` shows that every operation before it is done.

    With `ids` the content is tokenised as it stands, and its token ids are the answer.
    """

    ids: bool = False


Operation = (
    Text
    | AppendImage
    | RoleBegin
    | RoleEnd
    | Gen
    | Generated
    | Select
    | Ask
    | Decide
    | Fork
    | Concatenate
    | Mark
    | Rollback
    | Sync
)

# Client -> frontend


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The first message. Answered by `Welcome` once the model is loaded, or by `Fatal`."""

    version: str
    can_move: bool = False  # the client follows a `Fatal` of code "moved" to the address in its `param`


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Sent every few seconds; a client that falls silent loses its states."""


class Bye(msgspec.Struct, frozen=True, tag="bye"):
    """The last message: closes the client's states and aborts its running requests."""


class Budget(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits of a program, for all its states together. When one is exceeded the states are lost, with an error that
    names it."""

    seconds: Annotated[float, msgspec.Meta(gt=0)] | None = None  # from the opening of the program
    tokens: Annotated[int, msgspec.Meta(gt=0)] | None = None  # generated tokens


MAX_NOTE = 1000  # characters of a note's text
NoteText = Annotated[str, msgspec.Meta(max_length=MAX_NOTE)]


class ReadWait(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A time in which the program waited for a value: seconds before the message was sent, and the line that read."""

    began: float
    ended: float
    place: NoteText = ""
    code: NoteText = ""  # as in `Note`


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Facts of operations that only the client knows, for the server's records.

    `place` and `code` hold from operation `op` on, up to the next note that has them; the rest is about `op` itself.
    `asked`: the program supplied its text. `gathered` are states whose variables were read together before it, `called`
    the first states of a program that was called before it, and whose name is `label`.
    """

    op: int
    place: NoteText = ""  # file:line of the program
    code: NoteText = ""  # the line's text, once for each line of a program
    name: NoteText | None = None  # the variable that it makes
    label: NoteText | None = None
    asked: bool = False
    gathered: tuple[int, ...] = ()
    gathered_at: NoteText = ""  # file:line
    called: tuple[int, ...] = ()
    called_at: NoteText = ""
    waits: list[ReadWait] = []  # before it
    ended: bool = False  # the program's function has returned; `op` is the number of operations


class Open(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="open"):
    """Open an empty state of program `program` (numbered by the client). A program's first Open has its budget. With
    `caller` the program is a part of that one, which has called it: what it spends counts there too, and both end
    together at that one's end.

    `title` names the program in the server's records, if the server wants notes. `traceparent` (W3C Trace Context) is
    the span that the program is part of.
    """

    state: int
    program: int
    budget: Budget | None = None
    title: NoteText | None = None
    traceparent: NoteText | None = None
    caller: int | None = None


class Append(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="append"):
    """Play `operations`, numbered `first`, `first + 1`, ..., on `state`. `notes`: only if the server wants them."""

    state: int
    first: int
    operations: list[Operation]
    notes: list[Note] = []


class Close(msgspec.Struct, frozen=True, omit_defaults=True, tag="close"):
    """Forget states, and every state of `programs`, and abort their requests. A state of `states` that others wait for
    is played on without answers until they have what they need.

    `error`: an exception ended the programs, at its `line`. Only if the server wants notes.
    """

    states: tuple[int, ...]
    programs: tuple[int, ...] = ()
    error: ErrorInfo | None = None


class Play(msgspec.Struct, frozen=True, tag="play"):
    """Several messages as one, in order: all operations that a program has recorded so far.

    `complete`: nothing more will be appended to the states of the programs opened here, so that their prefixes are
    needed only as far as these messages use them.
    """

    messages: list[Open | Append | Close]
    complete: bool = False


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """Generate again: return to the content before the checked Gen, append `operations`, and generate by `gen`.

    Once an attempt is accepted, the state holds its text without these operations.
    """

    gen: Gen
    operations: list[Text | RoleBegin | RoleEnd] = []


class Supply(msgspec.Struct, frozen=True, kw_only=True, tag="supply"):
    """The text that the `Ask` with number `op` of `state` waits for, or the error that prevents it.

    For a checked Gen: it accepts the latest attempt, rejects it for good (`error`), or asks for another (`retry`).
    `label` says what was called, for the server's records.
    """

    state: int
    op: int
    text: str = ""
    error: ErrorInfo | None = None
    retry: Retry | None = None
    label: NoteText | None = None


class Call(msgspec.Struct, frozen=True, tag="call"):
    """A call that concerns no state. Answered by `Reply`."""

    call: int
    method: Literal["info", "stats", "flush_cache"]


ToFrontend = Hello | Ping | Bye | Open | Append | Close | Play | Supply | Call

# Frontend -> client


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """The answer to `Hello`. With `move_to`, connect to that address instead: another frontend of the same core.

    `wants_notes`: the server keeps records of programs, to which notes add what only the client knows.
    """

    info: ModelInfo
    move_to: str | None = None
    wants_notes: bool = False


class Fatal(msgspec.Struct, frozen=True, tag="fatal"):
    """The last message of a frontend: the runtime shuts down, could not start, or has moved the client's programs."""

    error: ErrorInfo


class Sequence(msgspec.Struct, frozen=True, kw_only=True):
    """One generated sequence. `text` and `ids` are without the stop. If a stop string cuts the last token, `ids` ends
    before that token and `text` is longer than the ids' text."""

    text: str
    ids: list[int]
    prompt_tokens: int
    completion_tokens: int  # all that were computed, the stop token included
    cached_tokens: int
    finish: Finish
    logprobs: list[TokenLogprob] | None = None  # one per id, and one for a stop token
    prompt_logprobs: list[TokenLogprob | None] | None = None
    seconds: float = 0.0  # from submission to finish
    num_retractions: int = 0
    num_passes: int = 0  # forward passes of the model that gave the tokens
    accepted_lengths: list[int] = []  # how many verifications accepted 0, 1, 2, ... draft tokens
    num_guessed: int = 0  # draft tokens that were verified
    timings: Timings | None = None  # None if it was aborted
    weight_versions: list[tuple[str, int]] = []  # of weights, with the number of tokens that they sampled
    token_texts: dict[int, str] | None = None  # the text of every id that the log-probabilities name
    routes: RoutedExperts | None = None  # if requested

    @property
    def version_facts(self) -> dict[str, Any]:
        """Facts of a meta info: the version of the weights that sampled the last token, and with several the number of
        tokens of each, in order."""
        versions = self.weight_versions or [(DEFAULT_VERSION, 0)]
        facts: dict[str, Any] = {"weight_version": versions[-1][0]}
        return facts if len(versions) == 1 else {**facts, "weight_versions": versions}

    @property
    def accept_length(self) -> float:
        """Tokens per forward pass: 1 unless draft tokens were accepted or text was forced."""
        return self.completion_tokens / self.num_passes if self.num_passes else 0.0


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a select. Lists have one entry per choice, in the user's order."""

    index: int
    text: str
    scores: list[float]  # that the method compared
    normalized_prompt_logprobs: list[float]  # mean log-probability of the choice's tokens
    token_logprobs: list[list[TokenLogprob]]
    unconditional_logprobs: list[list[TokenLogprob]] | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    timings: Timings | None = None  # of the slowest request that scored


class Delta(msgspec.Struct, frozen=True, tag="delta"):
    """More text of a streamed Gen."""

    state: int
    op: int
    text: str
    ids: list[int]
    logprobs: list[TokenLogprob] | None = None


class Done(msgspec.Struct, frozen=True, tag="done"):
    """Operation `op` appended `text` to the state, as `s.text()` shows it. A Gen has `sequences`, a Select `choice`, a
    Decide `answers`, a Sync that asked for them the `ids` of the whole content."""

    state: int
    op: int
    text: str
    sequences: list[Sequence] | None = None
    choice: Choice | None = None
    answers: list[DecisionAnswer] | None = None
    ids: list[int] | None = None


class Attempted(msgspec.Struct, frozen=True, tag="attempted"):
    """The checked Gen with number `op` has generated `sequence`, and waits for a `Supply`."""

    state: int
    op: int
    sequence: Sequence


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Operation `op` failed, and with it the state, until a `Rollback` to before it."""

    state: int
    op: int
    error: ErrorInfo


Answer = Delta | Attempted | Done | Failed


class AnswerBatch(msgspec.Struct, frozen=True, tag="answers"):
    """Several answers as one message, in order."""

    answers: list[Answer]


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """The runtime has closed these states: a budget is spent, the client was silent, or there are too many."""

    states: tuple[int, ...]
    error: ErrorInfo


class Reply(msgspec.Struct, frozen=True, tag="reply"):
    """The answer to the `Call` with number `call`."""

    call: int
    info: ModelInfo | None = None
    stats: CoreStats | None = None
    error: ErrorInfo | None = None


class Malformed(msgspec.Struct, frozen=True, tag="malformed"):
    """The client sent a message that could not be read. The connection goes on."""

    error: ErrorInfo


FromFrontend = Welcome | Fatal | Delta | Attempted | Done | Failed | AnswerBatch | Lost | Reply | Malformed
