"""The radix tree in the page: what a fork shares, texts of nodes, zoom, hits and evictions as they happen."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import ramiform
from ramiform import ProgramState, gen

from .browser import Page
from .test_programs import HOSTILE, wait_for_paint

SHARED = "The town of Velburg lies on the river Ane. It has a mill, a school and a market. " * 2
CANVAS = ".picture canvas"
ROWS = "[...document.querySelectorAll(\".vtable[aria-label='Nodes of the radix tree'] tbody tr:not(.space)\")]"


@pytest.fixture(scope="module")
def fresh() -> Iterator[ramiform.Runtime]:
    """A runtime of its own: its tree holds what these tests have run, and little memory makes it evict."""
    with ramiform.Runtime(port=0, dtype="float32", num_pages=96, log_level="error") as started:
        yield started


@pytest.fixture
def address(fresh: ramiform.Runtime) -> Iterator[str]:
    ramiform.set_default_backend(fresh)
    assert fresh.url is not None
    httpx.post(f"{fresh.url}/flush_cache").raise_for_status()
    yield fresh.url
    ramiform.set_default_backend(None)


@ramiform.function
def fan_out(s: ProgramState, text: str) -> None:
    s += text
    branches = s.fork(8)
    for number, branch in enumerate(branches):
        branch += f"{number * 1111} is the number of question {number}. And the answer is:"
        branch += gen("answer", max_tokens=3, ignore_eos=True)
    for branch in branches:
        branch.sync()


@ramiform.function
def once(s: ProgramState, text: str) -> None:
    s += text
    s += gen("x", max_tokens=2, ignore_eos=True)


def tree(url: str) -> dict[int, dict[str, Any]]:
    return {node["id"]: node for node in httpx.get(f"{url}/v1/ramiform/tree").json()["nodes"]}


def shared_node(url: str) -> dict[str, Any]:
    """The node that has eight children, with its children's ids."""
    nodes = tree(url)
    children: dict[int, list[int]] = {}
    for node in nodes.values():
        if node["parent"] is not None:
            children.setdefault(node["parent"], []).append(node["id"])
    [found] = [id for id, below in children.items() if len(below) == 8]
    return {**nodes[found], "children": children[found]}


def open_tree(page: Page, url: str) -> None:
    page.goto(f"{url}/#/tree")
    page.wait(f"!!document.querySelector({CANVAS!r})")


def rows(page: Page) -> list[list[str]]:
    found: list[list[str]] = page.eval(f"{ROWS}.map((row) => [...row.cells].map((cell) => cell.innerText.trim()))")
    return found


@pytest.mark.exhaustive
def test_a_fork_of_a_shared_prompt_is_one_node_with_eight_children(page: Page, address: str) -> None:
    fan_out.run(SHARED)
    shared = shared_node(address)
    open_tree(page, address)
    wait_for_paint(page, CANVAS, colours=2)
    page.click("button", "Table")
    page.wait(f"{ROWS}.length >= 10")
    listed = {row[0]: row for row in rows(page)}
    assert listed[str(shared["id"])][3] == str(shared["tokens"])
    assert listed[str(shared["id"])][6] == "8"
    assert sorted(row[0] for row in listed.values() if row[1] == str(shared["id"])) == sorted(
        map(str, shared["children"])
    )
    assert {row[2] for row in listed.values() if row[1] == str(shared["id"])} == {str(shared["tokens"])}


