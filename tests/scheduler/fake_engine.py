"""A fake engine whose KV is the token history written to each slot.

Its model is a pure function of the whole history that it reads from the pages. So a wrong page table, a missing copy or
a page freed too early changes the output, or fails an assertion at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from ramiform.radix.window_pages import WindowSizes
from ramiform.runtime.scheduler.drafts.tree import DraftTree
from ramiform.runtime.scheduler.plan import (
    PENDING,
    ForwardPlan,
    ForwardResult,
    Row,
    RowResult,
    SamplingPlan,
    StateAdvance,
    StateCopy,
)

from .fake_model import VOCABULARY, choose, hidden, logprob, number


class FakeEngine:
    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.kv: dict[int, tuple[int, ...]] = {}  # slot -> the sequence up to and with its token
        self.states: dict[int, tuple[int, ...]] | None = None  # slot -> the sequence; None: no recurrent layers
        self.drafts: dict[int, list[int]] = {}  # of the last plan, by slot
        self.windows: WindowSizes | None = None
        self.window_kv: dict[int, tuple[int, ...]] = {}  # likewise, of layers with a window
        self.num_computed = 0
        self.now = 0.0  # seconds, made up
        self.pace = 1e-3  # seconds of a token
        self.interrupts = False  # plans of several decode steps end early by chance
        self.num_in_flight = 0
        self.open = False  # the plan launched last has not been told all that it samples
        self.sampled: list[tuple[str, int | None]] = []  # by row of the plan that sampled last

    def slots(self, row: Row, num_decodes: int) -> list[int]:
        end = row.first_position + len(row.tokens) + num_decodes - 1
        assert len(row.pages) == -(-end // self.page_size)
        return [row.pages[p // self.page_size] * self.page_size + p % self.page_size for p in range(end)]

    def tokens(self, row: Row) -> list[int]:
        if row.follows is None:
            assert PENDING not in row.tokens
            return row.tokens[: row.num_committed]
        assert row.tokens == [PENDING]
        assert row.sample is row.mask is row.score is row.pool_from is row.parents is row.draft is None
        followed, token = self.sampled[row.follows]
        assert followed == row.rid, "another request's token"
        assert token is not None, "nothing was sampled there"
        return [token]

    def launch(self, plan: ForwardPlan) -> FakeLaunched:
        """Launch a plan as on a stream: copies and keys are in place before the next plan's,
        whenever that is launched."""
        assert self.num_in_flight < 2, "one plan is in flight at most while the next one is launched"
        assert not (self.num_in_flight and self.open), "the plan before was never told what to sample"
        for copy in plan.copies:
            for offset in range(copy.num_tokens):
                self.kv[copy.target * self.page_size + offset] = self.kv[copy.source * self.page_size + offset]
        self.change_states(plan)
        for copy in plan.window_copies:
            for offset in range(copy.num_tokens):
                source = self.window_kv[copy.source * self.page_size + offset]
                self.window_kv[copy.target * self.page_size + offset] = source
        histories, written = [], []
        for row in plan.rows:
            slots = self.slots(row, plan.num_decodes)
            past, new = slots[: row.first_position], slots[row.first_position :]
            history = self.kv[past[-1]] if past else ()
            assert len(history) == row.first_position
            assert all(self.kv[slot] == history[: p + 1] for p, slot in enumerate(past)), "a page holds something else"
            histories.append((*history, *self.tokens(row)))
            self.check_window(row, history)
            self.follow_state(row, histories[-1])
            written.append(new)
        assert len({row.rid for row in plan.rows}) == len(plan.rows)
        num_slots = plan.num_tokens + len(plan.rows) * (plan.num_decodes - 1)
        assert len({slot for new in written for slot in new}) == num_slots, "two rows write to one slot"
        for row, history, new in zip(plan.rows, histories, written, strict=True):
            for offset, slot in enumerate(new[: row.num_committed]):
                self.kv[slot] = history[: row.first_position + offset + 1]
            for slot in new[row.num_committed :]:
                self.kv[slot] = (-1,)  # a guess's: nobody may read it
            self.write_window(row, history)
        self.num_computed += num_slots
        self.num_in_flight += 1
        self.open = plan.is_open
        launched = FakeLaunched(self, plan, histories, written)
        if not self.open:
            launched.decide(plan.rows)
        return launched

    def window_slot(self, row: Row, position: int) -> int:
        return row.window_pages[position // self.page_size] * self.page_size + position % self.page_size

    def check_window(self, row: Row, history: tuple[int, ...]) -> None:
        """Check that the window pages hold what the row's first token looks at."""
        if self.windows is None:
            assert not row.window_pages
            return
        assert len(row.window_pages) == len(row.pages)
        first = max(0, row.first_position - self.windows.window + 1)
        for position in (*range(min(self.windows.num_sinks, first)), *range(first, row.first_position)):
            slot = self.window_slot(row, position)
            assert self.window_kv[slot] == history[: position + 1], "a window page holds something else"

    def write_window(self, row: Row, history: tuple[int, ...]) -> None:
        if self.windows is None:
            return
        for offset in range(len(row.tokens)):
            position = row.first_position + offset
            known = offset < row.num_committed
            assert row.window_pages[position // self.page_size] < self.windows.num_pages
            self.window_kv[self.window_slot(row, position)] = history[: position + 1] if known else (-1,)

    def change_states(self, plan: ForwardPlan) -> None:
        if self.states is None:
            assert not plan.states
            return
        for change in plan.states:
            match change:
                case StateCopy(source=source, target=target):
                    self.states[target] = self.states[source]
                case StateAdvance(slot=slot, num_drafts=num_drafts):
                    assert 0 < num_drafts <= len(self.drafts[slot])
                    self.states[slot] = (*self.states[slot], *self.drafts[slot][:num_drafts])
        self.drafts = {}
        slots = [slot for row in plan.rows if row.state for slot in (row.state.slot, *dict(row.state.saves).values())]
        assert len(slots) == len(set(slots)), "two rows write to one slot"

    def follow_state(self, row: Row, history: tuple[int, ...]) -> None:
        if self.states is None:
            assert row.state is None
            return
        assert row.state is not None
        assert row.parents is None or row.parents == list(range(-1, len(row.parents) - 1)), "a tree has no one state"
        before = self.states[row.state.slot] if row.first_position else ()
        assert before == history[: row.first_position], "a slot holds the state of something else"
        assert [num for num, _ in row.state.saves] == sorted({num for num, _ in row.state.saves})
        for num_tokens, slot in (*row.state.saves, (row.num_committed, row.state.slot)):
            assert 0 < num_tokens <= row.num_committed
            self.states[slot] = history[: row.first_position + num_tokens]
        self.drafts[row.state.slot] = row.tokens[row.num_committed :]

    def draft(self, row: Row, history: tuple[int, ...]) -> DraftTree | None:
        """A random tree within the spec; part of it is accepted more often than not."""
        if row.draft is None or number(history, "none") % 5 == 0:
            return None
        tokens: list[int] = []
        parents: list[int] = []
        depth = [0]
        for node in range(1 + number(history, "size") % row.draft.num_tokens):
            parent = number(history, node, "parent") % (node + 1) - 1
            siblings = {tokens[other] for other in range(node) if parents[other] == parent}
            token = number(history, node, "token") % VOCABULARY.vocab_size
            if token in siblings or len(siblings) == row.draft.top_k or depth[parent + 1] == row.draft.steps:
                break
            tokens.append(token)
            parents.append(parent)
            depth.append(depth[parent + 1] + 1)
        return DraftTree(tokens, parents, [-0.1 * d for d in depth[1:]]) if tokens else None

    def result(self, row: Row, history: tuple[int, ...]) -> RowResult:
        scores = []
        if row.score is not None:
            for i, target in enumerate(row.score.targets):
                before = history[: row.first_position + row.score.first + i + 1]
                scores.append(logprob(before, target, row.score.num_top, row.score.of))
        pooled = None
        if row.pool_from is not None:
            ends = range(row.first_position + row.pool_from, len(history))
            assert ends, "nothing to pool"
            pooled = sum((hidden(history[: end + 1]) for end in ends), np.zeros(3, "<f4")).tobytes()
        if row.sample is None:
            return RowResult(scores=scores, pooled=pooled)
        sample, mask, node = row.sample, row.mask, -1
        penalties, wanted = sample.penalties, sample.num_top_logprobs
        if penalties is not None:
            assert (*penalties.prompt, *penalties.output) == history
        guesses = row.tokens[row.num_committed :]
        assert len(guesses) == len(row.nodes) == len(row.parents or ())
        children = {edge: n for n, edge in enumerate(zip(row.parents or (), guesses, strict=True))}
        assert len(children) == len(guesses), "siblings of the same token"
        token_draw, tokens, logprobs = sample.draw, [], []
        while True:
            allowed: Iterable[int] = range(VOCABULARY.vocab_size)
            if mask is not None:
                words = np.frombuffer(mask, "<i4")
                allowed = [t for t in allowed if words[t // 32] >> (t % 32) & 1]
            num_output = None if penalties is None else len(penalties.output) + len(tokens)
            token = choose(history, allowed, (sample.temperature, token_draw, num_output))
            logprobs += [] if wanted is None else [logprob(history, token, wanted, sample.logprobs_of)]
            tokens.append(token)
            history = (*history, token)
            if (node, token) not in children:
                break
            node = children[node, token]
            mask, token_draw = row.nodes[node].mask, row.nodes[node].draw
        after = [(3 * guess + 1) % VOCABULARY.vocab_size for guess in guesses]  # any, for lookahead windows
        return RowResult(
            tokens=tokens, logprobs=logprobs, scores=scores, draft=self.draft(row, history), after_nodes=after
        )


class FakeLaunched:
    """A launched step, computed up to its sampling."""

    def __init__(
        self, engine: FakeEngine, plan: ForwardPlan, histories: list[tuple[int, ...]], written: list[list[int]]
    ) -> None:
        self.engine = engine
        self.plan = plan
        self.histories = histories
        self.written = written
        self.results: list[RowResult] = []
        self.num_decodes = 1

    def sample(self, sampling: SamplingPlan) -> None:
        assert self.engine.open
        assert sampling.step == self.plan.step
        to_come = iter(sampling.rows)
        rows = []
        for row in self.plan.rows:
            if row.follows is None:
                rows.append(row)
            elif (own := next(to_come)) is None:
                rows.append(msgspec.structs.replace(row, tokens=self.engine.tokens(row), follows=None))
            else:
                rows.append(msgspec.structs.replace(row, sample=own.sample, mask=own.mask))
        assert next(to_come, None) is None
        self.decide(rows)

    def decide(self, rows: Sequence[Row]) -> None:
        self.engine.open = False
        decoded = self.end_early([self.decode(row, history) for row, history in zip(rows, self.histories, strict=True)])
        for row, history, new, result in zip(rows, self.histories, self.written, decoded, strict=True):
            for offset in range(len(result.tokens) - 1):  # what proved right is moved to the front
                right = (*history, *result.tokens[: offset + 1])
                self.engine.kv[new[row.num_committed + offset]] = right
                if self.engine.windows is not None:
                    slot = self.engine.window_slot(row, row.first_position + row.num_committed + offset)
                    self.engine.window_kv[slot] = right
            self.results.append(result)
        self.engine.sampled = [(row.rid, result.token) for row, result in zip(rows, self.results, strict=True)]

    def end_early(self, results: list[RowResult]) -> list[RowResult]:
        """Drop what an engine does not compute after an end of an output, or an interruption."""
        most = self.plan.num_decodes
        if most == 1:
            return results
        if self.engine.interrupts:
            most = 1 + number((self.plan.step, "interrupted")) % most
        ends = [i for result in results for i, token in enumerate(result.tokens) if token in self.plan.end_tokens]
        self.num_decodes = min([most, *(index + 1 for index in ends)])
        return [msgspec.structs.replace(result, tokens=result.tokens[: self.num_decodes]) for result in results]

    def decode(self, row: Row, history: tuple[int, ...]) -> RowResult:
        """Return the result of a row that decodes as often as the plan says."""
        if self.plan.num_decodes == 1:
            assert not row.draws
            return self.engine.result(row, history)
        assert row.sample is not None
        assert row.mask is row.score is row.pool_from is row.parents is row.draft is row.sample.penalties is None
        assert not row.window_pages
        assert len(row.tokens) == 1
        assert len(row.draws) in (0, self.plan.num_decodes - 1)
        tokens: list[int] = []
        for draw in (row.sample.draw, *(row.draws or [0] * (self.plan.num_decodes - 1))):
            sample = msgspec.structs.replace(row.sample, draw=draw)
            step = msgspec.structs.replace(row, sample=sample, first_position=row.first_position + len(tokens))
            tokens += self.engine.result(step, (*history, *tokens)).tokens
        return RowResult(tokens=tokens)

    def wait(self) -> ForwardResult:
        self.engine.num_in_flight -= 1
        cost = self.num_decodes * (10 + self.plan.num_tokens) + number(self.plan.step) % 5
        self.engine.now += self.engine.pace * cost
        return ForwardResult(step=self.plan.step, rows=self.results, num_decodes=self.num_decodes)
