"""Arguments of runs: which are the function's own, and which are sampling arguments and budgets of the run."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ...runtime.protocol.errors import RequestError, did_you_mean
from ...runtime.protocol.session import Budget
from ..expressions.expr import RUN_ARGUMENTS
from ..expressions.lowering import Defaults, defaults_of
from .signatures import SignaturePrompt

_BUDGETS = {"timeout": "seconds", "max_total_tokens": "tokens"}
RUN_OPTIONS = ("backend", "checkpoint", "stream", "trace")
BATCH_OPTIONS = (
    "backend",
    "checkpoint",
    "generator_style",
    "num_threads",
    "progress_bar",
    "return_exceptions",
    "trace",
)


@dataclass(frozen=True)
class RunArguments:
    """Sampling arguments by the names of `gen`, and budgets by the names of `run`: those that were given."""

    sampling: Defaults = field(default_factory=dict)
    budgets: Mapping[str, Any] = field(default_factory=dict)

    def over(self, others: RunArguments) -> RunArguments:
        """Return both together; where both give an argument, these count."""
        if not self.sampling and not self.budgets:
            return others
        return RunArguments({**others.sampling, **self.sampling}, {**others.budgets, **self.budgets})

    @property
    def budget(self) -> Budget | None:
        """Return the budgets for the runtime. Raises RequestError for one that is not positive."""
        if not self.budgets:
            return None
        given = {_BUDGETS[name]: value for name, value in self.budgets.items() if value is not None}
        if not given:
            return None
        try:
            return msgspec.convert(given, Budget)
        except msgspec.ValidationError as error:
            wrong = str(error).rpartition("$.")[2].rstrip("`")
            param = next(name for name, other in _BUDGETS.items() if other == wrong)
            raise RequestError(f"{param} must be positive, got {given[wrong]!r}", param=param) from None


NOTHING_GIVEN = RunArguments()


def split_arguments(given: Mapping[str, Any], declared: Sequence[str]) -> tuple[RunArguments, dict[str, Any]]:
    """Split keyword arguments into those of the run and the function's own, which are all that it has `declared`."""
    if all(name in declared for name in given):
        return NOTHING_GIVEN, dict(given)
    free = {name: value for name, value in given.items() if name not in declared}
    sampling = {name: value for name, value in free.items() if name in RUN_ARGUMENTS}
    budgets = {name: value for name, value in free.items() if name in _BUDGETS}
    own = {name: value for name, value in given.items() if name not in sampling and name not in budgets}
    return RunArguments(defaults_of(sampling), budgets), own


def plain_parameters(signature: inspect.Signature) -> dict[str, bool] | None:
    """Return the parameters after the state, and whether they are required; None where one is of a special kind."""
    rest = list(signature.parameters.values())[1:]
    if any(one.kind is not one.POSITIONAL_OR_KEYWORD for one in rest):
        return None
    return {one.name: one.default is one.empty for one in rest}


def fits(plain: Mapping[str, bool], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether arguments are those that a call of these parameters takes; a quick `check_arguments`."""
    num_left = len(args)
    num_named = 0
    for name, is_required in plain.items():
        if num_left:
            num_left -= 1
            if name in kwargs:
                return False
        elif name in kwargs:
            num_named += 1
        elif is_required:
            return False
    return num_left == 0 and num_named == len(kwargs)


def check_arguments(
    signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any], *, partial: bool = False
) -> None:
    """Raise TypeError, as a call would, for arguments that the function does not take or, unless `partial`, lacks."""
    try:
        (signature.bind_partial if partial else signature.bind)(None, *args, **kwargs)
    except TypeError as error:
        unknown = next((name for name in kwargs if name not in signature.parameters), None)
        if unknown is None:
            raise TypeError(str(error)) from None  # without the frames of inspect
        declared = list(signature.parameters)[1:]
        hint = did_you_mean(unknown, [*declared, *RUN_ARGUMENTS, *_BUDGETS, *RUN_OPTIONS])
        raise TypeError(f"got an unexpected keyword argument {unknown!r}{hint}") from None


def unknown_batch_argument(name: str) -> RequestError:
    """Return the error for a keyword argument that `run_batch` does not take."""
    hint = did_you_mean(name, [*RUN_ARGUMENTS, *_BUDGETS, *BATCH_OPTIONS])
    return RequestError(f"run_batch has no parameter {name!r}{hint}", param=name)


class SavedProgram(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The file of a program's bound arguments and prompt."""

    ramiform_program: str  # name of the function
    arguments: dict[str, Any]
    prompt: SignaturePrompt | None = None

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file. Raises RequestError for a value that JSON lacks."""
        try:
            content = msgspec.json.encode(self)
        except (TypeError, ValueError) as error:
            raise RequestError(f"the bound arguments cannot be saved as JSON: {error}", param="path") from None
        with open(path, "wb") as file:
            file.write(content)

    @classmethod
    def read(cls, path: str | os.PathLike[str], name: str) -> SavedProgram:
        """Read the file of the program `name`. Raises RequestError for any other file."""
        try:
            with open(path, "rb") as file:
                saved = msgspec.json.decode(file.read(), type=cls)
        except (OSError, ValueError, RecursionError) as error:
            raise RequestError(f"{os.fspath(path)!r} holds no saved program: {error}", param="path") from None
        if saved.ramiform_program != name:
            raise RequestError(
                f"{os.fspath(path)!r} holds arguments of {saved.ramiform_program!r}, not of {name!r}", param="path"
            )
        return saved
