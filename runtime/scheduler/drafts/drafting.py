"""Chooses the requests whose drafts a step verifies, how many tokens of each, and for whom the engine drafts next.

Draft tokens have the lowest rank in a step: they use tokens and pages that nothing else needs, and retract no request.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Sequence
from functools import partial

from ...protocol.config import DEFAULT_MAX_RUNNING, SOURCES_ON_DEVICE, CoreConfig
from ...protocol.core import SpeculationState
from ...protocol.errors import RequestError
from ..batch import Batch, ScheduledRequest
from ..counters import SpeculationCounters
from ..interfaces import VocabularyInfo
from ..jump_forward import Retokenise
from ..plan import DraftSpec, ForwardPlan, ForwardResult, Row, RowResult
from ..request import Request
from ..rows.sampling_inputs import request_mask
from .copies import TAIL_TOKENS, JointTokens, PromptCopies
from .forced_text import MAX_FORCED, DraftBounds, can_force, with_forced_text
from .lookahead import Lookahead
from .ngram import NgramIndex
from .prepared_draft import StateBudget, prepare_draft
from .speculation_policy import Change, Kind, SpeculationPolicy, StepWork
from .tree import DraftTree, MergedTree

BUDGET_DIVISOR = 4  # drafts get at most a quarter of the tokens left beside decoding
DEFAULT_TOP_K = 4  # where `speculative_eagle_topk` is not set
FEATURE_WINDOW = 16  # steps followed without a gap after which a head drafts as well as after all
MIN_DRAFT_TEMPERATURE = 0.3  # heads are calibrated for 1: ranked much colder, second choices are noise
MAX_LOOKUP_INTERVAL = 8  # output tokens; lookups that are of no use are made ever more rarely
LOOKUP_SHARE = 0.01  # of a plain step, that lookups may take before they are made more rarely
logger = logging.getLogger("ramiform.core")

UNFOLLOWED_INTERVAL = 8  # one in this many steps of plain decoding is timed: timing all would slow a small model


class Drafting:
    """Speculation for one scheduler. Call `propose` before a step's tokens are split, then `add_drafts`, then
    `draft_spec`."""

    def __init__(
        self, config: CoreConfig, vocabulary: VocabularyInfo, *, at_once: bool, retokenise: Retokenise | None = None
    ) -> None:
        """With `at_once`, tokens are dropped from drafts for which a grammar would have to make too many new states.
        `retokenise` None: no forced text is appended to outputs."""
        self.source = config.speculative or "off"
        self.is_on = self.source != "off"  # there is a draft source, open or not
        self._in_engine = self.source in SOURCES_ON_DEVICE  # which draft for the next step
        self._steps = config.speculative_num_steps
        self._top_k = config.speculative_eagle_topk or DEFAULT_TOP_K
        self._max_draft_tokens = config.speculative_num_draft_tokens - 1  # one of them is the last known token
        self._adaptive = config.speculative_adaptive
        self._vocabulary = vocabulary
        self._joints: JointTokens | None = None
        self._budget = StateBudget() if at_once else None
        self._retokenise = retokenise
        max_running = min(config.max_running or DEFAULT_MAX_RUNNING, config.prefill_budget)
        self._most_nodes = max(MAX_FORCED, max_running * self._max_draft_tokens)  # the engine has memory for so many
        self._policy = SpeculationPolicy()
        self._kind: Kind = "free"  # of the texts of the batch that `propose` was called for
        self._num_rows = 1  # of that batch
        self._num_known = 0  # requests of that batch
        self._num_started = 0  # requests that start in this step, if that batch was empty
        self._suffixes = None
        if self.source == "suffix":
            from .suffix import SuffixDrafts  # here, because most runtimes do not draft by it

            self._suffixes = SuffixDrafts()
        self._proposals: dict[str, DraftTree] = {}  # by rid, what is to be verified
        self._verified_drafts: dict[str, DraftTree] = {}
        self._num_right = 0  # guesses of this step
        self._depths: dict[str, int] = {}  # rid -> depth of the next draft
        self._lookup_seconds = 0.0  # of one lookup in texts, lately
        self._most_lookup_interval = MAX_LOOKUP_INTERVAL
        self._new_depth = 0  # for requests whose prompts are computed in this step
        self._plain_step_due = False  # this step is to be a plain one, to time it
        self._held_back = False  # the step could have been planned ahead without speculation
        self._awaits_features = False  # no running request has the features that the source needs
        self._last_start = 0  # last step, by `_num_steps`, in which a request started
        self._drafted_last_step = False  # so that there may be something to verify
        self._num_steps = 0
        self._num_untimed = 0  # steps of plain decoding since the last one that was timed
        self._last_closed = -FEATURE_WINDOW  # last step, by `_num_steps`, without the source
        self.closed = self.source == "off"  # no drafts, and the source does not follow
        self.counts = SpeculationCounters()

    def can_plan_ahead(self, batch: Batch) -> bool:
        """Return True if a step can be planned while one without drafts is in flight: it verifies none."""
        if self.source == "off" or (
            self._adaptive and not self._policy.may_guess(max(1, len(batch)), _kind_of_texts(batch))
        ):
            return True
        self._held_back = True
        return False

    def note_started(self, request: Request) -> None:
        """Record that the request starts, perhaps again, in the step that `propose` was called for."""
        if not self._num_known:  # `propose` saw no text: the step is of those that start in it
            own, self._num_started = _kind_of_texts([request]), self._num_started + 1
            self._kind = own if self._num_started == 1 or own == self._kind else "mixed"
            self._num_rows = self._num_started
            self._look_up_policy(pending=False)
            self._choose_depths([], self._num_rows)
        request.first_step = self._last_start = self._num_steps
        if self.is_on and request.acceptance.prior is None:
            request.acceptance = self._policy.records.begin(request.program_id, constrained=_is_constrained(request))

    def note_ended(self, request: Request) -> None:
        """Record that the request ended: its output may serve others."""
        if self._suffixes is not None:
            self._suffixes.end(request.rid, request.tokens, request.num_prompt, request.message.namespace)

    def flush(self) -> None:
        """Forget the outputs of requests that ended."""
        if self._suffixes is not None:
            self._suffixes.flush()

    def source_follows(self, rows: Sequence[Row]) -> bool:
        """Return True if the engine's draft source follows the step with these rows.

        Plain decoding is measured without the source, on steps after which the source lacks next to nothing.
        """
        if self.closed or (self._awaits_features and self._last_start < self._num_steps):
            self._last_closed = self._num_steps
            return False
        return not self._plain_step_due or any(len(row.tokens) > 1 for row in rows)

    def propose(self, batch: Batch, budget: int) -> int:
        """Choose the drafts to verify. Returns the number of tokens to reserve for them."""
        if self.source == "off":
            return 0
        self._num_steps += 1
        num_rows, self._kind = max(1, len(batch)), _kind_of_texts(batch)
        self._num_rows, self._num_known, self._num_started = num_rows, len(batch), 0
        self._look_up_policy(pending=self._drafted_last_step and any(request.draft is not None for request in batch))
        self._depths, self._new_depth = {}, 0
        self._proposals.clear()
        self._verified_drafts.clear()
        self._num_right = 0
        self._awaits_features = False
        if self.closed or self._plain_step_due:
            return 0
        # Forced text leaves more than one token to compute; a draft may follow them too.
        decoding = [request for request in batch if request.num_output > 0 and request.wants_tokens]
        step = self._policy.plain_seconds(num_rows, self._kind)
        share = num_rows * self._lookup_seconds / (LOOKUP_SHARE * step) if step else MAX_LOOKUP_INTERVAL
        self._most_lookup_interval = max(1, math.ceil(share))
        self._awaits_features = bool(decoding) and not any(map(self._is_worth_following, decoding))
        if self._awaits_features:
            return 0
        limit = max(0, budget - len(decoding)) // BUDGET_DIVISOR
        trees = [(request, tree) for request in decoding if (tree := self._tree(request)) is not None]
        counts = self._num_to_verify([request for request, _ in trees], [tree for _, tree in trees], num_rows, limit)
        left = min(limit, self._most_nodes)
        for (request, tree), count in zip(trees, counts, strict=True):
            if len(chosen := _within(tree.best(count), left)):
                self._proposals[request.rid] = chosen
                left -= len(chosen)
        self._choose_depths(decoding, num_rows)
        return sum(map(len, self._proposals.values()))

    def _look_up_policy(self, *, pending: bool) -> None:
        """Ask whether texts of this kind are drafted for. With `pending` drafts were made, which are verified first."""
        if self._adaptive and self.is_on:
            self.closed = not pending and not self._policy.is_open(self._num_rows, self._kind)
            may_guess = pending or self._policy.may_guess(self._num_rows, self._kind)
            self._plain_step_due = not self.closed and not may_guess

    def add_drafts(self, scheduled: list[ScheduledRequest], batch: Batch) -> list[ScheduledRequest]:
        """Add the proposed drafts to the shares that decode, as far as there is room."""
        return scheduled if not self._proposals else [self._add_draft(item, batch) for item in scheduled]

    def draft_spec(self, item: ScheduledRequest) -> DraftSpec | None:
        """Return the tree that the engine should draft for the request's next step, or None."""
        request = item.request
        depth = self._depths.get(request.rid, 0) if request.num_output > 0 else self._new_depth
        will_have_more = request.planned_end - len(request.tokens) >= 3  # so that a draft can save a step
        if not depth or not will_have_more or not self._is_known(request):
            return None
        temperature = max(MIN_DRAFT_TEMPERATURE, request.message.sampling.temperature)
        # A greedy request whose draft fits one chain gets a chain, which is cheaper to grow.
        fits_chain = self._adaptive and request.message.sampling.greedy and self._max_draft_tokens <= self._steps
        top_k = 1 if fits_chain else self._top_k
        num_tokens = min(self._max_draft_tokens, depth) if top_k == 1 else self._max_draft_tokens
        if not self._adaptive:
            return DraftSpec(depth, top_k, num_tokens, temperature)
        least = self._policy.least_score(self._num_rows, request.acceptance, depth, self._kind)
        return DraftSpec(depth, top_k, num_tokens, temperature, least)

    def verified(self, row: Row, result: RowResult) -> tuple[int, int] | None:
        """Return how many guesses of a row's draft were right, and how many there were; None if it had no draft."""
        if row.parents is None:
            return None
        draft = self._verified_drafts[row.rid]
        last = draft.find(result.tokens[:-1])
        assert last is not None
        return draft.levels[last] if last >= 0 else 0, draft.num_guesses

    def observe(self, request: Request, row: Row, result: RowResult) -> None:
        """Record what was accepted of a row's draft, and keep the next draft."""
        request.draft = _remaining_draft(result.draft, request, row, result)
        if (verified := self.verified(row, result)) is not None:
            assert row.parents is not None
            num_right, num_guesses = verified
            if request.lookahead is not None and result.after_nodes:
                draft_tokens = row.tokens[row.num_committed :]
                num_new = len(result.tokens)
                request.lookahead.observe(request.tokens, num_new, draft_tokens, row.parents, result.after_nodes)
            if num_right:
                request.next_lookup, request.lookup_interval = 0, 1
            self.counts.observe(num_guesses, num_right)
            self._num_right += num_right
            draft = self._verified_drafts[row.rid]
            expected = sum(math.exp(min(0.0, score)) for score in _guess_scores(draft))
            self._policy.observe_accepted(request.acceptance, expected, max(draft.levels), num_right)

    def observe_step(self, plan: ForwardPlan, result: ForwardResult) -> None:
        """Record a step's work and time."""
        if self._budget is not None:
            self._budget.earn(result.seconds)
        if not self._adaptive or self.source == "off":
            return
        if not plan.followed:
            self._drafted_last_step = False
            self._num_untimed += 1
            if self._num_untimed < UNFOLLOWED_INTERVAL and self._policy.is_measured(len(plan.rows), self._kind):
                return
        drafts = any(row.draft is not None for row in plan.rows)
        self._policy.observe_step(self._work(plan, result, drafts=drafts), result.seconds, 1 + self._num_untimed)
        self._num_untimed = 0
        self._drafted_last_step, self._held_back = drafts, False
        for change in self._policy.changes():
            logger.info("speculation (%s) %s", self.source, _sentence(change))

    @property
    def states(self) -> list[SpeculationState]:
        """Where speculation is open or closed, and why; empty if it does not adapt."""
        if not self._adaptive or self.source == "off":
            return []
        return [
            SpeculationState(text=kind, num_rows=num_rows, is_open=is_open, why=why, gain=gain)
            for kind, num_rows, is_open, why, gain in self._policy.states
        ]

    def _work(self, plan: ForwardPlan, result: ForwardResult, *, drafts: bool) -> StepWork:
        sampled = [row for row in plan.rows if row.sample is not None]
        num_guesses = sum(len(row.parents or ()) for row in sampled)
        num_prompt = plan.num_tokens - num_guesses - len(sampled)
        followed = plan.followed and self._in_engine and not num_prompt
        return StepWork(
            num_rows=len(sampled),
            num_prompt=num_prompt,
            num_guesses=num_guesses,
            num_gained=self._num_right,
            context=sum(row.first_position for row in sampled) / max(1, len(sampled)),
            speculated=bool(num_guesses) or drafts or followed or (plan.followed and self._held_back),
            kind=self._kind,
            drafting=result.drafting,
            catching_up=result.catching_up,
        )

    def _tree(self, request: Request) -> DraftTree | None:
        """Return what may follow a request's text, with the text that its grammar forces after guesses."""
        tree = self._guesses(request)
        if tree is None or self._retokenise is None or request.is_held or not can_force(request):
            return tree
        try:
            request_mask(request, self._vocabulary.vocab_size)  # cached now: the matcher forgets it as it goes on
        except RequestError:
            return None  # it fails when its row is built
        began = time.perf_counter()
        tree = with_forced_text(
            request,
            tree,
            self._retokenise,
            DraftBounds(self._max_draft_tokens, self._top_k),
            budget=self._budget,
            go_on=None if self._in_engine else partial(self._copy, request),
        )
        self._lookup_seconds += (time.perf_counter() - began) / 16  # as the mean of lookups, which this is a part of
        return tree if len(tree) else None

    def _copy(self, request: Request, path: Sequence[int] = ()) -> DraftTree | None:
        """Return what may follow a request's constrained text and `path`, by the text of its prompt."""
        if self._retokenise is None or not can_force(request):
            return None
        if request.copies is None:
            self._joints = self._joints or JointTokens(self._vocabulary.token_bytes)
            request.copies = PromptCopies(request.tokens[: request.num_prompt], self._joints)
        first = max(request.num_prompt, len(request.tokens) - TAIL_TOKENS)
        return request.copies.propose(request.tokens[first:], path, self._retokenise)

    def _guesses(self, request: Request) -> DraftTree | None:
        if self._in_engine:
            return request.draft
        if self.source == "lookahead":
            if request.lookahead is None:
                request.lookahead = Lookahead(request.tokens, steps=self._steps, num_tokens=self._max_draft_tokens)
            return request.lookahead.propose(request.tokens, top_k=self._top_k, num_tokens=self._max_draft_tokens)
        if self._adaptive:
            if request.num_output < request.next_lookup:
                return None
            interval = min(request.lookup_interval, self._most_lookup_interval)
            request.next_lookup = request.num_output + interval
            request.lookup_interval = min(MAX_LOOKUP_INTERVAL, 2 * interval)
        began = time.perf_counter()
        tree = self._look_up(request)
        self._lookup_seconds += (time.perf_counter() - began - self._lookup_seconds) / 16
        return tree

    def _look_up(self, request: Request) -> DraftTree | None:
        bounds = {"steps": self._steps, "top_k": self._top_k, "num_tokens": self._max_draft_tokens}
        if self._suffixes is not None:
            message = request.message
            tree = self._suffixes.propose(request.rid, request.tokens, request.num_prompt, message.namespace, **bounds)
        else:
            if request.ngrams is None:
                request.ngrams = NgramIndex()
            tree = request.ngrams.propose(request.tokens, **bounds)
        copies = self._copy(request)
        if tree is None or copies is None:
            return tree or copies
        both = MergedTree(tree)
        both.add_tree(copies)
        return both.tree()

    def _num_to_verify(
        self, requests: Sequence[Request], trees: Sequence[DraftTree], num_rows: int, limit: int
    ) -> list[int]:
        if self._adaptive and self.source != "lookahead":  # whose window is of use later
            probabilities = [
                [self._policy.probability(request.acceptance, score) for score in _guess_scores(tree)]
                for request, tree in zip(requests, trees, strict=True)
            ]
            return self._policy.num_to_verify(num_rows, probabilities, limit, kind=self._kind, drafted=self._in_engine)
        counts = []
        for tree in trees:
            counts.append(min(tree.num_guesses, limit))
            limit -= counts[-1]
        return counts

    def _choose_depths(self, decoding: Sequence[Request], num_rows: int) -> None:
        """Choose the depths of the engine's next drafts, also of requests whose prompts are computed in this step."""
        self._new_depth = 0
        if not self._in_engine or self.closed or self._plain_step_due:
            return
        if not self._adaptive:
            self._depths, self._new_depth = (
                dict.fromkeys((request.rid for request in decoding), self._steps),
                self._steps,
            )
            return
        known = [request for request in decoding if self._is_known(request)]
        if not self._policy.may_guess(num_rows, self._kind) or (decoding and not known):
            return  # the source follows, and knows them after FEATURE_WINDOW steps
        is_free = self._kind == "free"
        rates = [request.acceptance for request in known] or [self._policy.records.begin(None, constrained=not is_free)]
        depths = self._policy.depths(num_rows, rates, self._steps, self._kind)
        self._depths = {request.rid: depth for request, depth in zip(known, depths, strict=False) if depth}
        self._new_depth = max(depths)

    def _is_known(self, request: Request) -> bool:
        """Return True if the source knows the request well enough to draft. A head lacks the features of steps that it
        did not follow; a smaller model catches up by itself."""
        first = max(request.first_step, self._num_steps - FEATURE_WINDOW)
        return self.source not in ("eagle", "mtp") or first > self._last_closed

    def _is_worth_following(self, request: Request) -> bool:
        """Return True if the source knows the request, or following it may pay. The output so far predicts what is
        still to come."""
        return not self._adaptive or self._is_known(request) or request.num_output >= 4 * FEATURE_WINDOW

    def _add_draft(self, item: ScheduledRequest, batch: Batch) -> ScheduledRequest:
        proposed = self._proposals.get(item.request.rid)
        if proposed is None or item.is_widened or not item.samples:
            return item
        tree = _within(proposed, batch.num_free_slots(item))
        if not len(tree):
            return item
        prepared = prepare_draft(
            item.request, tree, num_tokens=tree.num_guesses, vocab_size=self._vocabulary.vocab_size, budget=self._budget
        )
        if prepared is None:
            return item
        self._verified_drafts[item.request.rid] = prepared.tree
        return batch.add_draft(item, prepared)


