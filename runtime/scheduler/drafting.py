"""Which requests get guesses verified in a step, how many, and whose next guesses the engine is to draft.

Guesses are the least of a step's work: they take tokens and pages that nobody else needs, and never anybody's place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from ..protocol.config import CoreConfig
from ..speculation.ngram import NgramIndex
from ..speculation.tree import DraftTree
from .acceptance import Acceptance
from .batch import Batch, ScheduledRequest
from .plan import DraftSpec, ForwardPlan, ForwardResult, Row, RowResult
from .prepared_draft import prepare_draft
from .request import Request
from .speculation_budget import MAX_JUDGED_PROMPT, StepWork
from .speculation_policy import DraftCandidate, DraftChoice, SpeculationPolicy
from .step_cost import StepShape

BUDGET_DIVISOR = 4  # guesses get a quarter of what a step has left for prompts, at most
DEFAULT_TOP_K = 4  # where nothing else is set
FEATURE_WINDOW = 16  # steps followed without a gap, which are as good to a head as if it had seen what came before
MIN_DRAFT_TEMPERATURE = (
    0.3  # drafts are ranked no colder: a head is calibrated for 1, and sharpened too far its ranking is noise
)


@dataclass
class SpeculationCounters:
    """Since start, named as in `CoreStats`."""

    num_guessed_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_lengths: list[int] = field(default_factory=list)

    def observe(self, num_guessed: int, num_accepted: int) -> None:
        self.num_guessed_tokens += num_guessed
        self.num_accepted_tokens += num_accepted
        self.accepted_lengths += [0] * (num_accepted + 1 - len(self.accepted_lengths))
        self.accepted_lengths[num_accepted] += 1


class Drafting:
    """In this order: `propose` before a step's tokens are split, `add_guesses` to its parts, `want` for its rows."""

    def __init__(self, config: CoreConfig, vocab_size: int) -> None:
        self._source = config.speculative or "off"
        self._steps = config.speculative_num_steps
        self._top_k = config.speculative_eagle_topk or DEFAULT_TOP_K
        self._num_guesses = config.speculative_num_draft_tokens - 1  # the other one is known
        self._adaptive = config.speculative_adaptive
        self._vocab_size = vocab_size
        self._economy = SpeculationPolicy()
        self._proposals: dict[str, tuple[DraftTree, int]] = {}  # rid -> a tree, and how many of its nodes
        self._verified: dict[str, DraftTree] = {}
        self._drafts_now = DraftChoice()
        self._chosen: frozenset[str] = frozenset()  # rids, of `_drafts_now`
        self._followed: Set[str] = frozenset()  # rids that the last step drafted for
        self._looked_at: set[str] = set()  # rids whose next guesses are verified whether that pays or not
        self._measures = False  # what a plain step takes, so this one is to be one
        self._waits = False  # for requests that the source can guess for: none of those that run is one
        self._begun = 0  # the last step, by the count below, in which a request began
        self._drafted = False  # anything in the last step, so that there may be something to verify
        self._num_steps = 0
        self._last_shut = -FEATURE_WINDOW  # the last step, by that count, in which nothing was to be guessed
        self.shut = self._source == "off"  # nothing is to be guessed or to be told of it: the step is as any without
        self.counts = SpeculationCounters()

    def plans_ahead(self, batch: Batch) -> bool:
        """Whether a step can be planned while one without guesses is in flight: nothing is to be guessed in it."""
        return self._source == "off" or (self._adaptive and not self._economy.guard.is_open(max(1, len(batch))))

    def began(self, request: Request) -> None:
        """It begins to be computed, perhaps again, in the step that `propose` was asked about."""
        request.first_step = self._begun = self._num_steps

    def follows(self, rows: Sequence[Row]) -> bool:
        """Whether the engine's source is to follow a step of these. What is known of plain decoding is measured without
        it, on steps that miss next to nothing."""
        if self.shut or (self._waits and self._begun < self._num_steps):
            self._last_shut = self._num_steps
            return False
        return not self._measures or any(len(row.tokens) > 1 for row in rows)

    def propose(self, batch: Batch, budget: int) -> int:
        """Tokens that the step should keep for guesses."""
        if self._source == "off":
            return 0
        self._num_steps += 1
        if self._adaptive:
            economy, num_rows = self._economy, max(1, len(batch))
            pending = self._drafted and any(request.draft is not None for request in batch)
            self.shut = not pending and not economy.guard.is_open(num_rows)
            self._measures = not self.shut and not pending and not economy.may_guess(num_rows)
        if self._drafts_now.steps or self._proposals:
            self._drafts_now, self._chosen = DraftChoice(), frozenset()
            self._proposals.clear()
            self._verified.clear()
        self._waits = False
        if self.shut or self._measures:
            return 0
        # Forced text leaves more than one token to compute, and guesses follow them all the same.
        decoding = [request for request in batch if request.num_output > 0 and request.wants_tokens]
        self._waits = bool(decoding) and not any(map(self._is_worth_following, decoding))
        if self._waits:
            return 0
        limit = max(0, budget - len(decoding)) // BUDGET_DIVISOR
        trees = [(request, tree) for request in decoding if (tree := self._tree(request)) is not None]
        counts = self._num_worth([request for request, _ in trees], [tree for _, tree in trees], len(batch), limit)
        for (request, tree), count in zip(trees, counts, strict=True):
            if count:
                self._proposals[request.rid] = tree, count
        self._choose(decoding, len(batch))
        return sum(count for _, count in self._proposals.values())

    def add_guesses(self, parts: list[ScheduledRequest], batch: Batch) -> list[ScheduledRequest]:
        """The parts, those that decode with as many of the guesses proposed as there is room for."""
        return parts if not self._proposals else [self._add(part, batch) for part in parts]

    def want(self, part: ScheduledRequest) -> DraftSpec | None:
        """What the engine should draft for the request's next step, when this one has given it a token."""
        choice = self._drafts_now
        if not choice.steps:
            return None
        request = part.request
        decodes = request.num_output > 0
        newcomer = choice.newcomers and (
            part.num_tokens <= MAX_JUDGED_PROMPT or not self._adaptive
        )  # others begin a step later
        if not (request.rid in self._chosen if decodes else newcomer):
            return None
        will_have_more = request.end - len(request.tokens) >= 3  # than one token to go, after this step's
        if not will_have_more or not self._is_known(request):
            return None
        if choice.only_to_see:
            self._looked_at.add(request.rid)
        bounds = self._candidate(request)
        steps = min(choice.steps, bounds.steps)
        temperature = max(MIN_DRAFT_TEMPERATURE, request.message.sampling.temperature)
        return DraftSpec(steps, bounds.top_k, bounds.num_verified(steps), temperature)

    def observe(self, request: Request, row: Row, result: RowResult) -> None:
        """What came of a row's guesses, and the next ones."""
        request.draft = _remaining_draft(result.draft, request, row, result)
        if row.parents is not None:
            num_right = len(result.tokens) - 1
            self.counts.observe(len(row.parents), num_right)
            expected = sum(math.exp(min(0.0, score)) for score in self._verified[row.rid].scores)
            self._looked_at.discard(row.rid)
            depth = max(self._verified[row.rid].depths)
            self._economy.observe(request.acceptance, expected, depth, num_right)

    def observe_step(self, plan: ForwardPlan, result: ForwardResult) -> None:
        if not self._adaptive or self._source == "off":
            return
        if not plan.followed and self._economy.may_skip(len(plan.rows)):
            self._drafted = False
            return
        wants = {row.rid: row.draft for row in plan.rows if row.draft is not None}
        self._economy.observe_step(
            _step_shape(plan, wants), _step_work(plan, result, wants, self._followed), result.seconds
        )
        self._followed, self._drafted = wants.keys(), bool(wants)
        if self._looked_at:  # requests that ended before they were looked at are of no more interest
            self._looked_at &= {row.rid for row in plan.rows}

    def _tree(self, request: Request) -> DraftTree | None:
        if self._source != "ngram":
            return request.draft
        if request.ngrams is None:
            request.ngrams = NgramIndex()
        return request.ngrams.propose(
            request.tokens, steps=self._steps, top_k=self._top_k, num_tokens=self._num_guesses
        )

    def _num_worth(
        self, requests: Sequence[Request], trees: Sequence[DraftTree], num_rows: int, limit: int
    ) -> list[int]:
        if not trees:
            return []
        if not self._adaptive:
            counts = []
            for tree in trees:
                counts.append(min(len(tree), limit))
                limit -= counts[-1]
            return counts
        probabilities = [
            [self._economy.probability(request.acceptance, score) for score in tree.scores]
            for request, tree in zip(requests, trees, strict=True)
        ]
        must = [request.rid in self._looked_at for request in requests]
        return self._economy.num_worth(num_rows, probabilities, limit, must=must)

    def _choose(self, decoding: Sequence[Request], num_rows: int) -> None:
        if self._source not in ("eagle", "draft"):
            return
        if not self._adaptive:
            self._drafts_now = DraftChoice(self._steps, newcomers=True)
            self._chosen = frozenset(request.rid for request in decoding)
            return
        if not self._economy.may_guess(max(1, num_rows)):
            self._drafts_now, self._chosen = DraftChoice(), frozenset()
            return
        known = [request for request in decoding if self._is_known(request)]
        if decoding and not known:
            self._drafts_now, self._chosen = (
                DraftChoice(),
                frozenset(),
            )  # the source follows, and will know them in a while
            return
        decoding, candidates = known, [self._candidate(request) for request in known]
        if candidates:
            self._drafts_now = self._economy.drafts(candidates, num_rows)
        else:
            first = DraftCandidate(Acceptance(), self._steps, self._top_k, self._num_guesses)
            choice = self._economy.drafts([first], max(1, num_rows))
            look = choice.only_to_see and self._economy.guard.prompts_measured
            self._drafts_now = replace(choice, chosen=(), newcomers=choice.newcomers or look)
        self._chosen = frozenset(decoding[index].rid for index in self._drafts_now.chosen)

    def _is_known(self, request: Request) -> bool:
        """To the source, well enough to guess. A head lacks the features of steps that it did not follow; a smaller
        model catches up by itself."""
        first = max(request.first_step, self._num_steps - FEATURE_WINDOW)
        return self._source != "eagle" or first > self._last_shut

    def _is_worth_following(self, request: Request) -> bool:
        """One that the source does not know would have to be followed for a while first: too dear for a short one. What
        has come so far is as good a guess as any of what is still to come."""
        return not self._adaptive or self._is_known(request) or request.num_output >= 4 * FEATURE_WINDOW

    def _candidate(self, request: Request) -> DraftCandidate:
        """A greedy request whose guesses could all be one deep chain gets that: as good as a tree so small, and cheaper
        to grow."""
        chain = self._adaptive and request.message.sampling.greedy and self._num_guesses <= self._steps
        return DraftCandidate(request.acceptance, self._steps, 1 if chain else self._top_k, self._num_guesses)

    def _add(self, part: ScheduledRequest, batch: Batch) -> ScheduledRequest:
        proposed = self._proposals.get(part.request.rid)
        if proposed is None or not part.samples:
            return part
        tree, count = proposed
        room = min(count, batch.room_for_guesses(part))
        guesses = prepare_draft(part.request, tree, num_tokens=room, vocab_size=self._vocab_size) if room > 0 else None
        if guesses is None:
            return part
        self._verified[part.request.rid] = guesses.tree
        return batch.add_guesses(part, guesses)


