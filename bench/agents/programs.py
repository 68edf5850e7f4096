"""Agents' programs, each twice: in the language, and as calls of a server over HTTP. Both ask for the same tokens.

Every generation has a fixed number of tokens. The programs read what they need to go on, as real agents do, and their
tools answer at once. A prompt over HTTP is token ids, so what was generated is never tokenised again on either side.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tokenizers import Tokenizer

import ramiform
from ramiform import Program, ProgramState, gen
from ramiform.bench.raw_http import RawClient

SAMPLES = 8  # of self-consistency
DEPTH = 2  # of the tree of thought
Dialect = Literal["ramiform", "vllm"]


@dataclass(frozen=True)
class Task:
    """Subject and parts of a program. `parts`: observations, hints, respects or documents, by program."""

    shared: str
    question: str
    parts: tuple[str, ...]


@dataclass(frozen=True)
class Generation:
    """Prompt tokens of one generation, by the server's count, and the ids of each of its samples."""

    prompt_tokens: int
    outputs: tuple[tuple[int, ...], ...]

    @property
    def num_outputs(self) -> int:
        return sum(map(len, self.outputs))


Result = list[tuple[ProgramState, str]]  # the generated variables
Made = list[Generation]  # the same over HTTP, in the order in which they end


# In the language


@ramiform.function
async def react(s: ProgramState, task: Task) -> Result:
    s += f"{task.shared}{task.question}"
    for step, page in enumerate(task.parts):
        s += f"\nThought {step}:" + gen(f"action_{step}", max_tokens=24)
        s += f"\nObservation {step}:{lookup(await s.get(f'action_{step}'), page)}"
    s += "\nAnswer:" + gen("answer", max_tokens=24)
    await s.get("answer")
    return [*((s, f"action_{step}") for step in range(len(task.parts))), (s, "answer")]


@ramiform.function
async def tree_of_thought(s: ProgramState, task: Task) -> Result:
    made: Result = []
    s += f"{task.shared}{task.question}"
    for depth in range(DEPTH):
        thoughts = s.fork(len(task.parts))
        thoughts += [f"\nThought {depth}:{hint}" + gen("thought", max_tokens=24) for hint in task.parts]
        ratings = [thought.fork(1)[0] for thought in thoughts]
        for rating in ratings:
            rating += "\nRating:" + gen("rating", max_tokens=2)
        made += [(thought, "thought") for thought in thoughts]
        made += [(rating, "rating") for rating in ratings]
        s = thoughts[best([await rating.get("rating") for rating in ratings])]
    s += "\nAnswer:" + gen("answer", max_tokens=24)
    await s.get("answer")
    return [*made, (s, "answer")]


@ramiform.function
async def judge(s: ProgramState, task: Task) -> Result:
    s += f"{task.shared}{task.question}"
    experts = s.fork(len(task.parts))
    experts += [f"\nRespect:{respect}\nOpinion:" + gen("opinion", max_tokens=24) for respect in task.parts]
    experts.join("concate_and_append")
    s += "\nVerdict:" + gen("verdict", max_tokens=16)
    await s.get("verdict")
    return [*((expert, "opinion") for expert in experts), (s, "verdict")]


@ramiform.function
async def self_consistency(s: ProgramState, task: Task) -> Result:
    s += f"{task.shared}{task.question}\nAnswer:" + gen("answers", n=SAMPLES, max_tokens=24, temperature=1.0)
    s["answer"] = most_common(await s.get("answers"))
    return [(s, "answers")]


@ramiform.function
async def map_reduce(s: ProgramState, task: Task) -> Result:
    s += f"{task.shared}{task.question}"
    readers = s.fork(len(task.parts))
    readers += [f"\nDocument:{text}\nSummary:" + gen("summary", max_tokens=16) for text in task.parts]
    summaries = [await reader.get("summary") for reader in readers]
    s += "".join(f"\nSummary:{summary}" for summary in summaries) + "\nAnswer:" + gen("answer", max_tokens=24)
    await s.get("answer")
    return [*((reader, "summary") for reader in readers), (s, "answer")]


def lookup(action: str, page: str) -> str:
    """Stub of a tool: return `page` whatever the action is."""
    return page if action is not None else ""


def best(ratings: Sequence[str]) -> int:
    """Return the index of the greatest rating, the first of equal ones."""
    return max(range(len(ratings)), key=lambda index: (ratings[index], -index))


def most_common(answers: Sequence[str]) -> str:
    return Counter(answers).most_common(1)[0][0]