@pytest.mark.exhaustive
def test_keys_and_the_mouse_walk_the_tree_and_show_its_texts(page: Page, address: str) -> None:
    fan_out.run(SHARED)
    shared = shared_node(address)
    open_tree(page, address)
    wait_for_paint(page, CANVAS, colours=2)
    page.eval(f"document.querySelector({CANVAS!r}).focus()")
    for key in ("ArrowRight", "ArrowRight"):  # the root, then what is below it
        page.press(key)
    page.wait(f"document.querySelector('.details b')?.innerText === 'node {shared['id']}'")
    page.wait("document.querySelector('.details pre')?.innerText.includes('The town of Velburg')")
    page.press("ArrowRight")
    page.press("ArrowDown")
    page.wait("/\\d is the number/.test(document.querySelector('.details pre')?.innerText)")
    page.press("ArrowLeft")
    page.press("Enter")  # zooms
    page.wait(f"[...document.querySelectorAll('[aria-label=Path] button')].at(-1).innerText.includes('{shared['id']}')")
    page.press("Escape")
    page.wait("document.querySelectorAll('[aria-label=Path] button').length === 2")
    page.press("Escape")
    page.wait("document.querySelectorAll('[aria-label=Path] button').length === 1")
    page.wait("/17\\nnodes, 17 shown/.test(document.querySelector('.figures').innerText)")
    # A click in the middle of the first column is on the shared prompt.
    page.eval(f"document.querySelector({CANVAS!r}).blur()")
    page.click("button", "linear")
    box = f"document.querySelector({CANVAS!r}).getBoundingClientRect()"
    x, y = page.eval(f"((box) => [box.x + box.width / 4, box.y + box.height / 2])({box})")
    for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
        page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
    page.wait(f"document.querySelector('.details b')?.innerText === 'node {shared['id']}'")
    assert f"{shared['tokens']} tokens" in page.text(".tip")


@pytest.mark.exhaustive
def test_hits_and_evictions_are_told_as_they_happen(page: Page, address: str) -> None:
    once.run(SHARED)
    open_tree(page, address)
    page.wait("/[1-9]\\d*\\nnodes/.test(document.querySelector('.figures')?.innerText)")
    once.run(SHARED)
    page.wait("/\\d+ %\\nhit since/.test(document.querySelector('.figures').innerText)")
    for number in range(12):
        once.run(f"{number} " * 150)
    page.wait("/[1-9][\\d,]*\\ntokens evicted/.test(document.querySelector('.figures').innerText)")


@pytest.mark.exhaustive
def test_nodes_are_named_by_the_titles_of_their_programs(page: Page, address: str) -> None:
    """Runs of one title are told apart by their labels; a program that begins while one looks has its title too."""
    once.run(SHARED)
    open_tree(page, address)
    page.click("button", "Table")
    page.wait(f"{ROWS}.some((row) => /^once [0-9a-f]{{4}}$/.test(row.cells[5].innerText.trim()))")
    fan_out.run("Another town. " * 20)
    page.wait(f"{ROWS}.filter((row) => /^fan_out [0-9a-f]{{4}}$/.test(row.cells[5].innerText.trim())).length >= 9")
    keys = page.text(".bands")
    assert re.search(r"\bonce [0-9a-f]{4}\b", keys)
    assert re.search(r"\bfan_out [0-9a-f]{4}\b", keys)


@pytest.mark.exhaustive
def test_hostile_texts_of_nodes_are_text(page: Page, address: str) -> None:
    once.run(HOSTILE * 3)
    open_tree(page, address)
    wait_for_paint(page, CANVAS, colours=2)
    page.eval(f"document.querySelector({CANVAS!r}).focus()")
    page.press("ArrowRight")
    page.press("ArrowRight")
    page.wait(f"document.querySelector('.details pre')?.innerText.includes({HOSTILE!r})")
    assert page.eval("document.querySelectorAll('main img, main script').length") == 0
    assert page.eval("window.hacked") is None


@pytest.mark.exhaustive
def test_two_thousand_nodes_are_drawn_and_told_of(page: Page, address: str) -> None:
    page.goto(f"{address}/#/health")
    page.wait("!!document.querySelector('.plots')")
    numbers = page.eval(MANY)
    print(f"2,000 nodes of 100,000, ms per frame while the mouse moves and messages come: {numbers['frames']}")
    assert re.search(r"2,\d\d\d shown", numbers["figures"])
    assert "100,000" in numbers["figures"]
    assert numbers["asked"] == [2000]


