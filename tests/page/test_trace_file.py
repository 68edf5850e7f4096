"""A trace as one HTML file: it opens from disk, alone, and runs nothing that a program wrote."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

import ramiform
from ramiform.lang.tracing.page import STATIC, trace_page
from ramiform.runtime.programs.records.view import ProgramView, view_of

from .browser import Page
from .test_programs import BROKEN_LINE, CANVAS, HOSTILE, broken, cells, fan_out, figures, hostile, wait_for_paint


@pytest.fixture
def views(backend: ramiform.Runtime) -> list[ProgramView]:
    with ramiform.lang.operations.recording.record_all() as recordings:
        fan_out.run("File.")
        hostile.run()
        with pytest.raises(ramiform.RamiformError):
            broken.run()
    return [view_of(ramiform.lang.tracing.trace.trace_of(recording)) for recording in recordings]


def test_the_page_is_small_with_its_libraries_and_their_licences() -> None:
    files = [file for file in STATIC.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 256 << 10
    assert {file.stem for file in files if file.suffix == ".LICENSE"} == {"htm", "preact"}  # both in standalone.mjs


def test_it_opens_from_disk_without_a_server(page: Page, views: list[ProgramView], tmp_path: Path) -> None:
    page.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0)
    file = tmp_path / "one.html"
    file.write_text(trace_page(views[:1]), encoding="utf-8")
    page.goto(file.as_uri())
    page.wait("document.querySelectorAll('.timeline .name').length === 9")
    wait_for_paint(page, CANVAS, colours=6)
    shown = figures(page)
    assert shown["prompt tokens"] == f"{views[0].prompt_tokens:,}"
    assert shown["output tokens"] == str(views[0].completion_tokens)
    assert page.eval("performance.getEntriesByType('resource').length") == 0
    page.prefer(scheme="dark")
    page.click("button", "Light theme")


def test_several_programs_are_listed_opened_and_compared(page: Page, views: list[ProgramView], tmp_path: Path) -> None:
    file = tmp_path / "three.html"
    file.write_text(trace_page(views), encoding="utf-8")
    page.goto(file.as_uri())
    page.wait("document.querySelectorAll('.vtable tbody a').length === 3")
    assert page.texts(".vtable tbody a") == ["fan_out", "hostile", "broken"]
    page.click(".vtable tbody a", "broken")
    page.wait(f"!!document.querySelector({CANVAS!r})")
    assert f"Failed at test_programs.py:{BROKEN_LINE}" in page.text("[role=alert]")
    [red] = page.texts(".vtable tr.failed")
    assert red.startswith(f"test_programs.py:{BROKEN_LINE}")
    assert len(cells(page, "Totals by source line")) == len(views[2].lines)
    page.eval("location.hash = '#/programs/1?with=2'")
    page.wait(f"document.querySelectorAll({CANVAS!r}).length === 2")


def test_what_programs_wrote_is_text(page: Page, views: list[ProgramView], tmp_path: Path) -> None:
    ends = "</script><script>window.hacked=1</script><!-- <script> \ud800 \u2028 {title}"
    view = msgspec.structs.replace(views[1], title=f"{HOSTILE}{ends}", error=ends, status="failed")
    file = tmp_path / "hostile.html"
    file.write_text(trace_page([view]), encoding="utf-8")
    page.goto(file.as_uri())
    page.wait(f"!!document.querySelector({CANVAS!r})")
    assert HOSTILE in page.text("h2")
    assert "</script><script>window.hacked=1</script><!--" in page.text("[role=alert]")
    page.click("button", "Table")
    page.wait(f"document.querySelector('main').innerText.includes({HOSTILE!r})")
    assert page.eval("document.querySelectorAll('main img, main script').length") == 0
    assert page.eval("window.hacked") is None


def test_its_policy_lets_no_other_script_run(views: list[ProgramView], page: Page, tmp_path: Path) -> None:
    content = trace_page(views)
    [policy] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', content)
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert not re.findall(r"(?:src|href)\s*=\s*[\"']?(?:https?:)?//", content.partition("<script")[0])
    file = tmp_path / "more.html"
    file.write_text(content.replace("</body>", "<script>window.hacked=1</script></body>"), encoding="utf-8")
    page.goto(file.as_uri())
    page.wait("!!document.querySelector('.vtable')")
    assert page.eval("window.hacked") is None
    assert any("Content Security Policy" in problem for problem in page.problems)
    page.problems.clear()
