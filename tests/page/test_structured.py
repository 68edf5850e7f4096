"""The editor of constraints: errors with a caret, the report, and the live mask, judged by the server's own answers."""

from __future__ import annotations

import json
import re

import httpx
import pytest

from .browser import Page
from .test_chat import ANSWERED
from .test_strip import stored

STATUS = "document.querySelector('.badge[role=status]').innerText"
COMPILES = f"{STATUS}.startsWith('compiles')"
CHECKED = "document.querySelector('.mask')?.getAttribute('aria-busy') === 'false'"


def open_editor(page: Page, home: str, kind: str = "JSON Schema", source: str | None = None) -> None:
    page.goto(home + "#/structured")
    page.click(".segmented button", kind)
    if source is not None:
        page.fill("[name=source]", source)


def under_caret(page: Page) -> str:
    """Return the text that stands over the caret: from its column on."""
    page.wait("!!document.querySelector('.source .caret-mark')")
    line, caret = page.eval("document.querySelector('.source .caret-error pre').textContent").split("\n")
    return str(line[caret.index("^") :])


@pytest.mark.parametrize(
    ("kind", "source", "offending"),
    [
        ("JSON Schema", '{"type": "objec"}', '"objec"'),
        ("JSON Schema", '{\n  "type": "object",\n  "properties": {"aé😀": {"type": 7}}\n}', "7"),
        ("JSON Schema", '{"type": "object" "a"}', '"a"'),
        ("Regex", "abc(def", "(def"),
        ("Grammar", 'root ::= "a" foo\n', "foo"),
    ],
)
def test_an_error_has_its_caret_under_the_offending_text(
    page: Page, home: str, kind: str, source: str, offending: str
) -> None:
    open_editor(page, home, kind, source)
    assert under_caret(page).startswith(offending)
    assert page.eval("document.querySelector('.mirror mark').textContent")[0] == offending[0]
    assert page.eval(STATUS) == "does not compile"
    assert page.eval("document.querySelector('[name=source]').getAttribute('aria-invalid')") == "true"


@pytest.mark.exhaustive
def test_a_caret_is_in_view_on_a_long_line(page: Page, home: str) -> None:
    choices = ", ".join(f'"choice number {number}"' for number in range(40))
    open_editor(page, home, "JSON Schema", f'{{"enum": [{choices}], "type": "strin", "title": "{"x" * 200}"}}')
    assert under_caret(page).startswith('"strin"')
    assert len(page.eval("document.querySelector('.source .caret-error pre').textContent").split("\n")[0]) < 90


@pytest.mark.exhaustive
def test_an_error_goes_away_while_typing(page: Page, home: str) -> None:
    open_editor(page, home, "Regex", "(a")
    under_caret(page)
    page.eval("document.querySelector('[name=source]').setSelectionRange(2, 2)")
    page.call("Input.insertText", text=")")
    page.wait(COMPILES)
    assert page.eval("document.querySelector('.source .caret-mark')") is None


@pytest.mark.exhaustive
def test_only_the_last_of_several_keys_is_checked(page: Page, home: str) -> None:
    open_editor(page, home, "Regex", "a")
    page.wait(COMPILES)
    page.eval(
        """(() => {
          window.checks = 0;
          const send = window.fetch;
          window.fetch = (url, options) => {
            window.checks += String(url).includes("constraint");
            return send(url, options);
          };
        })()"""
    )
    for key in "bcdefgh":
        page.call("Input.insertText", text=key)
    page.wait("window.checks > 0")
    page.wait(COMPILES)
    assert page.eval("window.checks") < 7


def test_the_report_tells_what_is_enforced_and_what_is_not(page: Page, home: str, url: str) -> None:
    source = '{"type": "string", "pattern": "^a+$", "default": "a", "not": {"pattern": "b(?=c)"}}'
    open_editor(page, home, "JSON Schema", source)
    page.wait("!!document.querySelector('.report')")
    page.eval("document.querySelector('.report').open = true")
    told = httpx.post(
        f"{url}/v1/ramiform/constraint", json={"constraint": {"json_schema": source}}, timeout=120
    ).json()["report"]
    assert {line["status"] for line in told} > {"enforced"}
    rows = "[...document.querySelectorAll('.report tbody tr')]"
    shown = page.eval(f"{rows}.map((row) => [...row.cells].map((cell) => cell.textContent))")
    assert sorted(shown) == sorted(
        [line["pointer"] or "#", line["keyword"], line["status"], line["note"]] for line in told
    )


@pytest.mark.exhaustive
def test_the_mask_shows_what_may_come_after_the_text(page: Page, home: str, url: str) -> None:
    open_editor(page, home, "Choices", "yes\nyesterday\nno")
    page.fill("[name=text]", "yes")
    page.wait("document.querySelector('.mask')?.innerText.includes('the text may end here')")
    body = {"constraint": {"choices": ["yes", "yesterday", "no"]}, "text": "yes", "top": 64}
    state = httpx.post(f"{url}/v1/ramiform/constraint", json=body, timeout=120).json()["state"]
    assert page.texts(".mask .columns .chip") == [token["text"] for token in state["tokens"]]
    assert state["allowed"] > 1