MANY = """(async () => {
  const { html, render } = await import(new URL("page/vendor/standalone.mjs", document.baseURI));
  const { TreeView } = await import(new URL("page/tree.js", document.baseURI));
  const totals = { nodes: 100000, tokens: 2400000, device_pages: 150000, host_pages: 0, leased_pages: 20 };
  const states = ["cached", "cached", "leased", "pinned", "host"];
  const node = (id, parent) => ({
    id, parent, tokens: 16 + ((id * 37) % 200), state: states[id % 5], program: `p${id % 9}`, hits: 1, used: id % 60,
    hidden: id % 20 ? [0, 0] : [50, 4000],
  });
  const nodes = [{ ...node(1, null), namespace: "", tokens: 0 }];
  for (let id = 2; id <= 2000; id++) nodes.push(node(id, 1 + Math.floor((id - 2) / 4)));
  const events = { hit_tokens: 16, computed_tokens: 4, evicted_tokens: 0, demoted_tokens: 0 };
  const empty = { type: "tree", version: 1, full: false, page_size: 16, totals, nodes: [], removed: [], events };
  let send = null;
  const asked = [];
  const live = {
    status: "on",
    subscribe: (topic, { limit }, listener) => (topic === "tree" && (asked.push(limit), (send = listener)), () => {}),
  };
  const api = { get: async () => ({ text: null }) };
  const main = document.querySelector("main");
  main.replaceChildren();
  render(html`<${TreeView} api=${api} live=${live} about=${{}} />`, main);
  const frame = () => new Promise(requestAnimationFrame);
  while (!send) await frame();
  send({ ...empty, full: true, nodes });
  await frame(), await frame();
  const canvas = main.querySelector("canvas");
  const box = canvas.getBoundingClientRect();
  const times = [];
  for (let turn = 0, before = performance.now(); turn < 240; turn++) {
    const at = { clientX: box.x + ((7 * turn) % box.width), clientY: box.y + ((3 * turn) % box.height), bubbles: true };
    canvas.dispatchEvent(new PointerEvent("pointermove", at));
    const changed = [{ ...nodes[turn + 5], hits: 2 + turn }, node(5000 + turn, 20)];
    if (turn % 15 === 0) send({ ...empty, nodes: changed, removed: [4985 + turn] });
    await frame();
    times.push(performance.now() - before);
    before = performance.now();
  }
  times.sort((a, b) => a - b);
  const frames = [times[120], times[228]].map((time) => Math.round(10 * time) / 10);
  return { frames, figures: main.querySelector(".figures").innerText, asked };
})()"""


@pytest.mark.exhaustive
def test_another_eviction_is_compared_by_the_plan_log(page: Page, tmp_path: Path) -> None:
    """The sentence has the shares of the route."""
    with ramiform.Runtime(
        port=0, dtype="float32", num_pages=64, log_level="error", log_plans=str(tmp_path / "plans"), eviction="lru"
    ) as runtime:
        for number in [0, 0, 0, *range(6), *range(6)]:
            body = {"input_ids": [300 + number] * 200, "sampling_params": {"max_new_tokens": 2}}
            httpx.post(f"{runtime.url}/generate", json=body, timeout=120).raise_for_status()
        found = httpx.post(f"{runtime.url}/v1/ramiform/what-if", json={"eviction": "lfu"}, timeout=120).json()
        lru, lfu = (f"{100 * found[name]['recomputed_share']:.1f} %" for name in ("logged", "what_if"))
        assert lru != lfu
        page.goto(f"{runtime.url}/#/tree")
        page.click("button", "lfu")
        page.wait(
            "document.querySelector('.what-if [role=status]').textContent === "
            f"'lfu would have recomputed {lfu} of the prompt tokens, lru recomputed {lru}.'"
        )
