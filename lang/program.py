"""Programs: `@function` and the ways to run one. Knows functions, arguments and threads; nothing of operations."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, overload

from ..runtime.protocol.errors import RequestError
from .backend import Backend, Channel, channel_of
from .batch import run_all
from .expr import Gen
from .recorder import Recorder
from .sampling import RUN_NAMES, defaults_of
from .state import ProgramState


class Program:
    """A function whose first argument is a ProgramState; made by `@function`.

    `run` and `run_batch` take the function's arguments and, beside them, `backend` and sampling arguments
    (`temperature`, `max_new_tokens`, `stop`, ...: those of `gen`) that hold where a `gen` does not say otherwise.
    A name that the function itself declares is the function's.
    """

    def __init__(self, function: Callable[..., Any], bound: Mapping[str, Any] | None = None) -> None:
        parameters = list(inspect.signature(function).parameters.values())
        if not parameters or parameters[0].kind not in (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
        ):
            raise RequestError(f"a program's first argument is its state; {function!r} takes none", param="function")
        self.function = function
        self.parameters = tuple(parameter.name for parameter in parameters[1:])
        self._bound = dict(bound or {})
        self._signature = inspect.signature(function)
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """With a state first: part of the program that state belongs to. Otherwise `run`."""
        if args and isinstance(args[0], ProgramState):
            return self.function(*args, **{**self._bound, **kwargs})
        return self.run(*args, **kwargs)

    def bind(self, **kwargs: Any) -> Program:
        """The program with these arguments given."""
        self._signature.bind_partial(None, **kwargs)
        return Program(self.function, {**self._bound, **kwargs})

    def run(self, *args: Any, stream: bool = False, backend: Backend | None = None, **kwargs: Any) -> ProgramState:
        """Run to the end and give the state. Raises what the program raises, and what failed without being asked for.

        With `stream` the program runs in the background: the state is given at once, to be read and followed.
        """
        defaults, kwargs = self._split(kwargs)
        self._check(args, kwargs)
        state = _new_state(channel_of(backend), defaults, stream)
        if stream:
            state._start(functools.partial(self._play, state, args, kwargs))
        else:
            self._play_here(state, args, kwargs)
        return state

    @overload
    def run_batch(
        self,
        batch: Sequence[Mapping[str, Any] | Sequence[Any]],
        *,
        generator_style: Literal[False] = False,
        backend: Backend | None = None,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        return_exceptions: bool = False,
        **sampling: Any,
    ) -> list[Any]: ...

    @overload
    def run_batch(
        self,
        batch: Sequence[Mapping[str, Any] | Sequence[Any]],
        *,
        generator_style: Literal[True],
        backend: Backend | None = None,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        return_exceptions: bool = False,
        **sampling: Any,
    ) -> Iterator[Any]: ...

    def run_batch(
        self,
        batch: Sequence[Mapping[str, Any] | Sequence[Any]],
        *,
        backend: Backend | None = None,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        return_exceptions: bool = False,
        **sampling: Any,
    ) -> list[Any] | Iterator[Any]:
        """Run once for each dict of arguments (or tuple of positional ones), at the same time; states in that order.

        The first error is raised once all have ended; with `return_exceptions` errors stand in their state's place.
        With `generator_style` states are given as soon as they and those before them have ended, and an error is
        raised in its place. `num_threads` bounds how many run at once.
        """
        defaults, unknown = self._split(sampling)
        if unknown:
            raise RequestError(f"run_batch has no parameter {next(iter(unknown))!r}", param=next(iter(unknown)))
        jobs = []
        for item in batch:
            args, kwargs = ((), dict(item)) if isinstance(item, Mapping) else (tuple(item), {})
            self._check(args, kwargs)
            jobs.append((args, kwargs))
        channel = channel_of(backend)

        def start(index: int) -> tuple[ProgramState, Callable[[], None]]:
            state = _new_state(channel, defaults, stream=False)
            return state, functools.partial(self._play_here, state, *jobs[index])

        results = run_all(start, len(jobs), num_threads, progress_bar, return_exceptions, in_order=generator_style)
        return results if generator_style else list(results)

    def _play(self, state: ProgramState, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        state.ret_value = self.function(state, *args, **{**self._bound, **kwargs})
        state._finish()

    def _play_here(self, state: ProgramState, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        try:
            self._play(state, args, kwargs)
        except BaseException as error:
            state._abandon(error)
            raise

    def _split(self, kwargs: Mapping[str, Any]) -> tuple[Gen, dict[str, Any]]:
        """Sampling arguments, and the function's own."""
        sampling = {n: v for n, v in kwargs.items() if n in RUN_NAMES and n not in self.parameters}
        return defaults_of(sampling), {name: value for name, value in kwargs.items() if name not in sampling}

    def _check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raises TypeError, as calling the function would, before anything starts."""
        self._signature.bind(None, *args, **{**self._bound, **kwargs})


@overload
def function(func: Callable[..., Any]) -> Program: ...


@overload
def function(func: None = None) -> Callable[[Callable[..., Any]], Program]: ...


def function(func: Callable[..., Any] | None = None) -> Program | Callable[[Callable[..., Any]], Program]:
    """Make a program of a function whose first argument is the state: `@function` or `@function()`."""
    return Program if func is None else Program(func)


def _new_state(channel: Channel, defaults: Gen, stream: bool) -> ProgramState:
    return ProgramState(Recorder.open(channel), defaults=defaults, stream=stream)
