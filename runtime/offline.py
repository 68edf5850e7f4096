"""`Engine`: batches, chats and streams from a script, with the results of the HTTP routes and no HTTP.

The script's process is a frontend of the core: it tokenises and detokenises in an event loop in a thread of its own.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Literal, TypeVar, get_args

import zmq.asyncio
from pydantic import BaseModel

from .frontend.api.bodies import GenerateBody, SamplingBody
from .frontend.api.chat import ChatAnswers
from .frontend.api.chat_body import ChatBody
from .frontend.api.embeddings import EmbeddingAnswers, EmbeddingBody
from .frontend.api.generate import GenerateAnswers
from .frontend.api.score import ScoreAnswers, ScoreBody
from .frontend.api.validation import validated
from .frontend.chat.service import ChatService
from .frontend.core.client import CoreClient, announced
from .frontend.text.generation import Generator
from .frontend.text.merge import gather_or_cancel
from .frontend.text.pictures import pictures_of
from .frontend.text.relevance import RelevanceModel
from .models.checkpoint import find_checkpoint
from .models.stored.shared_tensors import shared_tensors
from .processes.launch import Runtime
from .protocol.errors import ErrorInfo, RamiformError, RequestError, RuntimeFailed
from .protocol.sampling import MemoryTag, RunningRequests
from .tokenizer import load_tokenizer

MAX_IN_FLIGHT = 1024  # prompts of one call in the core; the others wait here
WATCH_SECONDS = 0.2  # between looks at the runtime's process

Result = dict[str, Any]
Outputs = Result | list[Result]  # of one prompt: a list if n > 1
Prompt = str | Sequence[int]
Prompts = Prompt | Iterable[Prompt]
Conversation = Sequence[dict[str, Any]]
B = TypeVar("B", bound=BaseModel)
T = TypeVar("T")
_END: Any = object()  # of a stream
_FORKED = "an Engine belongs to the process that made it; make another one after a fork"
_RUNTIME_ENDED = ErrorInfo.of(RuntimeFailed("the runtime has ended"))


@dataclass(frozen=True)
class _Calls(Generic[B]):
    """A call of an Engine: the prompt or the prompts, and the route's answers to their bodies.

    `make` builds the body of a prompt, of its number, and of whether its answer is a stream.
    """

    given: Any
    make: Callable[[int, Any, bool], B]
    answer: Callable[[B], Coroutine[Any, Any, Any]]
    chunks: Callable[[B], AsyncGenerator[Any]] | None = None

    def stream(self) -> AsyncGenerator[Any]:
        """Return the stream of the only prompt. Raises RequestError for several."""
        assert self.chunks is not None
        if not _is_one_prompt(self.given):
            raise RequestError("a stream is of one prompt", param="stream")
        return self.chunks(self.make(0, self.given, True))


class Engine:
    """A runtime of one's own for offline batches: the counterpart of vLLM's `LLM` and SGLang's `Engine`.

    `settings` are those of `Runtime`. Ends with `shutdown`, the `with` block, or the program. `runtime` runs programs
    of the language on the same model. Raises RamiformError when the model cannot be loaded, RequestError for an unknown
    setting.
    """

    def __init__(self, model: str | None = None, *, model_path: str | None = None, **settings: Any) -> None:
        self.runtime = Runtime(model, model_path=model_path, **settings)
        self.info = self.runtime.info
        try:
            self.tokenizer = load_tokenizer(find_checkpoint(self.info.path))
            self._thread = _LoopThread()
        except BaseException:
            self.runtime.shutdown()
            raise
        self._finalizer = weakref.finalize(self, _end, self._thread, self.runtime)
        try:
            self._native, self._chat, self._embeddings, self._scores = self._thread.run(self._connect())
        except BaseException:
            self._finalizer()
            raise

    async def _connect(self) -> tuple[GenerateAnswers, ChatAnswers, EmbeddingAnswers, ScoreAnswers]:
        serve = self.runtime.serve_config
        context = zmq.asyncio.Context()
        core = CoreClient(context, serve.core_address)
        core.start()
        self._core = core
        self._thread.closing = _closing(core, context)
        self._thread.watch(self.runtime, core)
        await core.ready()
        generator = Generator(core, self.tokenizer, pictures=pictures_of(self.runtime.config))
        service = ChatService(
            generator,
            tool_parser=serve.tool_call_parser,
            tool_calls=serve.tool_calls,
            reasoning_parser=serve.reasoning_parser,
            trusts_templates=serve.trust_request_chat_template,
        )
        return (
            GenerateAnswers(generator),
            ChatAnswers(service),
            EmbeddingAnswers(generator),
            ScoreAnswers(generator, RelevanceModel(generator, serve.reranker)),
        )

    def generate(
        self,
        prompt: Prompts | None = None,
        sampling_params: dict[str, Any] | Sequence[dict[str, Any]] | None = None,
        *,
        input_ids: Sequence[int] | Iterable[Sequence[int]] | None = None,
        stream: bool = False,
        progress: bool = False,
        return_exceptions: bool = False,
        **fields: Any,
    ) -> Any:
        """Continue one prompt or many: texts or token ids.

        `sampling_params` and `fields` are those of `/generate`; a list of sampling parameters has one per prompt, and
        `fields` hold for all prompts. A result is an answer of that route, a dict with "text", "output_ids" and
        "meta_info"; with `n` above 1 a list of them. Many prompts give a list of results in order. With `stream`, an
        iterator over the answers so far of one prompt. `progress` shows a bar on a terminal. `return_exceptions` puts
        the error of a prompt in its place.

        Raises RequestError naming the prompt and the parameter, RuntimeFailed when the runtime has ended.
        """
        calls = self._generation(prompt, sampling_params, input_ids, fields)
        return self._answer(calls, stream, progress, return_exceptions)

    async def agenerate(
        self,
        prompt: Prompts | None = None,
        sampling_params: dict[str, Any] | Sequence[dict[str, Any]] | None = None,
        *,
        input_ids: Sequence[int] | Iterable[Sequence[int]] | None = None,
        stream: bool = False,
        progress: bool = False,
        return_exceptions: bool = False,
        **fields: Any,
    ) -> Any:
        """Do as `generate`, without blocking the event loop; `stream` returns an asynchronous iterator."""
        calls = self._generation(prompt, sampling_params, input_ids, fields)
        return await self._aanswer(calls, stream, progress, return_exceptions)

    def chat(
        self,
        messages: Conversation | Iterable[Conversation],
        *,
        stream: bool = False,
        progress: bool = False,
        return_exceptions: bool = False,
        **fields: Any,
    ) -> Any:
        """Generate the next message of one conversation, or of many.

        `fields` are those of `/v1/chat/completions`, and hold for all conversations. A result is an answer of that
        route, a dict with "choices" and "usage"; with `stream` an iterator over its chunks. The other parameters, and
        the errors, are those of `generate`.
        """
        return self._answer(self._conversation(messages, fields), stream, progress, return_exceptions)

    async def achat(
        self,
        messages: Conversation | Iterable[Conversation],
        *,
        stream: bool = False,
        progress: bool = False,
        return_exceptions: bool = False,
        **fields: Any,
    ) -> Any:
        """Do as `chat`, without blocking the event loop; `stream` returns an asynchronous iterator."""
        return await self._aanswer(self._conversation(messages, fields), stream, progress, return_exceptions)

    def embed(
        self,
        prompt: Prompts,
        *,
        progress: bool = False,
        return_exceptions: bool = False,
        **fields: Any,
    ) -> Any:
        """Return the vector of one prompt or of many: texts or token ids.

        `fields` are those of `/v1/embeddings`, and hold for all prompts. A result is an answer of that route for one
        input: its vector is `result["data"][0]["embedding"]`. The other parameters, and the errors, are those of
        `generate`.
        """
        return self._answer(self._embedding(prompt, fields), False, progress, return_exceptions)

    async def aembed(
        self,
        prompt: Prompts,
        *,
        progress: bool = False,
        return_exceptions: bool = False,
        **fields: Any,
    ) -> Any:
        """Do as `embed`, without blocking the event loop."""
        return await self._aanswer(self._embedding(prompt, fields), False, progress, return_exceptions)

    def score(self, prompt: Any = None, continuations: Any = None, **fields: Any) -> dict[str, Any]:
        """Return the log-probabilities of continuations of a prompt, or of label tokens after items.

        `fields` are those of `/v1/score`, whose answer is the result: `score(prompt, continuations)`, or
        `score(query=..., items=..., label_token_ids=...)`. Raises RequestError, RuntimeFailed.
        """
        return self._thread.run(self._scores.answer(_score_body(prompt, continuations, fields)))

    async def ascore(self, prompt: Any = None, continuations: Any = None, **fields: Any) -> dict[str, Any]:
        """Do as `score`, without blocking the event loop."""
        return await self._arun(self._scores.answer(_score_body(prompt, continuations, fields)))

    def update_weights(
        self,
        weights: str | os.PathLike[str] | Mapping[str, Any],
        *,
        mode: RunningRequests = "finish",
        version: str | None = None,
    ) -> str:
        """Serve other weights of the same model, all or some, and return the name of their version.

        `weights` are a folder of safetensors files, one such file, or tensors by their stored names, which travel
        through shared memory. `mode` says what becomes of running requests: "finish" first, "abort", "retract"
        (computed again from their tokens), or "keep" (they go on with the keys and values that they have). Raises
        RequestError, with the old weights serving, when names, shapes, types or values are not the model's.
        """
        if not isinstance(weights, Mapping):
            return self._thread.run(self._core.update_weights(os.fspath(weights), mode, version))
        with shared_tensors(weights) as path:
            return self._thread.run(self._core.update_weights(str(path), mode, version))

    def init_weights_update_group(
        self,
        master_address: str,
        master_port: int,
        rank_offset: int,
        world_size: int,
        group_name: str = "weight_update_group",
        backend: Literal["gloo"] = "gloo",
    ) -> None:
        """Join a trainer's group: the trainer is rank 0 of `world_size`, and this runtime's ranks are those from
        `rank_offset` on. Raises RequestError when the trainer does not come within two minutes."""
        if backend != "gloo":
            raise RequestError(f"weights change on a CPU, where backend is gloo, got {backend!r}", param="backend")
        self._thread.run(
            self._core.init_weights_group(group_name, master_address, master_port, rank_offset, world_size)
        )

    def update_weights_from_distributed(
        self,
        names: Sequence[str],
        dtypes: Sequence[Any],
        shapes: Sequence[Sequence[int]],
        group_name: str = "weight_update_group",
        *,
        mode: RunningRequests = "finish",
        version: str | None = None,
    ) -> str:
        """Serve tensors that the trainer broadcasts over a group in this order, and return the name of their version.

        Raises RequestError as `update_weights`, and when a tensor does not come within two minutes; the group has then
        ended.
        """
        tensors = announced(names, dtypes, shapes)
        return self._thread.run(self._core.receive_weights(group_name, tensors, mode, version))

    def destroy_weights_update_group(self, group_name: str = "weight_update_group") -> None:
        """Leave a trainer's group."""
        self._thread.run(self._core.leave_weights_group(group_name))

    def release_memory_occupation(
        self, tags: Sequence[MemoryTag] | None = None, *, mode: RunningRequests = "finish"
    ) -> None:
        """Give the memory of `tags` ("weights", "kv_cache"; None: both) back to the system.

        Requests fail with BusyError until `resume_memory_occupation` has taken all of it again. `mode` is as for
        `update_weights`; "keep" is as "retract". Raises RequestError, with nothing changed, when it cannot be released.
        """
        self._thread.run(self._core.release_memory(_tags(tags), mode))

    def resume_memory_occupation(self, tags: Sequence[MemoryTag] | None = None) -> None:
        """Take the memory of `tags` again (None: both). Weights are loaded from where they came, unless an update has
        brought others. Raises RequestError, still asleep, when they have changed there."""
        self._thread.run(self._core.resume_memory(_tags(tags)))

    def sleep(self, level: Literal[1, 2] = 1, *, mode: Literal["abort", "wait", "keep"] = "abort") -> None:
        """Do as `release_memory_occupation` of both tags, with vLLM's names of the modes. Both levels do the same."""
        modes: dict[str, RunningRequests] = {"abort": "abort", "wait": "finish", "keep": "retract"}
        if level not in (1, 2) or mode not in modes:
            raise RequestError(f"sleep takes level 1 or 2 and mode {', '.join(modes)}", param="level")
        self.release_memory_occupation(mode=modes[mode])

    def wake_up(self, tags: Sequence[MemoryTag] | None = None) -> None:
        """Do as `resume_memory_occupation`, vLLM's name of which this is."""
        self.resume_memory_occupation(tags)

    def shutdown(self) -> None:
        """End the runtime. Calls that still run fail with RuntimeFailed. Calling it again does nothing."""
        self._finalizer()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    # Bodies of the routes

    def _generation(
        self, prompt: Any, sampling_params: Any, input_ids: Any, fields: dict[str, Any]
    ) -> _Calls[GenerateBody]:
        if (prompt is None) == (input_ids is None):
            raise RequestError("give either prompt or input_ids", param="prompt")
        given = input_ids if prompt is None else prompt
        for name in ("text", "rid"):
            if name in fields:
                raise RequestError(f"{name} is a parameter of the route, and not of an Engine", param=name)
        many = None
        if isinstance(sampling_params, (list, tuple)):
            if _is_one_prompt(given) or not hasattr(given, "__len__") or len(given) != len(sampling_params):
                raise RequestError("a list of sampling_params has one for each prompt", param="sampling_params")
            many = sampling_params
        shared = None if many is not None else validated(SamplingBody, sampling_params or {})

        def make(number: int, one: Any, stream: bool) -> GenerateBody:
            sampling = shared if many is None else validated(SamplingBody, many[number])
            name = "text" if isinstance(one, str) else "input_ids"
            value = one if isinstance(one, str) else list(one)
            values = {name: value, "sampling_params": sampling, **fields, "stream": stream}
            return validated(GenerateBody, values)

        return _Calls(given, make, self._generate_one, self._native.stream)

    def _conversation(self, messages: Any, fields: dict[str, Any]) -> _Calls[ChatBody]:
        if hasattr(messages, "__len__") and len(messages) == 0:
            raise RequestError("messages must not be empty", param="messages")

        def make(_: int, one: Any, stream: bool) -> ChatBody:
            return validated(ChatBody, {"messages": list(one), **fields, "stream": stream})

        return _Calls(messages, make, self._chat.answer, self._chat.chunks)

    def _embedding(self, prompt: Any, fields: dict[str, Any]) -> _Calls[EmbeddingBody]:
        def make(_: int, one: Any, stream: bool) -> EmbeddingBody:
            return validated(EmbeddingBody, {"input": one if isinstance(one, str) else list(one)} | fields)

        return _Calls(prompt, make, self._embeddings.answer)

    # Execution on the thread's event loop

    async def _generate_one(self, body: GenerateBody) -> Outputs:
        answers = await self._native.answers(body)
        return answers[0] if len(answers) == 1 else answers

    def _answer(self, calls: _Calls[B], stream: bool, progress: bool, return_exceptions: bool) -> Any:
        if stream:
            return self._iterate(calls.stream())
        return self._thread.run(self._all(calls, progress, return_exceptions))

    async def _aanswer(self, calls: _Calls[B], stream: bool, progress: bool, return_exceptions: bool) -> Any:
        if stream:
            return self._aiterate(calls.stream())
        return await self._arun(self._all(calls, progress, return_exceptions))

    async def _all(self, calls: _Calls[B], progress: bool, return_exceptions: bool) -> Any:
        """Answer one prompt, or many with at most MAX_IN_FLIGHT at once. Raises RequestError naming the prompt."""
        given = calls.given
        if _is_one_prompt(given):
            return await calls.answer(calls.make(0, given, False))
        results: dict[int, Any] = {}
        numbered = enumerate(given)

        async def work() -> None:
            for number, one in numbered:
                try:
                    results[number] = await calls.answer(calls.make(number, one, False))
                except RamiformError as error:
                    if not return_exceptions:
                        raise _with_number(error, number) from None
                    results[number] = error
                advance()

        with _progress_bar(len(given) if hasattr(given, "__len__") else None, progress) as advance:
            await gather_or_cancel(work() for _ in range(MAX_IN_FLIGHT))
        return [results[number] for number in range(len(results))]

    async def _arun(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(self._thread.submit(work))

    def _iterate(self, values: AsyncGenerator[T]) -> Iterator[T]:
        try:
            while (value := self._thread.run(_next(values))) is not _END:
                yield value
        finally:
            self._thread.run(_close(values))

    async def _aiterate(self, values: AsyncGenerator[T]) -> AsyncIterator[T]:
        try:
            while (value := await self._arun(_next(values))) is not _END:
                yield value
        finally:
            await self._arun(_close(values))


def _score_body(prompt: Any, continuations: Any, fields: dict[str, Any]) -> ScoreBody:
    given = {"prompt": prompt, "continuations": continuations}
    return validated(ScoreBody, {name: value for name, value in given.items() if value is not None} | fields)


def _tags(tags: Sequence[MemoryTag] | None) -> Sequence[MemoryTag]:
    known = get_args(MemoryTag)
    if tags is not None and (isinstance(tags, str) or not tags or not set(tags) <= set(known)):
        raise RequestError(f"tags are a list of {' and '.join(known)}, got {tags!r}", param="tags")
    return known if tags is None else tags


class _LoopThread:
    """An event loop in a daemon thread. `closing` runs before the loop ends."""

    def __init__(self) -> None:
        self.closing: Callable[[], Coroutine[Any, Any, None]] | None = None
        self.owner = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._watcher: asyncio.Task[None] | None = None
        self._is_closed = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="ramiform-engine", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Any:
        """Begin `work` in the loop; return its concurrent future. Raises RuntimeFailed after `close` or a fork."""
        is_ours = os.getpid() == self.owner
        if self._is_closed or not is_ours:
            work.close()
            raise _RUNTIME_ENDED.to_exception() if is_ours else RuntimeFailed(_FORKED)
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`; an interrupt cancels it."""
        future = self.submit(work)
        try:
            result: T = future.result()
        except BaseException:
            future.cancel()
            raise
        return result

    def watch(self, runtime: Runtime, core: CoreClient) -> None:
        """Fail all requests when the runtime's process ends. Call it in the loop."""
        self._watcher = asyncio.ensure_future(_watch(runtime, core))

    def close(self) -> None:
        if self._is_closed:
            return
        if self._watcher is not None:
            self._loop.call_soon_threadsafe(self._watcher.cancel)
        if self.closing is not None:
            self.run(self.closing())
        self._is_closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _end(thread: _LoopThread, runtime: Runtime) -> None:
    if os.getpid() == thread.owner:  # a fork's copy owns neither the thread nor the processes
        thread.close()
        runtime.shutdown()


def _closing(core: CoreClient, context: zmq.asyncio.Context) -> Callable[[], Coroutine[Any, Any, None]]:
    async def close() -> None:
        core.fail(ErrorInfo.of(RuntimeFailed("the engine was shut down")))
        others = asyncio.all_tasks() - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=5.0)  # they fail at once
        await core.close()
        context.term()

    return close


async def _watch(runtime: Runtime, core: CoreClient) -> None:
    while runtime.is_alive():
        await asyncio.sleep(WATCH_SECONDS)
    core.fail(_RUNTIME_ENDED)


async def _next(values: AsyncGenerator[T]) -> T:
    return await anext(values, _END)


async def _close(values: AsyncGenerator[Any]) -> None:
    await values.aclose()


def _is_one_prompt(given: Any) -> bool:
    """Return True for a text, a list of token ids, or one conversation; False for several."""
    if isinstance(given, str):
        return True
    return isinstance(given, Sequence) and bool(given) and isinstance(given[0], (int, dict))


def _with_number(error: RamiformError, number: int) -> RamiformError:
    if not isinstance(error, RequestError):
        return error
    return RequestError(f"prompt {number}: {error}", param=error.param, code=error.code)


@contextmanager
def _progress_bar(total: int | None, wanted: bool) -> Iterator[Callable[[], None]]:
    """Show a bar on the terminal of the standard error; yield what advances it by one."""
    if not wanted or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)
