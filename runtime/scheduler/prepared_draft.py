"""A tree of guesses made ready for its row: what cannot be said is left out, and each node gets its mask and its draw.

A guess that is left out costs nothing but a chance: if it was right, it is sampled as the token after its parent.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...constrained.errors import GrammarError
from ..protocol.errors import RequestError
from ..speculation.tree import DraftTree
from .plan import DraftNode
from .request import Request
from .sampling_inputs import random_bits, token_mask


@dataclass(frozen=True)
class PreparedDraft:
    """Tokens and parents as in `Row`, at least one of each, and a node for each."""

    tree: DraftTree
    nodes: list[DraftNode]


def prepare_draft(request: Request, tree: DraftTree, *, num_tokens: int, vocab_size: int) -> PreparedDraft | None:
    """At most `num_tokens` nodes of `tree`, the likeliest ones; None when nothing is left.

    Left out are guesses that the grammar refuses, that would end the output, that come too late for it to have them,
    and whatever follows them.
    """
    max_depth = request.end - len(request.tokens) - 1  # the token after the deepest guess must still be wanted
    allowed = [
        node
        for node, depth in enumerate(tree.depths)
        if depth <= max_depth and not request.stops.can_end(tree.tokens[node])
    ]
    tree = tree.only(allowed).best(num_tokens)
    masks = _node_masks(request, tree, vocab_size)
    tree = tree.only(sorted(masks))
    if not len(tree):
        return None
    seed, num_tokens = request.message.sampling.seed, len(request.tokens)
    nodes = [
        DraftNode(draw=0 if seed is None else random_bits(seed, num_tokens + depth), mask=masks[node])
        for node, depth in zip(sorted(masks), tree.depths, strict=True)
    ]
    return PreparedDraft(tree, nodes)


def _node_masks(request: Request, tree: DraftTree, vocab_size: int) -> dict[int, bytes | None]:
    """By node, what may follow it, for those that the grammar lets come. The matcher ends where it began."""
    matcher = request.matcher
    if matcher is None:
        suppressed = [request.stops.suppressed(request.num_output + depth) for depth in tree.depths]
        return {node: token_mask(None, tokens, vocab_size) for node, tokens in enumerate(suppressed)}
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents):
        children.setdefault(parent, []).append(node)
    masks: dict[int, bytes | None] = {}

    def visit(parent: int, depth: int) -> None:
        for node in children.get(parent, ()):
            try:
                if not matcher.accept(tree.tokens[node]):
                    continue
            except GrammarError:
                continue  # too hard to follow; plain decoding will say so if it gets there
            try:
                masks[node] = token_mask(matcher, request.stops.suppressed(request.num_output + depth), vocab_size)
                visit(node, depth + 1)
            except RequestError:
                pass  # nothing can follow, or it is too hard to say what: as above
            matcher.rollback(1)

    visit(-1, 1)
    return masks
