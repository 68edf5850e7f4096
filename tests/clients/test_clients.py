"""Clients that others wrote, as their users call them: each does what docs/use/clients.md says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from . import runner


@pytest.mark.clients
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("client", runner.clients(), ids=lambda client: client.name)
def test_a_client_does_what_the_page_says(client: runner.Client, served: str, request: pytest.FixtureRequest) -> None:
    place = runner.environment(client)
    came = runner.outcomes(client, place, lambda: request.getfixturevalue("node"), served, "default")
    cells = runner.judge(came)
    print(client.name, cells)
    if request.config.getoption("--write"):
        runner.write_row(client, cells)
    if not request.config.getoption("--keep"):
        shutil.rmtree(place)
    promised = runner.rows()[client.name][1:]
    assert runner.marks(list(cells.values())) == runner.marks(promised), cells


def test_the_page_names_the_clients_and_versions_of_the_pins() -> None:
    assert [(name, cells[0]) for name, cells in runner.rows().items()] == [
        (client.name, client.version) for client in runner.clients()
    ]


def test_every_client_has_a_script_and_every_script_a_client() -> None:
    scripts = {path for kind in ("py", "mjs") for path in Path(runner.HERE).glob(f"*/*.{kind}")}
    assert {client.script for client in runner.clients()} == scripts


@pytest.mark.parametrize(
    ("step", "came", "cell"),
    [
        ("streamed", ["Par", "", "is"], runner.HELD),
        ("streamed", ["Paris"], runner.FAILED),
        ("called", [{"on": True, "room": "hall"}, "Done."], runner.HELD),
        ("called", [{"on": True, "room": "hall"}, None], runner.CALL_ONLY),
        ("called", [{"on": True, "room": "hall"}, ""], runner.FAILED),
        ("called", [{"on": "true", "room": "hall"}, "Done."], runner.FAILED),
        ("structured", {"kind": "city", "sure": True}, runner.HELD),
        ("structured", {"kind": "city"}, runner.FAILED),
        ("structured", {"raised": "ValueError: a | b"}, f"{runner.FAILED} ValueError: a / b"),
        ("refused", "the model 'no-such-model' does not exist; 'default' is served", runner.HELD),
        ("refused", "Connection error.", runner.FAILED),
        ("refused", None, runner.NONE),
    ],
)
def test_an_outcome_is_judged(step: str, came: object, cell: str) -> None:
    judged = runner.judge({step: came})[step]
    assert judged == cell or (cell == runner.FAILED and judged.startswith(cell))
