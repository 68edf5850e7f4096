"""Programs in the page: the list, the timeline, totals by line, failures, two runs side by side, trace files."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

import ramiform
from ramiform import ProgramState, gen
from ramiform.lang.tracing import trace as traces

from .browser import Page

TOWN = "The town of Velburg lies on the river Ane. It has a mill, a school and a market. " * 3
ACTION = r" (calculate\(\d{1,5} [-+*] \d{1,5}\)|finish\[\d{1,7}\])"
HOSTILE = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>"
TABLE = ".vtable[aria-label='{}'] tbody tr:not(.space)"
CANVAS = ".timeline canvas"


@ramiform.function
def fan_out(s: ProgramState, question: str) -> None:
    s += f"{question} {TOWN}\n"
    branches = s.fork(8)
    for number, branch in enumerate(branches):
        branch += f"Question {number}: what is there?\nAnswer:"
        branch += gen("answer", max_tokens=6, ignore_eos=True)
    s += "".join(branch["answer"] for branch in branches)


@ramiform.function
def react(s: ProgramState, question: str) -> None:
    s += "Answer the question in steps. Use calculate(expression) for arithmetic and finish[answer] to end.\n\n"
    s += f"Question: {question}\n"
    for number in (1, 2):
        s += f"Thought {number}:" + gen("thought", max_tokens=24, stop="\n")
        s += f"\nAction {number}:" + gen("action", max_tokens=24, regex=ACTION)
        time.sleep(0.02)
        s += f"\nObservation {number}: 85\n"


@ramiform.function
def broken(s: ProgramState) -> None:
    s += "Name a colour:"
    s += gen("colour", max_tokens=3)
    s += gen("shape", regex="(", max_tokens=3)  # fails here
    s.sync()


BROKEN_LINE = next(
    number for number, line in enumerate(Path(__file__).read_text().splitlines(), 1) if line.endswith("# fails here")
)


@ramiform.function
def hostile(s: ProgramState) -> None:
    s += HOSTILE
    s += gen(HOSTILE, regex=re.escape(HOSTILE), max_tokens=200)


def newest(url: str, title: str) -> dict[str, Any]:
    """The row of the program of a title that began last, once it has ended."""
    while True:  # the test's own timeout ends this
        rows = httpx.get(f"{url}/v1/ramiform/programs").json()["programs"]
        found: dict[str, Any] | None = next((row for row in rows if row["title"] == title), None)
        if found is not None and found["status"] != "running":
            return found
        time.sleep(0.05)


def open_program(page: Page, home: str, id: str) -> None:
    page.goto("about:blank")
    page.goto(f"{home}#/programs/{id}")
    page.wait(f"!!document.querySelector({CANVAS!r})")


def cells(page: Page, table: str) -> list[list[str]]:
    """The texts of the table rows that are in the document."""
    found: list[list[str]] = page.eval(
        f"[...document.querySelectorAll({TABLE.format(table)!r})]"
        ".map((row) => [...row.cells].map((cell) => cell.innerText.trim()))"
    )
    return found


def figures(page: Page) -> dict[str, str]:
    """The totals of a program, by their names."""
    found: dict[str, str] = page.eval(
        "Object.fromEntries([...document.querySelectorAll('.figures div')].map((one) => ["
        "one.querySelector('dt').innerText, one.querySelector('dd').innerText]))"
    )
    return found


def wait_for_paint(page: Page, selector: str, colours: int) -> None:
    """Wait until a canvas has so many colours."""
    page.wait(
        f"""(() => {{
          const it = document.querySelector({selector!r});
          if (!it?.width) return false;
          const data = new Uint32Array(it.getContext("2d").getImageData(0, 0, it.width, it.height).data.buffer);
          return new Set(data.filter((pixel) => pixel >>> 24 === 255)).size >= {colours};
        }})()"""
    )


def test_eight_branches_stand_below_the_program_that_forked_them(
    page: Page, home: str, url: str, backend: ramiform.Runtime
) -> None:
    state = fan_out.run("Fan.", trace=True)
    row = newest(url, "fan_out")
    page.goto(home + "#/programs")
    page.click(f"a[href='#/programs/{row['id']}']")
    page.wait("document.querySelectorAll('.timeline .name').length === 9")
    names = page.texts(".timeline .name")
    assert [name.split()[-2:] for name in names] == [["▾", "program"], *[["branch", str(at)] for at in range(8)]]
    assert page.eval("[...document.querySelectorAll('.timeline .name')].map((one) => one.ariaLevel)") == [
        "1",
        *"22222222",
    ]
    wait_for_paint(page, CANVAS, colours=6)  # bands of several causes
    # What it tells is what the client's own trace tells.
    tokens = state.trace.tokens
    shown = figures(page)
    assert (shown["states"], shown["generations"]) == ("9", "8")
    assert shown["prompt tokens"] == f"{tokens.prompt:,}"
    assert shown["cached"] == f"{round(100 * tokens.cached / tokens.prompt)} %"
    assert shown["output tokens"] == str(tokens.completion)
    page.click("button[aria-label='Hide branches']")
    page.wait("document.querySelectorAll('.timeline .name').length === 1")


def test_a_react_program_is_listed_and_its_operations_are_found_by_keys(
    page: Page, home: str, url: str, backend: ramiform.Runtime
) -> None:
    state = react.run("What is 251 plus 138?", trace=True, seed=5)
    row = newest(url, "react")
    tokens = state.trace.tokens
    page.goto(home + "#/programs")
    page.fill("[type=search]", "reac")
    page.wait("new Set([...document.querySelectorAll('.vtable tbody a')].map((one) => one.innerText)).size === 1")
    listed = cells(page, "Programs")[0]
    assert listed[2].startswith("react ")  # and what it asks
    assert listed[1].endswith("done")
    assert listed[5:8] == ["1", "4", str(tokens.prompt)]
    assert listed[9] == str(tokens.completion)

    open_program(page, home, row["id"])
    page.eval(f"document.querySelector({CANVAS!r}).focus()")
    seen = ""
    for _ in range(60):
        page.press("ArrowRight")
        seen = page.wait("document.querySelector('.details .row b') && document.querySelector('.details').innerText")
        if seen.startswith("thought") and "decode:" in seen:
            break
    assert state.trace.variables["thought"][0].strip() in seen
    assert f"test_programs.py:{react_line('thought')}" in seen
    page.press("Enter")
    page.wait("!document.querySelector('[title=\"Show all (0)\"]').disabled")
    page.press("0")
    page.wait("document.querySelector('[title=\"Show all (0)\"]').disabled")
    page.press("Escape")
    page.wait("document.querySelector('.details').innerText.includes('No operation')")

    page.click("button", "Table")
    page.wait(f"document.querySelectorAll({TABLE.format('Operations')!r}).length === {len(state.trace.events)}")
    operations = cells(page, "Operations")
    generated = [event for event in state.trace.events if event.kind == "gen"]
    assert [one[1] for one in operations if one[1] in ("thought", "action")] == [event.name for event in generated]
    counts = [one[10:13] for one in operations if one[12]]
    assert counts == [
        [str(one.tokens.prompt), str(one.tokens.cached), str(one.tokens.completion)] for one in generated if one.tokens
    ]


def react_line(name: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if f'gen("{name}"' in line and "Thought" in line)


def test_a_failed_program_is_red_at_its_line(page: Page, home: str, url: str, backend: ramiform.Runtime) -> None:
    with pytest.raises(ramiform.RamiformError, match="invalid regex"):
        broken.run()
    row = newest(url, "broken")
    place = f"test_programs.py:{BROKEN_LINE}"
    assert row["status"] == "failed"
    page.goto(home + "#/programs")
    page.wait(f"!!document.querySelector('tr.failed a[href=\"#/programs/{row['id']}\"]')")
    assert place in page.text("tr.failed .bad-text")
    open_program(page, home, row["id"])
    alert = page.text("[role=alert]")
    assert f"Failed at {place}" in alert
    assert 's += gen("shape"' in alert
    assert "never closed" in alert
    assert [one[0] for one in cells(page, "Totals by source line") if "regex" in one[1]] == [place]
    red = page.eval("getComputedStyle(document.querySelector('.vtable tr.failed')).color")
    assert red == page.eval("getComputedStyle(document.querySelector('[role=alert]')).color")
    assert page.text(".vtable tr.failed").startswith(place)
    assert page.eval("document.querySelectorAll('.vtable tr.failed').length") == 1
    assert "✕" in page.text(".timeline .name")


def test_two_runs_stand_side_by_side(page: Page, home: str, url: str, backend: ramiform.Runtime) -> None:
    fan_out.run("One.")
    first = newest(url, "fan_out")
    fan_out.run("Two and a longer one.")
    second = newest(url, "fan_out")
    assert first["id"] != second["id"]
    page.goto(home + "#/programs")
    for row, begin in ((first, "One. The town"), (second, "Two and a longer one. The town")):
        title = f"a[href='#/programs/{row['id']}']"
        page.wait(f"!!document.querySelector({title!r})")
        assert page.text(f"{title} + span").startswith(begin)
    for row in (first, second):
        page.wait(f"!!document.querySelector('a[href=\"#/programs/{row['id']}\"]')")
        page.eval(
            f"document.querySelector('a[href=\"#/programs/{row['id']}\"]').closest('tr').querySelector('input').click()"
        )
    page.wait("!document.querySelector('button[title^=Mark]').disabled")
    page.click("button", "Compare")
    page.wait(f"document.querySelectorAll({CANVAS!r}).length === 2")
    found = page.eval(
        "[...document.querySelectorAll('.totals tbody tr')].map((row) => [...row.cells].map((cell) => cell.innerText))"
    )
    totals = {name: numbers for name, *numbers in found}
    change = second["prompt_tokens"] - first["prompt_tokens"]
    assert totals["prompt tokens"] == [f"{first['prompt_tokens']:,}", f"{second['prompt_tokens']:,}", f"+{change}"]
    lines = cells(page, "Differences")
    assert len(lines) == len({line[1] for line in lines}), "each line once"
    page.click("button", "By branch")
    page.wait("document.querySelectorAll('.vtable tr.branch').length >= 9")
    names = page.texts(".vtable tr.branch td:first-child")
    assert [name.strip() for name in names] == ["program", *[f"branch {at}" for at in range(8)]]


@pytest.mark.exhaustive
def test_a_saved_trace_is_read_by_the_page_and_by_ramiform(
    page: Page, home: str, url: str, backend: ramiform.Runtime, tmp_path: Path
) -> None:
    state = react.run("What is 40 plus 2?", trace=True)
    row = newest(url, "react")
    open_program(page, home, row["id"])
    before = figures(page), cells(page, "Totals by source line")
    page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.click("button", "Save trace")
    saved = tmp_path / "react.json"
    deadline = time.monotonic() + 30
    while not saved.exists():
        assert time.monotonic() < deadline, list(tmp_path.iterdir())
        time.sleep(0.05)
    [loaded] = traces.load(saved)
    assert loaded.variables == state.trace.variables
    assert loaded.tokens == state.trace.tokens

    own = tmp_path / "own.json"
    state.trace.save(own)
    for file in (saved, own):
        open_file(page, home, file)
        page.wait(f"!!document.querySelector({CANVAS!r})")
        now, lines = figures(page), cells(page, "Totals by source line")
        assert {**now, "time": ""} == {**before[0], "time": ""}
        if file == saved:
            assert (now, lines) == before
        else:  # the client's own clock: the same lines and tokens
            assert [line[:2] + line[4:] for line in lines] == [line[:2] + line[4:] for line in before[1]]
    (tmp_path / "not.json").write_text('{"ramiform": 1}')
    open_file(page, home, tmp_path / "not.json")
    page.wait("document.querySelector('[role=alert]')?.innerText.includes('not a trace')")
    odd = {"number": 0, "parent": None, "events": [None], "spans": []}
    strange = {"title": "strange", "lines": [], "states": [odd]}
    (tmp_path / "strange.json").write_text(json.dumps({"programs": [strange]}))
    open_file(page, home, tmp_path / "strange.json")
    page.wait("document.querySelector('[role=alert]')?.innerText.includes('cannot be shown')")
    page.click("a", "All programs")
    page.wait("document.querySelectorAll('.vtable tbody a').length > 1")


def open_file(page: Page, home: str, file: Path) -> None:
    page.eval("location.hash = '#/programs'")
    page.wait("!!document.querySelector('input[type=file]')")
    document = page.call("DOM.getDocument")["root"]["nodeId"]
    node = page.call("DOM.querySelector", nodeId=document, selector="input[type=file]")["nodeId"]
    page.call("DOM.setFileInputFiles", nodeId=node, files=[str(file)])


@ramiform.function
def in_steps(s: ProgramState, go_on: list[threading.Event]) -> None:
    for number, event in enumerate(go_on):
        s += f"Step {number}:" + gen("step", max_tokens=3, ignore_eos=True)
        s.sync()
        event.wait(120)


@pytest.mark.exhaustive
def test_a_running_program_is_shown_as_it_goes(page: Page, home: str, url: str, backend: ramiform.Runtime) -> None:
    page.goto(home + "#/programs")
    page.wait("!!document.querySelector('.vtable')")
    go_on = [threading.Event(), threading.Event()]
    thread = threading.Thread(target=in_steps.run, args=(go_on,))
    thread.start()
    try:
        listed = "[...document.querySelectorAll('.vtable tbody tr')].find((row) => row.innerText.includes('in_steps'))"
        page.wait(f"{listed}?.innerText.includes('running')")
        page.eval(f"{listed}.querySelector('a').click()")
        page.wait("document.querySelector('.figures')?.innerText.includes('1\\ngenerations')")
        go_on[0].set()
        page.wait("document.querySelector('.figures').innerText.includes('2\\ngenerations')")
        assert "running" in page.text("h2 + .status")
        go_on[1].set()
        page.wait("document.querySelector('h2 + .status').innerText.includes('done')")
    finally:
        for event in go_on:
            event.set()
        thread.join()
    page.eval("location.hash = '#/programs'")
    page.wait(f"{listed}?.innerText.includes('done')")


def test_hostile_names_and_outputs_are_text(page: Page, home: str, url: str, backend: ramiform.Runtime) -> None:
    state = hostile.run()
    assert state[HOSTILE] == HOSTILE
    open_program(page, home, newest(url, "hostile")["id"])
    page.eval(f"document.querySelector({CANVAS!r}).focus()")
    for _ in range(20):
        page.press("ArrowRight")
        if page.text(".details .row b") == HOSTILE:
            break
    assert page.text(".details .row b") == HOSTILE
    assert page.text(".details pre.text") == HOSTILE
    page.click("button", "Table")
    page.wait(f"document.body.innerText.includes({HOSTILE!r})")
    assert page.eval("document.querySelectorAll('main img, main script').length") == 0
    assert page.eval("window.hacked") is None


@pytest.mark.exhaustive
def test_ten_thousand_rows_stay_few_in_the_document(page: Page, home: str) -> None:
    page.goto(home + "#/health")
    page.wait("!!document.querySelector('.plots')")
    numbers = page.eval(SCROLL)
    print(f"10,000 programs, ms per frame while scrolling: {numbers['frames']}")
    assert numbers["listed"] == 10_000
    assert numbers["rows"] < 80
    assert numbers["last"] == "program 0"


SCROLL = """(async () => {
  const { html, render } = await import(new URL("page/vendor/standalone.mjs", document.baseURI));
  const { ProgramsView } = await import(new URL("page/programs.js", document.baseURI));
  const row = (seq) => ({
    id: `p${seq}`, seq, kind: "program", title: `program ${seq}`, status: seq % 7 ? "done" : "failed",
    began_at: 1.7e9 + seq, seconds: seq / 1e3, states: 9, generations: 8, prompt_tokens: seq, cached_tokens: seq >> 1,
    completion_tokens: 60, error: seq % 7 ? null : "it failed", place: "a.py:3",
  });
  const get = async (path) => {
    const before = Number(new URL(path, "http://x/").searchParams.get("before") ?? 10000);
    const programs = Array.from({ length: Math.min(200, before) }, (_, index) => row(before - 1 - index));
    return { programs, kept: 10000, dropped: 0 };
  };
  const route = { id: null, query: new URLSearchParams() };
  const main = document.querySelector("main");
  main.replaceChildren();
  render(html`<${ProgramsView} route=${route} api=${{ get }} live=${null} setRoute=${() => {}} />`, main);
  const frame = () => new Promise(requestAnimationFrame);
  const box = () => main.querySelector(".vtable");
  const listed = () => (box()?.querySelector("table").ariaRowCount ?? 1) - 1;
  for (let turn = 0; turn < 2000 && listed() < 10000; turn++) {
    if (box()) box().scrollTop = box().scrollHeight;
    await frame();
  }
  box().scrollTop = box().scrollHeight;
  await frame(), await frame(), await frame();
  const last = [...box().querySelectorAll("tbody a")].at(-1).innerText;
  const frames = {};
  for (const speed of [140, 1400]) {
    box().scrollTop = 0;
    await frame();
    const times = [];
    for (let turn = 0, before = performance.now(); turn < 120; turn++) {
      box().scrollTop += speed;
      await frame();
      times.push(performance.now() - before);
      before = performance.now();
    }
    times.sort((a, b) => a - b);
    frames[`${speed} px`] = [times[60], times[114]].map((time) => Math.round(10 * time) / 10);
  }
  return { listed: listed(), last, rows: box().querySelectorAll("tbody tr").length, frames };
})()"""
