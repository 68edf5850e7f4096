"""Drafts over text that a grammar forces, and drafts of constrained text by its characters. Judges: the text that
jump-forward appends, and the answer that the prompt suggests."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence

import pytest

from ramiform.constrained import JsonSchema, Regex, Vocabulary, compile_constraint
from ramiform.runtime.protocol.sampling import Constraint, LogprobParams
from ramiform.runtime.scheduler.drafts.copies import TAIL_TOKENS, JointTokens, PromptCopies
from ramiform.runtime.scheduler.drafts.forced_text import DraftBounds, GoOn, can_force, with_forced_text
from ramiform.runtime.scheduler.drafts.prepared_draft import StateBudget, prepare_draft
from ramiform.runtime.scheduler.drafts.tree import DraftTree, MergedTree
from ramiform.runtime.scheduler.request import Request

from .harness import Runtime, generate
from .test_prepared_draft import request as make_request

BYTES: list[bytes | None] = [None, *(bytes([byte]) for byte in range(1, 256)), b'",', b'":', b' "']
DATE = Regex(r"on: [0-9], at: [0-9]{2}h")


def encode(before: Sequence[int], data: bytes) -> list[int]:
    return list(data)


def with_forced(made: Request, text: bytes, go_on: GoOn | None = None, num_guesses: int = 20) -> DraftTree:
    chain = DraftTree.chain([*text], [-0.1 * (n + 1) for n in range(len(text))])
    return with_forced_text(
        made, chain, encode, DraftBounds(num_guesses, 4), budget=StateBudget(balance=60.0), go_on=go_on
    )


def made_request(constraint: object = DATE, output: bytes = b"on: ") -> Request:
    made = make_request(constraint, BYTES)
    assert made.matcher is not None
    for token in output:
        assert made.matcher.accept(token)
        made.tokens.append(token)
    return made


@pytest.mark.parametrize("rest", [b"", b"12h", b", at: 12h", b",at"])
def test_forced_text_is_no_guess_and_the_draft_goes_on_behind_it(rest: bytes) -> None:
    """A source may have written the forced text as it is, otherwise, or not at all."""
    made = made_request()
    tree = with_forced(made, b"7" + rest, go_on=lambda path: DraftTree.chain([*b"12"], [-0.2, -0.4]))
    assert bytes(tree.path(len(tree) - 1)) in (b"7, at: 12h", b"7, at: 12")
    assert tree.forced == set(range(1, 7)) | ({9} if len(tree) > 9 else set())
    assert tree.num_guesses == 3
    assert tree.scores[1] == tree.scores[0]
    assert made.matcher is not None
    assert made.matcher.accept(ord("3")), "the matcher is where it was"


def test_only_the_forced_token_can_be_sampled_before_it() -> None:
    made = made_request()
    prepared = prepare_draft(made, with_forced(made, b"7"), num_tokens=1, vocab_size=len(BYTES), budget=None)
    assert prepared is not None
    assert bytes(prepared.tree.tokens) == b"7, at: "
    allowed = []
    for node in prepared.nodes:
        assert node.mask is not None
        bits = int.from_bytes(node.mask, "little")
        allowed.append(bytes(token for token in range(256) if bits >> token & 1))
    assert allowed[:-1] == [b",", b" ", b"a", b"t", b":", b" "]
    assert allowed[-1] == b"0123456789"


def test_a_guess_takes_what_is_forced_after_it_along_when_it_is_left_out() -> None:
    made = made_request()
    tree = with_forced(made, b"7" + b", at: 12h")
    assert bytes(tree.best(1).tokens) == b"7, at: "
    assert tree.best(1).forced == set(range(1, 7))
    assert not tree.best(0).tokens
    left = tree.after([*b"7, "])
    assert left is not None
    assert bytes(left.tokens[:5]) == b"at: 1"
    assert left.forced >= {0, 1, 2, 3}


@pytest.mark.parametrize("params", [{"stop": ("at",)}, {"logprobs": True}])
def test_forced_text_that_is_scored_or_may_end_the_output_is_left_to_its_step(params: dict[str, object]) -> None:
    runtime = Runtime()
    if params.get("logprobs"):
        params = {"logprobs": LogprobParams(num_top=0)}
    runtime.add(generate("r", [2, 3], **params))
    (made,) = runtime.scheduler._requests.values()
    made.matcher = compile_constraint(DATE, Vocabulary.from_tokens(BYTES, [0])).matcher()
    assert not can_force(made)


PROMPT = b"Ada Brook is 36 years old, lives in Lisbon and works as a baker."
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "city": {"type": "string"}},
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}


def copied(output: bytes) -> DraftTree:
    copies = PromptCopies([*PROMPT], JointTokens(BYTES))
    tree = copies.propose(output, (), encode)
    assert tree is not None
    assert len(MergedTree(tree)) == len(tree), "no token comes twice after a node"
    return tree


@pytest.mark.parametrize(
    ("output", "follows"),
    [
        (b'{"name": "A', [*b"da Brook"]),
        (b'{"name": "Ada B', [*b"rook", 256]),
        (b'{"name": "Ada Brook", "age": 3', [*b"6,"]),
        (b'{"name": "Ada Brook", "age": 36, "city": "Lis', [*b"bon", 256]),
        (b'{"name": "Ada Brook", "age": ', [*b"36"]),
        (b'{"name": "x', [256]),
        (b'{"name": "Ada Brook",', [258]),
        (b'{"name": "Ada Brook", "age', [257]),
        (b'{"name":', [258]),
        (b'{"is_adult": true', [ord(",")]),
        (b'{"age": 3.5', [ord("}")]),
    ],
)
def test_words_of_the_prompt_and_what_stands_between_values_are_drafted(output: bytes, follows: list[int]) -> None:
    tree = copied(output)
    node = tree.find(follows)
    assert node is not None
    assert math.exp(tree.scores[node]) > 0.02
    above = [tree.scores[parent] if parent >= 0 else 0.0 for parent in tree.parents]
    assert all(score <= most for score, most in zip(tree.scores, above, strict=True))


def test_a_joint_that_the_output_had_before_is_likelier_than_another() -> None:
    first, later = copied(b'{"name":'), copied(b'{"name":"Ada", "age":')
    chances = [
        [math.exp(tree.scores[node]) for token in (ord('"'), 258) if (node := tree.find([token])) is not None]
        for tree in (first, later)
    ]
    assert chances[0][0] < chances[0][1]
    assert chances[1][0] > chances[1][1]


def test_a_schema_s_first_answer_is_drafted_from_one_value_into_the_next() -> None:
    made = made_request(JsonSchema(PERSON), b'{"name": "Ada B')
    copies = PromptCopies([*PROMPT], JointTokens(BYTES))

    def go_on(path: Sequence[int]) -> DraftTree | None:
        return copies.propose(made.tokens[2:], path, encode)

    tree = go_on([])
    assert tree is not None
    grown = with_forced_text(made, tree, encode, DraftBounds(60, 4), budget=None, go_on=go_on)
    assert any(grown.path(node)[:5] == [*b"rook", 256] and 258 in grown.path(node) for node in range(len(grown)))
    assert len(with_forced_text(made, tree, encode, DraftBounds(3, 4), budget=None, go_on=go_on).tokens) >= 3


def test_the_likeliest_nodes_are_grown_and_no_more_than_wanted() -> None:
    made = made_request(Regex("[ab]{2,9}c"), b"")
    tree = DraftTree([*b"abab"], [-1, -1, 0, 1], [-1.0, -0.1, -1.5, -0.2])
    for size, expected in ((1, {b"b"}), (2, {b"b", b"bb"}), (3, {b"b", b"bb", b"a"})):
        grown = with_forced_text(made, tree, encode, DraftBounds(size, 4), budget=None)
        assert {bytes(grown.path(node)) for node in range(len(grown))} == expected
    chain = with_forced_text(made, tree, encode, DraftBounds(4, 1), budget=None)
    assert chain.parents == [-1, 0], "one child of each node, as models with a recurrent state need it"


@pytest.mark.parametrize("scored", [False, True])
def test_a_model_that_verifies_chains_gets_no_tree_for_a_constrained_text(scored: bool) -> None:
    """Copies and joints are alternatives; a recurrent state has one next token."""
    runtime = Runtime(num_state_slots=8, speculative="suffix", speculative_adaptive=False, speculative_eagle_topk=1)
    language = [[2, 3] * 8, [3, 2, 2, 3] * 4, [2, 2, 3, 3, 2] * 3]
    for index in range(6):
        runtime.add(
            generate(
                f"r{index}",
                [2, 3, 2, 2, 3, 3] * 3,
                constraint=Constraint("choices", json.dumps(language)),
                max_new_tokens=20,
                logprobs=LogprobParams(num_top=0) if scored else None,
            )
        )
        runtime.finish()
    rows = [row for plan in runtime.plans for row in plan.rows if row.parents]
    assert all(row.parents == list(range(-1, len(row.parents or ()) - 1)) for row in rows)
    assert rows


@pytest.mark.parametrize("text", [b"a ", b"aaaa", b"Ada Brook ", b'"', b"12 "])
def test_a_prompt_and_a_value_of_any_shape_take_a_bounded_time(text: bytes) -> None:
    copies = PromptCopies([*(text * (40_000 // len(text)))], JointTokens(BYTES))
    output = [*(b'{"x": "' + text * 40)][-TAIL_TOKENS:]
    began = time.process_time()
    for _ in range(20):
        copies.propose(output, (), encode)
    assert time.process_time() - began < 20 * 0.02
