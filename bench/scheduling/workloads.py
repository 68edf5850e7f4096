"""Six workloads of agents, drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import count

from ramiform.bench.scheduling.programs import End, Fork, Gen, Join, Say, Step, Steps, Think, Together, Workload


def make_workloads(
    vocabulary: Sequence[int],
    *,
    size: float = 1.0,
    length: float = 1.0,
    alive: float = 0.5,
    pause: float = 1.0,
    seed: int = 0,
) -> list[Workload]:
    """Return all six workloads. `size` scales how many programs there are, `length` how many tokens are said and
    generated, `pause` how long tools and users take; `alive` is how many of a workload's agents are alive at once."""
    draw = _Draw(vocabulary, length, pause, seed)

    def num(programs: int) -> int:
        return max(2, round(programs * size))

    def workload(name: str, programs: list[Steps], alive: float) -> Workload:
        return Workload(name, programs, max(1, round(len(programs) * alive)))

    return [
        workload("shared system prompt", list(shared_prompt(draw, num(64))), 1.0),
        workload("few-shot", list(few_shot(draw, num(64))), 0.25),
        workload("multi-turn chat", list(chats(draw, num(32))), alive),
        workload("tree of thought", list(trees_of_thought(draw, num(16))), alive),
        workload("ReAct", list(react_agents(draw, num(32))), alive),
        workload("judge", list(judges(draw, num(24))), alive),
    ]


class _Draw:
    def __init__(self, vocabulary: Sequence[int], length: float, pause: float, seed: int) -> None:
        self._vocabulary = vocabulary
        self._length = length
        self._pause = pause
        self.random = random.Random(seed)

    def num(self, tokens: int) -> int:
        return max(1, round(tokens * self._length))

    def text(self, tokens: int) -> tuple[int, ...]:
        return tuple(self.random.choices(self._vocabulary, k=self.num(tokens)))

    def pause(self, mean: float) -> Think:
        return Think(self._pause * self.random.expovariate(1 / mean))


def shared_prompt(draw: _Draw, num_programs: int) -> Iterator[Steps]:
    """Return one question each, all after the same 1,024 tokens."""
    shared = draw.text(1024)
    for _ in range(num_programs):
        yield [Say(0, shared + draw.text(32)), Gen(0, draw.num(16)), End((0,))]


def few_shot(draw: _Draw, num_programs: int) -> Iterator[Steps]:
    """Return questions of several tasks in random order, each after an instruction and its task's examples."""
    instruction = draw.text(64)
    tasks = [draw.text(384) for _ in range(max(2, num_programs // 8))]
    for _ in range(num_programs):
        examples = draw.random.choice(tasks)
        yield [Say(0, instruction + examples + draw.text(24)), Gen(0, draw.num(8)), End((0,))]


def chats(draw: _Draw, num_programs: int) -> Iterator[Steps]:
    """Return conversations of six turns with users who read and type."""
    system = draw.text(128)
    for _ in range(num_programs):
        steps: list[Step] = [Say(0, system)]
        for _ in range(6):
            steps += [Say(0, draw.text(draw.random.randint(16, 64))), Gen(0, draw.num(48)), draw.pause(1.0)]
        yield [*steps, End((0,))]


def trees_of_thought(draw: _Draw, num_programs: int) -> Iterator[Steps]:
    """Three times: four thoughts branch off, each is rated in a fork of its own, the program's tools look at the best
    ones, and one of them goes on."""
    task = draw.text(192)
    for _ in range(num_programs):
        fresh = count(1)
        steps: list[Step] = [Say(0, task + draw.text(48))]
        best = 0
        for _ in range(3):
            thoughts = tuple(next(fresh) for _ in range(4))
            ratings = {thought: next(fresh) for thought in thoughts}
            steps += [Fork(best, thoughts)]
            branches = [
                [
                    Say(thought, draw.text(8)),
                    Gen(thought, draw.num(24)),
                    Fork(thought, (rating,)),
                    Say(rating, draw.text(12)),
                    Gen(rating, draw.num(2)),
                    End((rating,)),
                ]
                for thought, rating in ratings.items()
            ]
            kept = draw.random.choice(thoughts)
            dropped = tuple(thought for thought in thoughts if thought != kept)
            steps += [Together(tuple(branches)), draw.pause(0.5), End((*dropped, best))]
            best = kept
        yield [*steps, Say(best, draw.text(8)), Gen(best, draw.num(24)), End((best,))]


def react_agents(draw: _Draw, num_programs: int) -> Iterator[Steps]:
    """Return six times: a thought with an action, a tool that takes its time, what it observed."""
    tools = draw.text(384)
    for _ in range(num_programs):
        steps: list[Step] = [Say(0, tools + draw.text(32))]
        for _ in range(6):
            steps += [Gen(0, draw.num(24)), draw.pause(0.5), Say(0, draw.text(draw.random.randint(16, 64)))]
        yield [*steps, Gen(0, draw.num(24)), End((0,))]


def judges(draw: _Draw, num_programs: int) -> Iterator[Steps]:
    """Branch, solve, merge: an essay is judged in four respects at once, then as a whole."""
    rubric = draw.text(128)
    for _ in range(num_programs):
        respects = (1, 2, 3, 4)
        branches = tuple([Say(state, draw.text(24)), Gen(state, draw.num(24))] for state in respects)
        yield [
            Say(0, rubric + draw.text(320)),
            Fork(0, respects),
            Together(branches),
            Join(0, respects),
            End(respects),
            Say(0, draw.text(8)),
            Gen(0, draw.num(16)),
            End((0,)),
        ]
