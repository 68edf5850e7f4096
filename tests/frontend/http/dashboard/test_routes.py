"""The page's files and facts: public files, private facts, strict headers."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from ramiform.runtime.frontend.http.dashboard.access import PageAccess, Viewer
from ramiform.runtime.frontend.http.dashboard.routes import PAGE_POLICY, read_files
from ramiform.runtime.frontend.http.middleware.auth import ApiKeys
from ramiform.runtime.frontend.records.log import OwnedRow, Owner
from ramiform.runtime.programs.records.view import ProgramRow

from ...harness import run
from ...served import check_error, served

MAX_BYTES = 265_000
BROWSER = {"accept": "text/html,*/*"}


def test_files_are_read_with_their_kinds_and_differ_by_content(tmp_path: Path) -> None:
    (tmp_path / "vendor").mkdir()
    (tmp_path / "index.html").write_text("<p>hi")
    (tmp_path / "app.js").write_text("1")
    (tmp_path / "vendor" / "lib.mjs").write_text("2")
    (tmp_path / "vendor" / "LICENSE").write_text("free")
    files = read_files(tmp_path)
    assert {name: file.media_type for name, file in files.items()} == {
        "index.html": "text/html",
        "app.js": "text/javascript",
        "vendor/lib.mjs": "text/javascript",
        "vendor/LICENSE": "text/plain",
    }
    assert len({file.etag for file in files.values()}) == 4
    before = files["app.js"].etag
    (tmp_path / "app.js").write_text("3")
    assert read_files(tmp_path)["app.js"].etag != before


def test_the_package_has_the_files_and_they_are_small() -> None:
    files = read_files(resources.files("ramiform.runtime.frontend.http.dashboard") / "static")
    assert {"index.html", "app.js", "live.js", "style.css"} <= set(files)
    assert sum(len(file.data) for name, file in files.items() if "LICENSE" not in name) <= MAX_BYTES


@pytest.mark.slow
def test_the_page_and_its_files_need_no_key_and_forbid_the_rest() -> None:
    async def main() -> None:
        async with served(api_key="one,two") as (_, client):
            page = await client.get("/", headers=BROWSER)
            assert page.status_code == 200
            assert page.headers["content-type"] == "text/html; charset=utf-8"
            script = await client.get("/page/app.js")
            assert script.headers["content-type"].startswith("text/javascript")
            for answer in (page, script):
                assert answer.headers["content-security-policy"] == PAGE_POLICY
                assert answer.headers["x-content-type-options"] == "nosniff"
            assert (await client.head("/")).status_code == 200
            for path in ("/page/nothing.js", "/page/../routes.py", "/page/%2e%2e/routes.py", "/page/"):
                assert (await client.get(path)).status_code in (401, 404)
            for path in ("about", "health", "tree", "tree/1"):
                check_error(await client.get(f"/v1/ramiform/{path}"), 401, None, "API key")
            assert (await client.post("/page/app.js")).status_code == 405

    run(main())


def test_the_page_has_no_script_or_style_of_its_own() -> None:
    text = (resources.files("ramiform.runtime.frontend.http.dashboard") / "static" / "index.html").read_text()
    assert "style=" not in text
    assert all(tag.startswith((' src="page/', ' type="module" src="page/')) for tag in text.split("<script")[1:])


@pytest.mark.slow
def test_a_file_that_is_known_is_not_sent_again() -> None:
    async def main() -> None:
        async with served() as (_, client):
            first = await client.get("/page/app.js")
            etag = first.headers["etag"]
            for known in (etag, f"W/{etag}", f'"x", {etag}', "*"):
                again = await client.get("/page/app.js", headers={"if-none-match": known})
                assert (again.status_code, again.content) == (304, b"")
                assert again.headers["etag"] == etag
            assert (await client.get("/page/app.js", headers={"if-none-match": '"other"'})).status_code == 200

    run(main())


@pytest.mark.slow
def test_facts_name_settings_but_no_secret() -> None:
    async def main() -> None:
        options = {"api_key": "sesame-1", "admin_key": "sesame-2", "max_body_mib": 7, "otlp_endpoint": None}
        async with served(**options) as (_, client):
            answer = await client.get("/v1/ramiform/about", headers={"authorization": "Bearer sesame-1"})
            about = answer.json()
            assert "sesame" not in answer.text
            assert about["flags"] == {"max_body_mib": 7}
            assert about["model"]["name"] == "fake"
            assert (about["has_chat"], about["texts"], about["plan_log"]) == (True, True, False)

    run(main())


@pytest.mark.slow
def test_without_the_page_there_is_none_of_its_routes() -> None:
    async def main() -> None:
        async with served(page=False) as (_, client):
            assert "fine" not in (await client.get("/", headers=BROWSER)).text
            assert "<script" not in (await client.get("/", headers=BROWSER)).text
            for path in ("/page/app.js", "/v1/ramiform/about", "/v1/ramiform/health"):
                assert (await client.get(path)).status_code == 404

    run(main())


OF_ONE, LOCAL = Owner("http", "one"), Owner("local")
ONE, TWO, ADMIN = Viewer("one", False), Viewer("two", False), Viewer("boss", True)


@pytest.mark.parametrize(
    ("texts", "own", "others_admin", "tree"),
    [("auto", True, False, False), ("on", True, True, True), ("off", False, False, False)],
)
def test_with_several_keys_a_key_reads_its_own(texts: str, own: bool, others_admin: bool, tree: bool) -> None:
    access = PageAccess(ApiKeys(["one", "two"], ["boss"]), texts)  # type: ignore[arg-type]
    assert access.sees(ONE, OF_ONE)
    assert access.reads(ONE, OF_ONE) == own
    assert not access.sees(TWO, OF_ONE)
    assert not access.reads(TWO, OF_ONE)
    assert not access.reads_tree(ONE, is_own=False)
    assert access.reads_tree(ONE, is_own=True) == own
    assert access.sees(ADMIN, OF_ONE)
    assert access.reads(ADMIN, OF_ONE) == access.names(ADMIN, OF_ONE) == others_admin
    assert access.reads_tree(ADMIN, is_own=False) == tree
    # A program over ZMQ has no key; nobody's None is its.
    assert not access.sees(Viewer(None, False), LOCAL)
    assert access.sees(ADMIN, LOCAL)


@pytest.mark.parametrize("texts", ["auto", "on", "off"])
def test_a_row_tells_texts_to_those_who_may_read_them(texts: str) -> None:
    access = PageAccess(ApiKeys(["one", "two"], ["boss"]), texts)  # type: ignore[arg-type]
    counts = dict.fromkeys(("states", "generations", "prompt_tokens", "cached_tokens", "completion_tokens"), 1)
    asked = ProgramRow(
        id="a", seq=1, title="ask", status="failed", began_at=0, seconds=0, **counts, error="it said", excerpt="secret"
    )
    for viewer in (ONE, TWO, ADMIN):
        shown = access.shown_row(viewer, OwnedRow(OF_ONE, asked))
        if viewer == TWO:
            assert shown is None
        elif access.reads(viewer, OF_ONE):
            assert shown == asked
        else:
            assert shown is not None
            assert (shown.excerpt, shown.error) == (None, "failed; texts are off")


@pytest.mark.parametrize("keys", [[], ["one"]])
@pytest.mark.parametrize("texts", ["auto", "on", "off"])
def test_a_single_user_sees_everything(keys: list[str], texts: str) -> None:
    access = PageAccess(ApiKeys(keys), texts)  # type: ignore[arg-type]
    viewer = Viewer(keys[0] if keys else None, True)
    assert access.sees(viewer, LOCAL)
    assert access.names(viewer, LOCAL)
    assert access.reads(viewer, LOCAL) == access.reads_tree(viewer, is_own=False) == (texts != "off")
