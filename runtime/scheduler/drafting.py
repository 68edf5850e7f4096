"""Chooses the requests whose drafts a step verifies, how many tokens of each, and for whom the engine drafts next.

Draft tokens have the lowest rank in a step: they use tokens and pages that nothing else needs, and retract no request.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from ..protocol.config import CoreConfig
from ..speculation.ngram import NgramIndex
from ..speculation.tree import DraftTree
from .acceptance import Acceptance
from .batch import Batch, ScheduledRequest
from .counters import SpeculationCounters
from .plan import DraftSpec, ForwardPlan, ForwardResult, Row, RowResult
from .prepared_draft import prepare_draft
from .request import Request
from .speculation_budget import MAX_JUDGED_PROMPT, StepWork
from .speculation_policy import DraftCandidate, DraftChoice, SpeculationPolicy
from .step_cost import StepShape

BUDGET_DIVISOR = 4  # drafts get at most a quarter of the tokens left beside decoding
DEFAULT_TOP_K = 4  # where `speculative_eagle_topk` is not set
FEATURE_WINDOW = 16  # steps followed without a gap after which a head drafts as well as after all
MIN_DRAFT_TEMPERATURE = 0.3  # heads are calibrated for 1: ranked much colder, second choices are noise


class Drafting:
    """Speculation for one scheduler. Call `propose` before a step's tokens are split, then `add_drafts`, then
    `draft_spec`."""

    def __init__(self, config: CoreConfig, vocab_size: int) -> None:
        self._source = config.speculative or "off"
        self._steps = config.speculative_num_steps
        self._top_k = config.speculative_eagle_topk or DEFAULT_TOP_K
        self._max_draft_tokens = config.speculative_num_draft_tokens - 1  # one of them is the last known token
        self._adaptive = config.speculative_adaptive
        self._vocab_size = vocab_size
        self._policy = SpeculationPolicy()
        self._proposals: dict[str, tuple[DraftTree, int]] = {}  # rid -> a tree, and the number of nodes to verify
        self._verified_drafts: dict[str, DraftTree] = {}
        self._choice = DraftChoice()
        self._chosen: frozenset[str] = frozenset()  # rids of `_choice`
        self._followed: Set[str] = frozenset()  # rids that the last step drafted for
        self._trial_rids: set[str] = set()  # rids whose next draft is verified whether that pays or not
        self._plain_step_due = False  # this step is to be a plain one, to measure it
        self._awaits_features = False  # no running request has the features that the source needs
        self._last_start = 0  # last step, by `_num_steps`, in which a request started
        self._drafted_last_step = False  # so that there may be something to verify
        self._num_steps = 0
        self._last_closed = -FEATURE_WINDOW  # last step, by `_num_steps`, without the source
        self.closed = self._source == "off"  # no drafts, and the source does not follow
        self.counts = SpeculationCounters()

    def can_plan_ahead(self, batch: Batch) -> bool:
        """True if a step can be planned while one without drafts is in flight: it verifies none."""
        return self._source == "off" or (self._adaptive and not self._policy.budget.is_open(max(1, len(batch))))

    def note_started(self, request: Request) -> None:
        """Record that the request starts, perhaps again, in the step that `propose` was called for."""
        request.first_step = self._last_start = self._num_steps

    def source_follows(self, rows: Sequence[Row]) -> bool:
        """True if the engine's draft source follows the step with these rows.

        Plain decoding is measured without the source, on steps after which the source lacks next to nothing.
        """
        if self.closed or (self._awaits_features and self._last_start < self._num_steps):
            self._last_closed = self._num_steps
            return False
        return not self._plain_step_due or any(len(row.tokens) > 1 for row in rows)

    def propose(self, batch: Batch, budget: int) -> int:
        """Choose the drafts to verify. Returns the number of tokens to reserve for them."""
        if self._source == "off":
            return 0
        self._num_steps += 1
        if self._adaptive:
            policy, num_rows = self._policy, max(1, len(batch))
            pending = self._drafted_last_step and any(request.draft is not None for request in batch)
            self.closed = not pending and not policy.budget.is_open(num_rows)
            self._plain_step_due = not self.closed and not pending and not policy.may_draft(num_rows)
        if self._choice.steps or self._proposals:
            self._choice, self._chosen = DraftChoice(), frozenset()
            self._proposals.clear()
            self._verified_drafts.clear()
        self._awaits_features = False
        if self.closed or self._plain_step_due:
            return 0
        # Forced text leaves more than one token to compute; a draft may follow them too.
        decoding = [request for request in batch if request.num_output > 0 and request.wants_tokens]
        self._awaits_features = bool(decoding) and not any(map(self._is_worth_following, decoding))
        if self._awaits_features:
            return 0
        limit = max(0, budget - len(decoding)) // BUDGET_DIVISOR
        trees = [(request, tree) for request in decoding if (tree := self._tree(request)) is not None]
        counts = self._num_to_verify([request for request, _ in trees], [tree for _, tree in trees], len(batch), limit)
        for (request, tree), count in zip(trees, counts, strict=True):
            if count:
                self._proposals[request.rid] = tree, count
        self._choose(decoding, len(batch))
        return sum(count for _, count in self._proposals.values())

    def add_drafts(self, scheduled: list[ScheduledRequest], batch: Batch) -> list[ScheduledRequest]:
        """Add the proposed drafts to the shares that decode, as far as there is room."""
        return scheduled if not self._proposals else [self._add_draft(item, batch) for item in scheduled]

    def draft_spec(self, item: ScheduledRequest) -> DraftSpec | None:
        """The tree that the engine should draft for the request's next step, or None."""
        choice = self._choice
        if not choice.steps:
            return None
        request = item.request
        decodes = request.num_output > 0
        newcomer = choice.include_new and (
            item.num_tokens <= MAX_JUDGED_PROMPT or not self._adaptive
        )  # longer prompts are drafted for one step later
        if not (request.rid in self._chosen if decodes else newcomer):
            return None
        will_have_more = request.end - len(request.tokens) >= 3  # so that a draft can save a step
        if not will_have_more or not self._is_known(request):
            return None
        if choice.is_trial:
            self._trial_rids.add(request.rid)
        bounds = self._candidate(request)
        steps = min(choice.steps, bounds.steps)
        temperature = max(MIN_DRAFT_TEMPERATURE, request.message.sampling.temperature)
        return DraftSpec(steps, bounds.top_k, bounds.num_verified(steps), temperature)

    def observe(self, request: Request, row: Row, result: RowResult) -> None:
        """Record what was accepted of a row's draft, and keep the next draft."""
        request.draft = _remaining_draft(result.draft, request, row, result)
        if row.parents is not None:
            num_right = len(result.tokens) - 1
            self.counts.observe(len(row.parents), num_right)
            expected = sum(math.exp(min(0.0, score)) for score in self._verified_drafts[row.rid].scores)
            self._trial_rids.discard(row.rid)
            depth = max(self._verified_drafts[row.rid].depths)
            self._policy.observe(request.acceptance, expected, depth, num_right)

    def observe_step(self, plan: ForwardPlan, result: ForwardResult) -> None:
        if not self._adaptive or self._source == "off":
            return
        if not plan.followed and self._policy.may_skip(len(plan.rows)):
            self._drafted_last_step = False
            return
        draft_specs = {row.rid: row.draft for row in plan.rows if row.draft is not None}
        self._policy.observe_step(
            _step_shape(plan, draft_specs), _step_work(plan, result, draft_specs, self._followed), result.seconds
        )
        self._followed, self._drafted_last_step = draft_specs.keys(), bool(draft_specs)
        if self._trial_rids:  # forget requests that ended before their trial
            self._trial_rids &= {row.rid for row in plan.rows}

    def _tree(self, request: Request) -> DraftTree | None:
        if self._source != "ngram":
            return request.draft
        if request.ngrams is None:
            request.ngrams = NgramIndex()
        return request.ngrams.propose(
            request.tokens, steps=self._steps, top_k=self._top_k, num_tokens=self._max_draft_tokens
        )

    def _num_to_verify(
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
            [self._policy.probability(request.acceptance, score) for score in tree.scores]
            for request, tree in zip(requests, trees, strict=True)
        ]
        forced_rows = [request.rid in self._trial_rids for request in requests]
        return self._policy.num_to_verify(num_rows, probabilities, limit, forced_rows=forced_rows)

    def _choose(self, decoding: Sequence[Request], num_rows: int) -> None:
        if self._source not in ("eagle", "draft"):
            return
        if not self._adaptive:
            self._choice = DraftChoice(self._steps, include_new=True)
            self._chosen = frozenset(request.rid for request in decoding)
            return
        if not self._policy.may_draft(max(1, num_rows)):
            self._choice, self._chosen = DraftChoice(), frozenset()
            return
        known = [request for request in decoding if self._is_known(request)]
        if decoding and not known:
            self._choice, self._chosen = (
                DraftChoice(),
                frozenset(),
            )  # the source follows, and knows them after FEATURE_WINDOW steps
            return
        decoding, candidates = known, [self._candidate(request) for request in known]
        if candidates:
            self._choice = self._policy.choose_drafts(candidates, num_rows)
        else:
            first = DraftCandidate(Acceptance(), self._steps, self._top_k, self._max_draft_tokens)
            choice = self._policy.choose_drafts([first], max(1, num_rows))
            is_trial = choice.is_trial and self._policy.budget.prompts_measured
            self._choice = replace(choice, chosen=(), include_new=choice.include_new or is_trial)
        self._chosen = frozenset(decoding[index].rid for index in self._choice.chosen)

    def _is_known(self, request: Request) -> bool:
        """True if the source knows the request well enough to draft. A head lacks the features of steps that it did not
        follow; a smaller model catches up by itself."""
        first = max(request.first_step, self._num_steps - FEATURE_WINDOW)
        return self._source != "eagle" or first > self._last_closed

    def _is_worth_following(self, request: Request) -> bool:
        """True if the source knows the request, or following it may pay. The output so far predicts what is still to
        come."""
        return not self._adaptive or self._is_known(request) or request.num_output >= 4 * FEATURE_WINDOW

    def _candidate(self, request: Request) -> DraftCandidate:
        """Bounds of the request's draft. A greedy request whose draft fits one chain gets a chain, which is cheaper to
        grow."""
        chain = self._adaptive and request.message.sampling.greedy and self._max_draft_tokens <= self._steps
        return DraftCandidate(request.acceptance, self._steps, 1 if chain else self._top_k, self._max_draft_tokens)

    def _add_draft(self, item: ScheduledRequest, batch: Batch) -> ScheduledRequest:
        proposed = self._proposals.get(item.request.rid)
        if proposed is None or not item.samples:
            return item
        tree, count = proposed
        room = min(count, batch.num_free_slots(item))
        prepared = prepare_draft(item.request, tree, num_tokens=room, vocab_size=self._vocab_size) if room > 0 else None
        if prepared is None:
            return item
        self._verified_drafts[item.request.rid] = prepared.tree
        return batch.add_draft(item, prepared)


