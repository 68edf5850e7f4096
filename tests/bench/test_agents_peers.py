"""The comparison of agents' programs: both ways ask for the same tokens, and a difference in the work is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers

from ramiform.bench.agents.peers import FLOOR, LANGUAGE, OWN_HTTP, Run, check, chosen
from ramiform.bench.agents.programs import AGENTS, Agent, Generation, tasks_of, words_of
from ramiform.bench.peers.limits import Machine, Work
from ramiform.bench.peers.load import Scenario
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL

from .commands import run

MACHINE = Machine(read=100.0, fma=10.0, product=20.0)
# Three layers of one parameter, all of keys and values; one FLOP a layer for each key.
WORK = Work(layers=3, head=1, weight_bytes=200, kv_bytes=2, attention=3, num_layers=3, kv_layer=1)


def cost(*made: Generation) -> Run:
    return Run(1.0, 1.0, 1.0, [list(made)])


@pytest.mark.exhaustive
def test_both_ways_ask_for_the_same_tokens_and_get_the_same(tmp_path: Path) -> None:
    out = tmp_path / "report.md"
    small = ["--rounds", "1", "--at-once", "2", "--shared", "20", "--no-floor", "--out", str(out)]
    run("agents/peers.py", "--agents", "react,tree", *small)
    lines = [line for line in out.read_text().splitlines() if line.endswith(("100% |", "sampled |"))]
    assert len(lines) == 2
    assert all(line.split("|")[1].endswith(", 2, 20 ") for line in lines)


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
def test_tasks_of_a_case_share_a_prefix_of_one_token_a_word(agent: Agent) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(SHIPPED_MODEL / "tokenizer.json"))
    one, two = tasks_of(agent, words_of(tokenizer), 30, 2, "0")
    [other, _] = tasks_of(agent, words_of(tokenizer), 30, 2, "1")
    assert one.shared == two.shared != other.shared
    assert one.question != two.question
    assert len(tokenizer.encode(one.shared, add_special_tokens=False).ids) == 30


def test_agents_are_chosen_by_parts_of_their_names() -> None:
    assert [agent.name for agent in chosen("react, judge")] == ["ReAct", "judge"]
    assert chosen("") == AGENTS


def test_sides_that_did_other_work_are_no_measurement() -> None:
    [judge] = chosen("judge")
    mine = cost(Generation(10, ((1, 2),)))
    for other in (cost(Generation(11, ((1, 2),))), cost(Generation(10, ((1, 2, 3),))), cost()):
        with pytest.raises(RuntimeError, match="was asked for"):
            check(judge, {LANGUAGE: mine, OWN_HTTP: other})


def test_outputs_in_common_are_counted_whatever_their_order_but_not_those_of_the_floor() -> None:
    [judge] = chosen("judge")
    a, b, c = (Generation(10, ((token,),)) for token in (1, 2, 3))
    runs = {LANGUAGE: cost(a, b), OWN_HTTP: cost(c, a), FLOOR: cost(c, c)}
    assert check(judge, runs) == 0.5
    assert check(judge, {LANGUAGE: cost(a, b), OWN_HTTP: cost(b, a)}) == 1.0


def test_a_step_takes_as_long_as_the_slower_of_reading_and_multiplying() -> None:
    # Prefill: 2 * 3 * 4, 8 keys in two layers, 4 of the last token in the third, and 2: 46 FLOP at 20 a second.
    assert WORK.least_seconds(Scenario("x", 1, 4, 1), MACHINE) == 2.3
    # A decode step with 5 keys: 200 + 10 bytes at 100 a second.
    assert WORK.least_seconds(Scenario("x", 1, 4, 2), MACHINE) == 2.3 + 2.1
    # Ten prompts: 460 FLOP; then 10 * (8 + 3 * 5) = 230 FLOP, or 300 bytes.
    assert WORK.least_seconds(Scenario("x", 10, 4, 2), MACHINE) == 23.0 + 11.5


def test_a_shared_prefix_is_computed_and_read_once() -> None:
    # 2 * 3 * (20 + 2 * 1) + 2 * (200 + 2 * 20) + 2 * 21 + 2 * 2 = 658 FLOP.
    assert WORK.least_seconds(Scenario("x", 2, 21, 1, num_shared=20), MACHINE) == 658 / 20


def test_programs_need_each_token_once_and_a_step_for_each_output_of_a_chain() -> None:
    # Tokens at 0, 1, 2 and, after two in common, at 2 and 3: 5 * 6 + 2 * (1 + 2 + 3 + 3 + 4) = 56 FLOP. After the first
    # two, which see the fewest keys, tokens are sampled: 1 + 2 in the last layer, and 2 * 1 each.
    assert WORK.least_seconds_of([[5, 6, 7], [5, 6, 8, 9]], 2, 1, MACHINE) == (56 + 3 + 4) / 20
    assert WORK.least_seconds_of([[5, 6, 7], [5, 6, 8, 9]], 2, 3, MACHINE) == 3 * 200 / 100