def run_in_language(program: Program, tasks: Sequence[Task], backend: Any) -> Callable[[], list[list[Generation]]]:
    """Run the program for all tasks at once; return a function that collects what each generated."""
    states = program.run_batch([{"task": task} for task in tasks], backend=backend, temperature=0.0, ignore_eos=True)
    return lambda: [[_generation(*variable) for variable in state.ret_value] for state in states]


def _generation(state: ProgramState, name: str) -> Generation:
    meta = state.get_meta_info(name)
    metas = meta if isinstance(meta, list) else [meta]
    return Generation(metas[0]["prompt_tokens"], tuple(tuple(each["output_ids"]) for each in metas))


# Over HTTP


@dataclass(eq=False)
class HttpModel:
    """A server, by connections that are kept. Prompts are token ids, answers are not streamed.

    `sequences` collects the tokens that were asked for and generated: each prompt with each of its outputs.
    """

    url: str
    name: str
    dialect: Dialect
    tokenizer: Tokenizer
    sequences: list[list[int]] = field(default_factory=list)
    _idle: list[RawClient] = field(default_factory=list)

    async def complete(
        self, ids: list[int], max_tokens: int, n: int, temperature: float
    ) -> tuple[Generation, list[str]]:
        """Return the samples, and their texts. Raises RuntimeError if the server does not answer as asked."""
        request = self._request(ids, max_tokens, n, temperature)
        client = self._idle.pop() if self._idle else await RawClient(self.url).__aenter__()
        try:
            status, answer = await client.post(*request)
        except (asyncio.IncompleteReadError, ConnectionError):  # the server has closed it, idle as it was
            await client.__aexit__()
            client = await RawClient(self.url).__aenter__()
            status, answer = await client.post(*request)
        self._idle.append(client)
        if status != 200:
            raise RuntimeError(f"{self.url}: {status} {answer[:300]!r}")
        generation, texts = self._read(answer)
        self.sequences += [[*ids, *output] for output in generation.outputs]
        return generation, texts

    def _request(self, ids: list[int], max_tokens: int, n: int, temperature: float) -> tuple[str, dict[str, Any]]:
        sampling = {"n": n, "temperature": temperature, "ignore_eos": True}
        if self.dialect == "ramiform":
            return "/generate", {"input_ids": ids, "sampling_params": {**sampling, "max_new_tokens": max_tokens}}
        body = {"model": self.name, "prompt": ids, "max_tokens": max_tokens, "return_token_ids": True}
        return "/v1/completions", body | sampling

    def _read(self, data: bytes) -> tuple[Generation, list[str]]:
        answer = json.loads(data)
        if self.dialect == "ramiform":
            samples = answer if isinstance(answer, list) else [answer]
            outputs = tuple(tuple(sample["output_ids"]) for sample in samples)
            prompt_tokens, counted = (
                samples[0]["meta_info"]["prompt_tokens"],
                sum(sample["meta_info"]["completion_tokens"] for sample in samples),
            )
        else:
            samples = answer["choices"]
            outputs = tuple(tuple(sample["token_ids"]) for sample in samples)
            prompt_tokens, counted = answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]
        generation = Generation(prompt_tokens, outputs)
        if generation.num_outputs != counted:
            raise RuntimeError(f"{self.url} counts {counted} tokens of output and returns {generation.num_outputs}")
        return generation, [sample["text"] for sample in samples]

    async def close(self) -> None:
        for client in self._idle:
            await client.__aexit__()


class Conversation:
    """A client's own copy of a state: ids so far, and text that the next call tokenises."""

    def __init__(self, model: HttpModel, ids: Sequence[int] = (), text: str = "") -> None:
        self._model = model
        self.ids = list(ids)
        self._text = text

    def say(self, text: str) -> None:
        self._text += text

    def fork(self, size: int) -> list[Conversation]:
        self._tokenize()
        return [Conversation(self._model, self.ids) for _ in range(size)]

    async def gen(self, made: Made, max_tokens: int, *, n: int = 1, temperature: float = 0.0) -> list[str]:
        """Return the samples' texts; the first one is appended."""
        self._tokenize()
        generation, texts = await self._model.complete(self.ids, max_tokens, n, temperature)
        if len(self.ids) != generation.prompt_tokens or generation.num_outputs != n * max_tokens:
            raise RuntimeError(f"not {len(self.ids)} and {n} x {max_tokens} tokens: {generation}")
        made.append(generation)
        self.ids += generation.outputs[0]
        return texts

    def _tokenize(self) -> None:
        is_start = not self.ids  # where the model's begin token stands
        self.ids += self._model.tokenizer.encode(self._text, add_special_tokens=is_start).ids
        self._text = ""


async def react_http(s: Conversation, task: Task, made: Made) -> None:
    s.say(f"{task.shared}{task.question}")
    for step, page in enumerate(task.parts):
        s.say(f"\nThought {step}:")
        [action] = await s.gen(made, 24)
        s.say(f"\nObservation {step}:{lookup(action, page)}")
    s.say("\nAnswer:")
    await s.gen(made, 24)


