"""The state of a program, `s`: what it appends, the variables it reads. Recording never waits; reading waits for that.

Knows expressions, variables and roles; the recorder knows the rest.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal

from ..runtime.protocol import session
from ..runtime.protocol.decisions import Question
from ..runtime.protocol.errors import RequestError
from .callbacks import ask_when_answered
from .expr import Expr, RoleBeginExpr, RoleEndExpr, parts_of
from .lowering import Defaults, lower
from .meta_info import Segment, segment_of
from .primitives import gen, questions_of, role
from .reader import BackgroundRun, StateReader, drive, drive_async
from .source_location import program_location
from .state_handle import StateHandle
from .tools import OnError, Tool
from .variables import AssignedVariable, DecisionVariable, GatheredVariable, ScopeVariable, Variable, variable_of

if TYPE_CHECKING:
    from .trace import Trace
if TYPE_CHECKING:
    pass


class ForkGroup:
    """`group[i]` is a branch, `group += x` appends to all of them, `join` brings the results back.

    A branch that is neither read nor joined is abandoned when nobody holds it; its errors are then nobody's.
    """

    def __init__(self, source: ProgramState, branches: Sequence[ProgramState]) -> None:
        self._source = source
        self._branches = list(branches)
        self._inherited = [branch._reader.snapshot() for branch in branches]

    def __len__(self) -> int:
        return len(self._branches)

    def __getitem__(self, index: int) -> ProgramState:
        return self._branches[index]

    def __setitem__(self, index: int, value: ProgramState) -> None:
        # `group[i] += x` appends to the branch and then assigns it to its own place.
        if value is not self._branches[index]:
            raise RequestError("a branch cannot be replaced; append to it with group[i] += ...", param="index")

    def __iter__(self) -> Iterator[ProgramState]:
        return iter(self._branches)

    def __iadd__(self, other: Expr | str | Sequence[Expr | str] | Callable[[int], Expr | str]) -> ForkGroup:
        """A string or expression goes to every branch; of a list, tuple or function of the index, each its own."""
        own: list[Any]
        if isinstance(other, Expr | str):
            own = [other] * len(self)
        elif callable(other):
            own = [other(index) for index in range(len(self))]
        elif isinstance(other, list | tuple):
            own = list(other)
        else:
            raise RequestError(f"cannot append {other!r} to a group of branches")
        if len(own) != len(self):
            raise RequestError(f"{len(own)} expressions for {len(self)} branches")
        for branch, expr in zip(self._branches, own, strict=True):
            branch += expr
        return self

    def join(self, mode: Literal["gather_variable", "concate_and_append"] = "gather_variable") -> None:
        """Bring the branches back; nothing waits here.

        "gather_variable": each variable that the branches added becomes, in the source, the list of its values in the
        branches' order. "concate_and_append": what each branch appended is appended to the source, in order.
        """
        match mode:
            case "gather_variable":
                for name, values in self._added().items():
                    self._source._reader.define(name, GatheredVariable(tuple(values)))
                self._source._note_join(self._branches)
            case "concate_and_append":
                self._source._concatenate(self._branches)
            case _:
                raise RequestError(f"join knows 'gather_variable' and 'concate_and_append', got {mode!r}", param="mode")

    def _added(self) -> dict[str, list[Variable]]:
        """New variables by name. One that the source has from an earlier join counts as new when set again."""
        added: dict[str, list[Variable]] = {}
        for branch, inherited in zip(self._branches, self._inherited, strict=True):
            for name, value in branch._reader.snapshot().items():
                before = inherited.get(name)
                if before is None or (isinstance(before, GatheredVariable) and before is not value):
                    added.setdefault(name, []).append(value)
        return added


class ProgramState:
    """A growing text with variables, held by the runtime as tokens.

    `s += x` appends a string or an expression, `s["v"]` reads a variable. What fails raises RamiformError, with the
    program's line, where something that depends on it is read or appended to; what was answered before stays readable.
    """

    def __init__(
        self,
        recorder: StateHandle,
        *,
        defaults: Defaults,
        stream: bool = False,
        variables: dict[str, Variable] | None = None,
        open_role: str | None = None,
    ) -> None:
        self.ret_value: Any = None  # what the program's function returned
        self._recorder = recorder
        self._log = recorder.log
        self._reader = StateReader(recorder, {} if variables is None else variables)
        self._defaults = defaults
        self._stream = stream
        self._open_role = open_role
        self._concatenated: list[StateHandle] = []  # to be kept until they are appended
        self._error_seen = False

    def __repr__(self) -> str:
        """The text that is there, without waiting for more; never raises, so that notebooks and debuggers may ask."""
        return f"ProgramState({self._recorder.text_so_far()})"

    # Appending

    def __iadd__(self, other: Expr | str) -> ProgramState:
        self._append(parts_of(other))
        return self

    def system(self, expr: Expr | str | None = None) -> AbstractContextManager[None]:
        """A system message: `s.system(x)`, or `with s.system(): ...`. Likewise `user` and `assistant`."""
        return self._message("system", expr)

    def user(self, expr: Expr | str | None = None) -> AbstractContextManager[None]:
        return self._message("user", expr)

    def assistant(self, expr: Expr | str | None = None) -> AbstractContextManager[None]:
        return self._message("assistant", expr)

    @contextmanager
    def var_scope(self, name: str) -> Iterator[None]:
        """The text appended inside becomes the variable `name`."""
        first = len(self._log.operations)
        yield
        self._reader.define(name, ScopeVariable(self._recorder, first, len(self._log.operations)))

    def tool(
        self, name: str | None = None, tools: Sequence[Tool] = (), *, errors: OnError = "text", **options: Any
    ) -> None:
        """`s += gen(name, tools=tools)`: the model calls one of the functions, and its result is the variable."""
        self._append(parts_of(gen(name, tools=tools, tool_errors=errors, **options)))

    def decide(self, **questions: Question | str) -> None:
        """Ask about what the state holds so far, and append nothing: `s.decide(urgent="Is it urgent?", team=pick(...),
        anger=rate(...))`. Each name becomes a variable, whose value is the answer with its probabilities. Answers
        depend neither on each other nor on their order. Raises RequestError naming a question that cannot be asked.
        """
        asked = questions_of(questions)
        with self._log.changed:
            operation = self._recorder.append([session.Decide(asked)], {0: ", ".join(questions)})
            for index, name in enumerate(questions):
                self._reader.define(name, DecisionVariable(self._recorder, operation, index))

    # Branching

    def fork(self, size: int = 1) -> ForkGroup:
        """`size` states that begin as this one is now, with its variables, and are played at the same time."""
        if not isinstance(size, int) or size < 1:
            raise RequestError(f"fork needs a positive number of branches, got {size!r}", param="size")
        with self._log.changed:
            children = [
                ProgramState(
                    recorder,
                    defaults=self._defaults,
                    stream=self._stream,
                    variables=self._reader.snapshot(),
                    open_role=self._open_role,
                )
                for recorder in self._recorder.fork(size)
            ]
        return ForkGroup(self, children)

    @contextmanager
    def copy(self) -> Iterator[ProgramState]:
        """`with s.copy() as c`: a fork of one, joined at the end."""
        group = self.fork(1)
        yield group[0]
        group.join()

    # Variables

    def __getitem__(self, name: str) -> Any:
        return self.get_var(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self.set_var(name, value)

    def __contains__(self, name: str) -> bool:
        return name in self._reader.variables

    def get_var(self, name: str) -> Any:
        """Wait for the variable's value. KeyError when there is none of that name."""
        return self._reader.get(name)

    async def get(self, name: str) -> Any:
        """`s[name]` for event loops: `await s.get(name)`. In an async program what is awaited so, or by `wait`, can be
        read as `s[name]` from then on."""
        return await self._reader.get_async(name)

    def set_var(self, name: str, value: Any) -> None:
        self._reader.define(name, AssignedVariable(value))

    def get_meta_info(self, name: str) -> Any:
        """How it was generated: a dict; a list of dicts for n > 1 or a joined variable; None for one that was set."""
        return self._reader.value(name).meta()

    # The whole

    def text(self) -> str:
        """Everything appended so far, generated text included; waits for it."""
        self._reader.wait_for_end()
        return "".join(done.text for _, done in self._recorder.history())

    def segments(self) -> list[Segment]:
        """The same in pieces, one an operation, each telling whether it was generated, and how."""
        self._reader.wait_for_end()
        return [segment_of(done) for _, done in self._recorder.history() if done.text]

    def messages(self) -> list[dict[str, str]]:
        """The closed chat messages as role and content; waits for them."""
        self._reader.wait_for_end()
        messages = []
        role_now, content = None, ""
        for operation, done in self._recorder.history():
            match operation:
                case session.RoleBegin(role=name):
                    role_now, content = name, ""
                case session.RoleEnd() if role_now is not None:
                    messages.append({"role": role_now, "content": content})
                    role_now = None
                case _:
                    content += done.text
        return messages

    def sync(self) -> None:
        """Wait until everything appended so far is done. Raises what failed."""
        self._reader.wait_for_end()
        if (error := self._recorder.settle()) is not None:
            raise error

    async def wait(self) -> None:
        """`sync` for event loops: afterwards nothing that was appended before waits."""
        await self._reader.wait_for_end_async()
        await self._reader.wait_for_all()
        self.sync()

    def error(self) -> Exception | None:
        """Wait like `sync`; give what failed instead of raising it. `run` then takes it as dealt with."""
        self._error_seen = True
        try:
            self.sync()
        except Exception as error:
            return error
        return None

    def close(self) -> None:
        """Abort what still runs, branches included; what is not there yet raises RuntimeFailed when read."""
        self._recorder.close("the program was closed")

    @property
    def trace(self) -> Trace:
        """What became of a run with `trace=True`, all its states; waits for the end of a program in the background."""
        recording = self._recorder.execution.recording
        if recording is None:
            raise RequestError("this program was not traced: run it with trace=True", param="trace")
        from .trace import trace_of

        self._reader.wait_for_end()
        return trace_of(recording)

    # Following the text as it comes

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """New text as it comes, of the variable or of the whole state. Raises what fails, after what came before it.

        In pieces if the program was run with `stream=True`; otherwise each operation's text at once.
        """
        return drive(self._reader.follow(var_name))

    async def text_async_iter(self, var_name: str | None = None, return_meta_data: bool = False) -> AsyncIterator[Any]:
        """`text_iter` for event loops. With meta data, pairs of text and meta info: what `get_meta_info` gives with the
        last of the variable's text, which may be empty, `{"finish_reason": None}` before."""
        if not return_meta_data:
            async for piece in drive_async(self._reader.follow(var_name)):
                yield piece
            return
        if var_name is None:
            raise RequestError("meta data are a variable's: name it", param="return_meta_data")
        meta, given = None, 0
        async for piece in drive_async(self._reader.follow(var_name)):
            given += len(piece)
            meta = self._reader.meta_after(var_name, given)
            yield piece, {"finish_reason": None} if meta is None else meta
        if meta is None:
            yield "", self._reader.meta_after(var_name, math.inf)

    # For the language's other modules

    def _in_background(self) -> BackgroundRun:
        """For the program's body: whoever reads from elsewhere follows it."""
        self._reader.background = BackgroundRun(self._abandon, self._log)
        return self._reader.background

    def _abandon(self, error: BaseException) -> None:
        """The program has raised: what it still runs, branches included, is of no use to anybody."""
        self._recorder.close(f"the program ended with {error!r}")

    async def _finish_async(self) -> None:
        await self._reader.wait_for_all()
        self._finish()

    def _finish(self) -> None:
        """The program has ended: wait for everything, and raise what failed unless the program has asked for it."""
        error = self._recorder.settle()
        if self._error_seen:
            return
        if error is not None:
            raise error
        for value in self._reader.snapshot().values():
            value.get()

    def _note_join(self, children: Sequence[ProgramState]) -> None:
        """For whoever draws the program: gathering variables is nothing that travels."""
        joined = tuple(child._log for child in children)
        self._log.joins.append((len(self._log.operations), joined, program_location()))

    def _concatenate(self, children: Sequence[ProgramState]) -> None:
        recorders = [child._recorder for child in children]
        self._concatenated += recorders
        self._recorder.concatenate(recorders)

    def _append(self, parts: Sequence[Expr]) -> None:
        if not parts:
            return
        with self._log.changed:
            lowered = lower(parts, self._defaults, self._stream, self._open_role)
            first = self._recorder.append(
                lowered.operations, {binding.index: binding.name for binding in lowered.bindings}
            )
            self._open_role = lowered.open_role
            for binding in lowered.bindings:
                self._reader.define(binding.name, variable_of(binding, self._recorder, first, program_location()))
        for index, callback in lowered.callbacks:
            recorder = self._recorder
            ask_when_answered(recorder.execution, recorder.number, self._log, first + index, callback)

    def _message(self, name: str, expr: Expr | str | None) -> AbstractContextManager[None]:
        if expr is None:
            return self._open_message(name)
        self._append(role(name, expr).parts)
        return nullcontext()

    @contextmanager
    def _open_message(self, name: str) -> Iterator[None]:
        self._append([RoleBeginExpr(name)])
        yield
        self._append([RoleEndExpr(name)])