def _remaining_draft(draft: DraftTree | None, request: Request, row: Row, result: RowResult) -> DraftTree | None:
    """The part of the draft that follows the request's current tokens; forced tokens may have come
    or replaced others."""
    start = row.first_position + row.num_committed
    end = start + len(result.tokens)
    if draft is None or request.tokens[start:end] != result.tokens:
        return None
    return draft.after(request.tokens[end:])


def _step_shape(plan: ForwardPlan, draft_specs: Mapping[str, DraftSpec]) -> StepShape:
    return StepShape(
        num_tokens=plan.num_tokens,
        wide=any(len(row.tokens) > 1 for row in plan.rows),
        num_drafts=len(draft_specs),
        num_rounds=max((draft_spec.steps - 1 for draft_spec in draft_specs.values()), default=0),
        num_nodes=sum((draft_spec.steps - 1) * draft_spec.top_k for draft_spec in draft_specs.values()),
    )


def _step_work(
    plan: ForwardPlan, result: ForwardResult, draft_specs: Mapping[str, DraftSpec], followed: Set[str]
) -> StepWork:
    """Describe a step for the budget. `followed` are the requests that the step before drafted for."""
    sampled = [row for row in plan.rows if row.sample is not None]
    num_guesses = sum(len(row.parents or ()) for row in sampled)
    num_prompt = plan.num_tokens - num_guesses - len(sampled)
    return StepWork(
        num_rows=len(sampled),
        num_prompt=num_prompt,
        num_gained=sum(max(0, len(one.tokens) - 1) for one in result.rows),
        context=sum(row.first_position for row in sampled) / max(1, len(sampled)),
        speculated=plan.followed and bool(num_guesses or draft_specs or not num_prompt),
        catching_up=not draft_specs.keys() <= followed,
    )