async def tree_of_thought_http(s: Conversation, task: Task, made: Made) -> None:
    async def think(thought: Conversation, depth: int, hint: str) -> str:
        thought.say(f"\nThought {depth}:{hint}")
        await thought.gen(made, 24)
        [rating] = thought.fork(1)
        rating.say("\nRating:")
        return (await rating.gen(made, 2))[0]

    s.say(f"{task.shared}{task.question}")
    for depth in range(DEPTH):
        thoughts = s.fork(len(task.parts))
        branches = zip(thoughts, task.parts, strict=True)
        s = thoughts[best(await asyncio.gather(*(think(thought, depth, hint) for thought, hint in branches)))]
    s.say("\nAnswer:")
    await s.gen(made, 24)


async def judge_http(s: Conversation, task: Task, made: Made) -> None:
    s.say(f"{task.shared}{task.question}")
    experts = s.fork(len(task.parts))
    start = len(s.ids)
    for expert, respect in zip(experts, task.parts, strict=True):
        expert.say(f"\nRespect:{respect}\nOpinion:")
    await asyncio.gather(*(expert.gen(made, 24) for expert in experts))
    for expert in experts:
        s.ids += expert.ids[start:]
    s.say("\nVerdict:")
    await s.gen(made, 16)


async def self_consistency_http(s: Conversation, task: Task, made: Made) -> None:
    s.say(f"{task.shared}{task.question}\nAnswer:")
    most_common(await s.gen(made, 24, n=SAMPLES, temperature=1.0))


async def map_reduce_http(s: Conversation, task: Task, made: Made) -> None:
    s.say(f"{task.shared}{task.question}")
    readers = s.fork(len(task.parts))
    for reader, text in zip(readers, task.parts, strict=True):
        reader.say(f"\nDocument:{text}\nSummary:")
    summaries = await asyncio.gather(*(reader.gen(made, 16) for reader in readers))
    s.say("".join(f"\nSummary:{summary}" for [summary] in summaries) + "\nAnswer:")
    await s.gen(made, 24)


OverHttp = Callable[[Conversation, Task, Made], Coroutine[Any, Any, None]]


def run_over_http(program: OverHttp, tasks: Sequence[Task], model: HttpModel) -> list[Made]:
    """Run the program for all tasks at once, in a new event loop; return what each generated."""

    async def run_all() -> list[Made]:
        made: list[Made] = [[] for _ in tasks]
        try:
            async with asyncio.TaskGroup() as group:
                for task, mine in zip(tasks, made, strict=True):
                    group.create_task(program(Conversation(model), task, mine))
        finally:
            await model.close()
        return made

    return asyncio.run(run_all())


# All


@dataclass(frozen=True)
class Agent:
    """A program both ways; its question and each of its parts have so many words.

    `num_serial` counts the output tokens of its longest chain, where each needs the one before.
    """

    name: str
    language: Program
    http: OverHttp
    num_serial: int
    question_words: int
    num_parts: int
    part_words: int
    greedy: bool = True


AGENTS = [
    Agent("ReAct", react, react_http, 7 * 24, 32, 6, 32),
    Agent("tree of thought", tree_of_thought, tree_of_thought_http, DEPTH * 26 + 24, 48, 4, 8),
    Agent("judge", judge, judge_http, 24 + 16, 320, 4, 24),
    Agent("self-consistency", self_consistency, self_consistency_http, 24, 48, 0, 0, greedy=False),
    Agent("map-reduce", map_reduce, map_reduce_http, 16 + 24, 24, 6, 80),
]


def tasks_of(agent: Agent, words: Sequence[str], num_shared: int, size: int, seed: str) -> list[Task]:
    """Draw tasks of one token a word: new ones for each seed, all with the same first `num_shared` words."""
    draw = random.Random(f"{agent.name} {num_shared} {size} {seed}")

    def text(length: int) -> str:
        return "".join(draw.choices(words, k=length))

    shared = text(num_shared)
    return [
        Task(shared, text(agent.question_words), tuple(text(agent.part_words) for _ in range(agent.num_parts)))
        for _ in range(size)
    ]


def words_of(tokenizer: Tokenizer) -> list[str]:
    """Return the words that are one token of the shipped vocabulary, each with the space before it."""
    texts = [tokenizer.decode([token]) for token in range(2048)]
    words = [text for text in texts if text.startswith(" ") and text[1:].isalpha() and text.isascii()]
    return [word for word in words if len(tokenizer.encode(word, add_special_tokens=False).ids) == 1]