def _is_constrained(request: Request) -> bool:
    return request.message.sampling.constraint is not None


def _kind_of_texts(requests: Iterable[Request]) -> Kind:
    found = {_is_constrained(request) for request in requests}
    return "mixed" if len(found) > 1 else "constrained" if True in found else "free"


def _guess_scores(tree: DraftTree) -> list[float]:
    return [score for node, score in enumerate(tree.scores) if node not in tree.forced]


def _within(tree: DraftTree, num_nodes: int) -> DraftTree:
    """Return as many of the likeliest guesses as fit into `num_nodes` nodes with what is forced after them."""
    while len(tree) > max(0, num_nodes):
        tree = tree.best(tree.num_guesses - 1)
    return tree


def _sentence(change: Change) -> str:
    kind, num_rows, is_open, why, gain = change
    measured = f", {gain:.2f} times plain decoding lately" if gain else ""
    return f"{'opens' if is_open else 'closes'} for {kind} texts, {num_rows} at once: {why}{measured}"


def _remaining_draft(draft: DraftTree | None, request: Request, row: Row, result: RowResult) -> DraftTree | None:
    """Return the part of the draft that follows the request's current tokens; forced tokens may have come
    or replaced others."""
    start = row.first_position + row.num_committed
    end = start + len(result.tokens)
    if draft is None or request.tokens[start:end] != result.tokens:
        return None
    return draft.after(request.tokens[end:])
