"""Rollouts as others take them: rows for `datasets` and Parquet, and the columns of TRL's `rollout_func`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ...runtime.protocol.errors import RequestError
from .trajectory import Node, Trajectory


def rows_of(
    example: int, trajectories: Sequence[Trajectory], root: Node, advantages: Mapping[int, float]
) -> list[dict[str, Any]]:
    """Return a row for each trajectory of an example.

    `shares` have 1 / n for a token that n trajectories have: weighted by them, each draw counts once in a loss.
    `experts` are a column if they were asked for.
    """
    leaves: dict[int, Node] = {}
    for node in root.below():
        leaves.update(dict.fromkeys(node.leaves, node))  # children come later, so the last one stays
    return [_row(example, number, one, leaves[number], advantages) for number, one in enumerate(trajectories)]


def _row(
    example: int, number: int, trajectory: Trajectory, leaf: Node, advantages: Mapping[int, float]
) -> dict[str, Any]:
    tokens, nodes = trajectory.tokens, leaf.path()
    return {
        "example": example,
        "trajectory": number,
        "run": trajectory.run,
        "ids": tokens.ids,
        "mask": tokens.mask,
        "origins": tokens.origins,
        "logprobs": tokens.logprobs,
        "drawn_logprobs": tokens.drawn_logprobs,
        "versions": tokens.versions,
        **({"experts": tokens.experts} if any(tokens.experts) else {}),
        "advantages": [advantages[node.number] for node in nodes for _ in node.tokens.ids],
        "shares": [1 / len(node.leaves) for node in nodes for _ in node.tokens.ids],
        "nodes": [node.number for node in nodes],
        "node_starts": [node.start for node in nodes],
        "node_rewards": [node.reward for node in nodes],
        "prompt_length": trajectory.prompt_length,
        "reward": trajectory.reward,
        "truncated": trajectory.is_truncated,
        "generations": [
            {"name": one.name, "start": one.start, "end": one.end, "finish": one.finish}
            for one in trajectory.generations
        ],
        "tools": [
            {
                "generation": one.generation,
                "name": one.name,
                "arguments": json.dumps(one.arguments, default=repr),
                "text": one.text,
                "error": one.error,
            }
            for one in trajectory.tools
        ],
    }


def write_parquet(rows: Sequence[dict[str, Any]], path: str | os.PathLike[str]) -> None:
    """Write rows to a Parquet file. Raises RequestError without `pyarrow`."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise RequestError("to_parquet needs pyarrow: pip install pyarrow", param="path") from None
    parquet.write_table(pyarrow.Table.from_pylist([*rows]), os.fspath(path))


def trl_columns(trajectories: Sequence[Trajectory]) -> dict[str, list[Any]]:
    """Return the columns that TRL's GRPOTrainer takes from a `rollout_func`, and the rewards as one more.

    `env_mask` is 1 for tokens that the model chose. Other tokens have the log-probability 0, which it masks out. Tokens
    that are given behind the last generated one are left out: no loss depends on them.
    """
    columns: dict[str, list[Any]] = {
        name: [] for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask", "reward")
    }
    for one in trajectories:
        start, end = one.prompt_length, one.generations[-1].end
        columns["prompt_ids"].append(one.tokens.ids[:start])
        columns["completion_ids"].append(one.tokens.ids[start:end])
        columns["logprobs"].append([value or 0.0 for value in one.tokens.drawn_logprobs[start:end]])
        columns["env_mask"].append([int(chosen) for chosen in one.tokens.mask[start:end]])
        columns["reward"].append(one.reward)
    return columns
