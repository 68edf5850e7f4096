"""Trees of trajectories. Judge: sets of prefixes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramiform.lang.rollouts.trajectory import TokenPath, Trajectory, node_advantages, tree_of

paths = st.lists(
    st.tuples(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([None, (0, 0, 0), (1, 0, 0)])), max_size=6)),
    min_size=1,
    max_size=7,
)
rewards = st.floats(-10, 10).map(lambda value: round(value, 3))


def trajectory(path: Sequence[tuple[int, tuple[int, int, int] | None]], reward: float) -> Trajectory:
    tokens = TokenPath.given([token for token, _ in path])
    tokens.draws[:] = [draw for _, draw in path]
    return Trajectory(0, tokens, (), (), reward)


@given(paths, st.data())
@settings(max_examples=150, deadline=None)
def test_a_node_holds_the_tokens_that_its_leaves_share(found: list[tuple[list]], data: st.DataObject) -> None:
    all_paths = [tuple(path) for (path,) in found]
    own_rewards = [data.draw(rewards) for _ in all_paths]
    root = tree_of([trajectory(path, reward) for path, reward in zip(all_paths, own_rewards, strict=True)])
    nodes = list(root.below())
    assert [node.number for node in sorted(nodes, key=lambda one: one.number)] == list(range(len(nodes)))
    # Each shared prefix is the path of one node, once: the tree has as many tokens as there are different prefixes.
    prefixes = {path[:size] for path in all_paths for size in range(1, len(path) + 1)}
    assert sum(len(node.tokens) for node in nodes) == len(prefixes)
    for node in nodes:
        before = [(one.tokens.ids[n], one.tokens.draws[n]) for one in node.path() for n in range(len(one.tokens))]
        assert len(before) == node.end
        beginning = [number for number, path in enumerate(all_paths) if list(path[: node.end]) == before]
        assert list(node.leaves) == beginning
        assert node.reward == pytest.approx(sum(own_rewards[n] for n in beginning) / len(beginning))
        assert all(child.parent is node and child.start == node.end for child in node.children)
        assert node.parent is None or len(node.tokens) > 0


@given(st.lists(rewards, min_size=1, max_size=9))
def test_without_forks_advantages_are_those_of_grpo(own_rewards: list[float]) -> None:
    group = [trajectory([(7, None), (1, (run, 0, 0))], reward) for run, reward in enumerate(own_rewards)]
    root = tree_of(group)
    mean = sum(own_rewards) / len(own_rewards)
    spread = (sum((reward - mean) ** 2 for reward in own_rewards) / len(own_rewards)) ** 0.5
    for kind in ("group", "branch"):
        found = node_advantages(root, own_rewards, kind)  # type: ignore[arg-type]
        for node in root.below():
            if not node.children and spread > 1e-6:
                assert found[node.number] == pytest.approx((own_rewards[node.leaves[0]] - mean) / spread, abs=1e-6)
    if len(set(own_rewards)) == 1:
        assert set(node_advantages(root, own_rewards).values()) == {0.0}


def test_the_advantage_of_a_branch_is_over_its_parent() -> None:
    #       prompt -> a -> (b: 1, c: 0)
    #              -> d -> (e: 0, f: 0)
    shared = {0: (0, 0, 0), 1: (0, 0, 0), 2: (1, 0, 0), 3: (1, 0, 0)}
    own_rewards = [1.0, 0.0, 0.0, 0.0]
    group = [trajectory([(5, None), (1, shared[n]), (2, (n, 1, 0))], own_rewards[n]) for n in range(4)]
    root = tree_of(group)
    found = node_advantages(root, own_rewards, "branch", scaled=False)
    by_leaves = {node.leaves: found[node.number] for node in root.below()}
    wanted = {(0, 1): 0.25, (2, 3): -0.25, (0,): 0.5, (1,): -0.5, (2,): 0.0, (3,): 0.0, (0, 1, 2, 3): 0.0}
    assert by_leaves == pytest.approx(wanted)
    plain = node_advantages(root, own_rewards, "group", scaled=False)
    leaves = {node.leaves: plain[node.number] for node in root.below()}
    assert (leaves[0,], leaves[1,], leaves[0, 1]) == pytest.approx((0.75, -0.25, 0.25))
