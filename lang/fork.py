"""The branches of a fork: written to together or one by one, and joined. Knows states and their variables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from ..runtime.protocol.errors import RequestError
from .expr import Expr
from .variables import GatheredVariable, Variable

if TYPE_CHECKING:
    from .state import ProgramState


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