def _remaining_draft(draft: DraftTree | None, request: Request, row: Row, result: RowResult) -> DraftTree | None:
    """What of it follows the tokens that the request has by now: forced ones may have come, or replaced others."""
    start = row.first_position + row.num_committed
    end = start + len(result.tokens)
    if draft is None or request.tokens[start:end] != result.tokens:
        return None
    return draft.after(request.tokens[end:])


def _step_shape(plan: ForwardPlan, wants: Mapping[str, DraftSpec]) -> StepShape:
    return StepShape(
        num_tokens=plan.num_tokens,
        wide=any(len(row.tokens) > 1 for row in plan.rows),
        num_drafts=len(wants),
        num_rounds=max((want.steps - 1 for want in wants.values()), default=0),
        num_nodes=sum((want.steps - 1) * want.top_k for want in wants.values()),
    )


def _step_work(
    plan: ForwardPlan, result: ForwardResult, wants: Mapping[str, DraftSpec], followed: Set[str]
) -> StepWork:
    """`followed`: whom the step before drafted for."""
    sampled = [row for row in plan.rows if row.sample is not None]
    num_guesses = sum(len(row.parents or ()) for row in sampled)
    num_prompt = plan.num_tokens - num_guesses - len(sampled)
    return StepWork(
        num_rows=len(sampled),
        num_prompt=num_prompt,
        num_gained=sum(max(0, len(one.tokens) - 1) for one in result.rows),
        context=sum(row.first_position for row in sampled) / max(1, len(sampled)),
        guessed=plan.followed and bool(num_guesses or wants or not num_prompt),
        behind=not wants.keys() <= followed,
    )