@pytest.mark.exhaustive
def test_a_text_is_stepped_through_by_slider_buttons_and_tokens(page: Page, home: str) -> None:
    open_editor(page, home, "Choices", "yes\nyesterday\nno")
    page.fill("[name=text]", "yesterday")
    page.wait("document.querySelector('.mask')?.innerText.includes('the text may end here')")
    page.eval(
        """(() => { const it = document.querySelector("[name=cursor]"); it.value = 4;
             it.dispatchEvent(new Event("input", {bubbles: true})); })()"""
    )
    page.wait("document.querySelector('.mask')?.innerText.includes('must follow')")
    assert page.text(".stepped").startswith("yest")
    for _ in range(4):
        page.click("[aria-label='One character back']")
    page.wait(f"{CHECKED} && document.querySelector('[name=cursor]').value === '0'")
    assert "may not end" in page.text(".mask")
    # Tokens append: the constraint is followed by hand to its end.
    page.click(".mask .columns .chip", "n")
    page.wait("document.querySelector('[name=text]').value.startsWith('n')")
    if page.eval("document.querySelector('[name=text]').value") == "n":
        page.wait(CHECKED)
        page.click(".mask .chip", "o")
    page.wait("document.querySelector('.mask')?.innerText.includes('the text may end here')")
    assert page.eval("document.querySelector('[name=text]').value") == "no"


@pytest.mark.exhaustive
def test_a_text_that_leaves_the_constraint_has_a_caret_there(page: Page, home: str) -> None:
    open_editor(page, home, "Regex", "[0-9]{3}-é[a-c]+")
    page.fill("[name=text]", "123-éabx")
    page.wait("!!document.querySelector('.stepper .caret-mark')")
    line, caret = page.eval("document.querySelector('.stepper .caret-error pre').textContent").split("\n")
    assert line[caret.index("^")] == "x"
    assert re.search("Possible: .*a", page.text(".stepper .caret-error span"))


@pytest.mark.exhaustive
def test_an_answer_under_a_schema_is_a_tree_and_can_be_stepped_through(page: Page, home: str) -> None:
    schema = {
        "type": "object",
        "properties": {"kind": {"enum": ["city", "river"]}},
        "required": ["kind"],
        "additionalProperties": False,
    }
    open_editor(page, home, "JSON Schema", json.dumps(schema))
    page.fill("[name=prompt]", "What is Paris?")
    page.press("Control+Enter")
    page.wait(ANSWERED)
    [answer] = stored(page, "structured")
    assert json.loads(answer["text"])["kind"] in ("city", "river")
    assert answer["request"]["body"]["response_format"]["json_schema"]["schema"] == schema
    assert page.texts(".answer .json-key") == ["kind"]
    page.click(".answer button", "Tokens")
    page.click(".strip .chip[data-index='0']")
    page.click(".popover button", "What was allowed here?")
    page.wait("!!document.querySelector('.popover .mask .chip')")
    page.press("Escape")
    page.wait("!document.querySelector('.popover')")
    page.click(".answer button", "Step through")
    page.wait(f"document.querySelector('[name=text]').value === {json.dumps(answer['text'])}")
    page.wait("document.querySelector('.mask')?.innerText.includes('may not end')")


def test_a_schema_that_json_values_would_change_is_sent_as_text(page: Page, home: str) -> None:
    source = (
        '{"type": "object", "properties": {"b": {"const": 9007199254740993}, "1": {"const": 1}}, "required": ["b"]}'
    )
    open_editor(page, home, "JSON Schema", source)
    page.fill("[name=prompt]", "Go")
    page.press("Control+Enter")
    page.wait(ANSWERED)
    [answer] = stored(page, "structured")
    assert answer["request"]["body"]["json_schema"] == source
    assert "9007199254740993" in answer["text"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["JSON Schema", "Regex", "Grammar", "Choices", "Structural tag"])
def test_the_example_of_every_kind_compiles_and_holds(page: Page, home: str, url: str, kind: str) -> None:
    open_editor(page, home, kind)
    page.wait(COMPILES)
    page.fill("[name=max_tokens]", "40")
    page.press("/")
    page.press("Control+Enter")
    page.wait(ANSWERED)
    [answer] = stored(page, "structured")
    assert answer["error"] is None
    source = page.eval("document.querySelector('[name=source]').value")
    field = {"JSON Schema": "json_schema", "Regex": "regex", "Grammar": "grammar", "Structural tag": "structural_tag"}
    constraint = {field[kind]: source} if kind in field else {"choices": source.split("\n")}
    asked = {"constraint": constraint, "text": answer["text"]}
    told = httpx.post(f"{url}/v1/ramiform/constraint", json=asked, timeout=120).json()
    assert "rejected_at" not in told
    assert told["state"]["accepts"] or answer["finish"] == "length"
