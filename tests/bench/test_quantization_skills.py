"""Judge: the standard deviation of the answers' differences, by the standard library."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramiform.bench.quantisation.skills import change, skill_rows

pairs = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60)


@pytest.mark.slow
@given(pairs)
def test_a_change_is_the_mean_of_the_differences_with_its_error(answers: list[tuple[bool, bool]]) -> None:
    dense, other = map(list, zip(*answers, strict=True))
    differences = [100 * (b - a) for a, b in answers]
    found = change(dense, other)
    assert found.points == pytest.approx(statistics.mean(differences))
    assert found.margin == pytest.approx(1.96 * statistics.pstdev(differences) / len(answers) ** 0.5, abs=1e-6)
    assert found.won - found.lost == sum(other) - sum(dense)


def test_rows_show_the_baseline_s_share_and_the_others_changes() -> None:
    right = {"bf16": {"a": [True, True], "b": [True, False]}, "int4": {"a": [True, False], "b": [True, True]}}
    rows = dict(skill_rows(right, "bf16"))
    assert rows["right, all skills"][0] == "75.00 %"
    assert rows["right, all skills"][1].endswith("(-1 +1)")
    assert rows["- a"] == ["100.00 %", "-50.00 ± 69.30 (-1 +0)"]
