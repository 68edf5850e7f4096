"""Prepares a draft tree for verification: drops tokens that cannot be sampled, and adds a mask and a draw to each node.

Dropping a node costs a chance of acceptance and nothing else: the token can still be sampled after its parent.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

from ....constrained.errors import GrammarError
from ...protocol.errors import RequestError
from ..plan import DraftNode
from ..request import Request
from ..rows.sampling_inputs import next_temperature, random_bits, request_mask, token_mask
from ..rows.token_rules import token_words
from .tree import DraftTree

STATES_SHARE = 0.1  # of a step's time, that drafts may take for new states of grammars
MAX_BALANCE = 0.02  # seconds, saved up by steps that needed none


@dataclass
class StateBudget:
    """Time in which steps make new states of grammars for their drafts.

    What one mask takes is known when it is made: if it was more than was left, the next drafts pay for it.
    """

    balance: float = 0.002  # seconds

    def earn(self, seconds: float) -> None:
        """Note a step that took so long."""
        self.balance = min(MAX_BALANCE, self.balance + STATES_SHARE * seconds)


@dataclass(frozen=True)
class PreparedDraft:
    """A tree of at least one node, and the sampling of each node."""

    tree: DraftTree
    nodes: list[DraftNode]


class NodeMask(NamedTuple):
    """The tokens that may follow a node, as words of a mask (None: all), and their temperature."""

    words: bytes | None
    temperature: float


def prepare_draft(
    request: Request, tree: DraftTree, *, num_tokens: int, vocab_size: int, budget: StateBudget | None
) -> PreparedDraft | None:
    """Prepare at most `num_tokens` guesses of `tree`, the likeliest ones, and what is forced after them. Returns None
    if none are left.

    Dropped are tokens that the grammar rejects, that would end the output, or that come after its limit, and what
    follows them; with a `budget` also those for which the grammar would have to make more new states than that allows,
    or wait for a thread.
    """
    max_depth = request.planned_end - len(request.tokens) - 1  # the token after the deepest node must be within it
    allowed = [
        node
        for node, depth in enumerate(tree.depths)
        if depth <= max_depth and not request.stops.can_end(tree.tokens[node])
    ]
    tree = tree.only(allowed).best(num_tokens)
    try:
        request_mask(request, vocab_size)  # cached now: the matcher forgets it when it follows the draft
    except RequestError:
        return None  # it fails when its row is built
    began = time.perf_counter()
    masks = _node_masks(request, tree, vocab_size, budget)
    if budget is not None and request.matcher is not None:
        budget.balance -= time.perf_counter() - began
    tree = tree.only(sorted(masks))
    if not len(tree):
        return None
    seed, num_tokens, now = request.message.sampling.seed, len(request.tokens), next_temperature(request)
    dry: list[dict[int, float]] = [{}] * len(masks)
    if request.repeats is not None:
        dry = request.repeats.after_nodes(request.tokens, tree)
    nodes = [
        DraftNode(
            draw=0 if seed is None else random_bits(seed, num_tokens + depth),
            mask=masks[node].words,
            dry=own,
            temperature=None if masks[node].temperature == now else masks[node].temperature,
        )
        for node, depth, own in zip(sorted(masks), tree.depths, dry, strict=True)
    ]
    return PreparedDraft(tree, nodes)


def _node_masks(request: Request, tree: DraftTree, vocab_size: int, budget: StateBudget | None) -> dict[int, NodeMask]:
    """Mask of each node that the grammar and the token rules accept. The matcher's state is restored."""
    matcher = request.matcher
    rules, recent = request.rules, request.recent_output
    if matcher is None and rules is None:
        suppressed = [request.stops.suppressed(request.num_output + depth) for depth in tree.depths]
        plain = request.sample.temperature
        return {node: NodeMask(token_mask(None, each, vocab_size), plain) for node, each in enumerate(suppressed)}
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents):
        children.setdefault(parent, []).append(node)
    masks: dict[int, NodeMask] = {}
    forced = {tree.parents[node]: tree.tokens[node] for node in tree.forced}
    end = 0.0 if budget is None else time.perf_counter() + budget.balance

    def accepts(token: int) -> bool:
        if matcher is None:
            return True
        try:
            if budget is None:
                return matcher.accept(token)
            return bool(matcher.accept_at_once(token, new_states=time.perf_counter() < end))
        except GrammarError:
            return False  # too complex; plain decoding reports it if it gets there

    def temperature_now() -> float:
        of_rule = None if matcher is None else matcher.temperature
        return request.sample.temperature if of_rule is None else of_rule

    def visit(parent: int, depth: int, output: list[int]) -> None:
        for node in children.get(parent, ()):
            token = tree.tokens[node]
            if (rules is not None and not rules.allows(token, output)) or not accepts(token):
                continue
            try:
                if node in forced:  # as if it were appended: the tokenizer's own way to write the text
                    masks[node] = NodeMask(token_words([forced[node]], vocab_size).tobytes(), temperature_now())
                    visit(node, depth + 1, output if rules is None else [*output, token])
                elif (
                    matcher is None
                    or budget is None
                    or matcher.is_ready(forced=False, new_states=time.perf_counter() < end)
                ):
                    suppressed = request.stops.suppressed(request.num_output + depth)
                    after = [] if rules is None else [*output, token]
                    words = token_mask(matcher, suppressed, vocab_size, rules, after)
                    masks[node] = NodeMask(request.stops.with_one_end(words), temperature_now())
                    visit(node, depth + 1, after)
            except (RequestError, GrammarError):
                pass  # nothing can follow, or the mask is too complex: as above
            if matcher is not None:
                matcher.rollback(1)

    visit(-1, 1, recent)
    return masks
