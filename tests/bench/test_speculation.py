"""The pure parts of the speculation bench."""

from __future__ import annotations

import json
import statistics

import jsonschema
import pytest

from ramiform.bench.speculation.sources import KINDS, Round, bodies, compare


@pytest.mark.parametrize("kind", KINDS)
def test_requests_differ_and_their_schemas_are_schemas(kind: str) -> None:
    made = list(bodies(kind, 1.0, 16))
    assert len({body["text"] for body in made}) >= 4
    assert len({body["sampling_params"]["sampling_seed"] for body in made}) == 16
    for body in made:
        assert "{town}" not in body["text"].replace("{{", "{")
        if "json_schema" in body["sampling_params"]:
            jsonschema.Draft202012Validator.check_schema(json.loads(body["sampling_params"]["json_schema"]))


def test_a_ratio_is_the_median_over_rounds_and_tau_is_of_all_passes() -> None:
    plain = [Round(100, 100, seconds) for seconds in (1.0, 2.0, 10.0)]
    own = [Round(100, passes, seconds) for passes, seconds in ((20, 0.5), (50, 4.0), (30, 2.5))]
    cell = compare(own, plain)
    assert cell.ratio == statistics.median([2.0, 0.5, 4.0])
    assert cell.tau == pytest.approx(3.0)
    with pytest.raises(ValueError, match="zip"):
        compare(own[:2], plain)
