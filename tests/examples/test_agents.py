"""Every example runs by its documented command and gives a true answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

import ramiform

ROOT = Path(ramiform.__file__).parent
RAMIFORM = str(Path(sys.executable).parent / "ramiform")
OUTPUTS = ROOT / "examples/agents/outputs"  # what the examples print, for the gallery of the site
# They draw without a seed, or print times.
SAMPLED = {"beam_search.py", "early_tools.py", "extract.py", "optimisation.py", "self_consistency.py",
           "tree_of_thought.py"}  # fmt: skip
FIGURES = re.compile(r"^.*(prompt tokens from the cache|prompt tokens, ).*$\n?", re.MULTILINE)


def run_example(runtime: ramiform.Runtime, name: str, *arguments: str, typed: str = "") -> str:
    """Run an example by its command and return what it prints: without arguments, what the gallery shows."""
    done = subprocess.run(
        [RAMIFORM, "run", "--address", runtime.address, str(ROOT / "examples/agents" / name), *arguments],
        capture_output=True,
        text=True,
        timeout=500,
        input=typed,
    )
    assert done.returncode == 0, done.stderr
    if not arguments and name not in SAMPLED:
        shown = (OUTPUTS / name).with_suffix(".txt").read_text("utf-8")
        assert FIGURES.sub("", done.stdout) == FIGURES.sub("", shown), f"{OUTPUTS} shows what examples printed once"
    return done.stdout


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ((), "96"),
        (("How many legs do 31 ants have?",), "186"),
        (("What is the capital of Japan?",), "Tokyo"),
        (("What is 382 plus 417?",), "799"),
    ],
)
def test_react_uses_its_tools_and_answers(runtime: ramiform.Runtime, arguments: tuple[str, ...], answer: str) -> None:
    printed = run_example(runtime, "react.py", *arguments)
    assert printed.rstrip().endswith(f"Answer: {answer}")
    assert re.search(r"\d+ tokens in \d+ calls, \d+ of \d+ prompt tokens from the cache, \d+ tok/s", printed)


@pytest.mark.exhaustive
def test_extract_fills_typed_records_with_what_the_texts_say(runtime: ramiform.Runtime) -> None:
    printed = run_example(runtime, "extract.py")
    records, again = (
        re.sub(r"\s|│", "", re.sub(r" *generated again: .*", "", printed)),
        printed.count("generated again"),
    )
    assert "Order(order_id='XK4071',item='lamp',quantity=3,price=Decimal('49.95'),customer=Person(" in records
    assert (
        "type='lecture',date=datetime.date(2026,12,5),guests=64,host=Person(name='MarcusLind',city='Oslo'))" in records
    )
    assert (
        "type='concert',date=datetime.date(2026,6,6),guests=120,host=Person(name='NadiaHaddad',city='Cairo'))"
        in records
    )
    assert printed.count("the text does not tell of") == again


@pytest.mark.exhaustive
def test_searches_find_what_a_single_sample_misses(runtime: ramiform.Runtime) -> None:
    table = rows(run_example(runtime, "beam_search.py"))
    assert len(table) == 4
    for _, right, _, beam, vote, counted in table:
        assert beam == vote == right
        assert 5 <= int(counted.removesuffix(" of 9")) <= 9
    assert any(sample != right for _, right, sample, *_ in table)
    assert any(counted != "9 of 9" for *_, counted in table), "votes that could not change the result are not awaited"


@pytest.mark.exhaustive
def test_early_tools_change_no_answer(runtime: ramiform.Runtime) -> None:
    printed = run_example(runtime, "early_tools.py").splitlines()
    assert printed[0].startswith("Oslo: It is set to Oslo, with 4 degrees.")
    assert printed[-1].startswith("7 calls for 8 questions")  # the second question about Oslo makes no call


@pytest.mark.exhaustive
def test_an_agent_answers_a_chat_with_the_tools_that_it_needs(runtime: ramiform.Runtime) -> None:
    printed = run_example(runtime, "agent.py")
    assert printed[printed.index("What is the weather in Oslo? get") :].splitlines() == [
        "What is the weather in Oslo? get_weather('Oslo')",
        "  It is snowy in Oslo, with 4 degrees. (answer after 2 steps)",
        "What is 37 times 12? multiply(37, 12)",
        "  37 times 12 is 444. (answer after 2 steps)",
        "Add 250 and 78. add(250, 78)",
        "  250 plus 78 is 328. (answer after 2 steps)",
        "Set a timer for 25 minutes. set_timer(25)",
        "  The timer is set for 25 minutes. (answer after 2 steps)",
        "Thank you!",
        "  You are welcome! (answer after 1 steps)",
    ]


@pytest.mark.exhaustive
def test_mcp_tool_answers_with_the_tools_of_a_server(runtime: ramiform.Runtime) -> None:
    pytest.importorskip("mcp", reason="the extra mcp")
    assert run_example(runtime, "mcp_tool.py").splitlines() == [
        "tools of the server: add, multiply",
        "What is 37 times 12?",
        """  multiply{'a': 37, 'b': 12} -> {"result":444}""",
        "  37 times 12 is 444.",
        "Add 250 and 78.",
        """  add{'a': 250, 'b': 78} -> {"result":328}""",
        "  250 plus 78 is 328.",
    ]


@pytest.mark.slow
def test_a_batch_without_a_file_says_how_it_is_called() -> None:
    file = ROOT / "examples/agents/checkpointed_batch.py"
    done = subprocess.run([sys.executable, "-P", file], capture_output=True, text=True, timeout=300)
    assert done.stderr.startswith("usage: checkpointed_batch.py FILE: the answers are kept in FILE")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)


@pytest.mark.exhaustive
def test_a_batch_that_is_killed_goes_on_from_its_checkpoint(runtime: ramiform.Runtime, tmp_path: Path) -> None:
    kept = tmp_path / "batch.jsonl"
    file = ROOT / "examples/agents/checkpointed_batch.py"
    command = [RAMIFORM, "run", "--address", runtime.address, str(file), str(kept)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seen = [process.stdout.readline() for _ in range(4)]
        process.kill()
    assert process.returncode == -signal.SIGKILL
    before = kept.read_text().rpartition("\n")[0] + "\n"  # the last line may be torn
    printed = run_example(runtime, "checkpointed_batch.py", str(kept))
    after = kept.read_text()
    assert after.startswith(before)
    generated = [text.count('"operation":{"type":"gen"') for text in (before, after)]
    assert 3 * 4 <= generated[0] < generated[1] == 3 * 26, "no answer was generated twice"
    assert printed.startswith("".join(seen))
    assert len(printed.splitlines()) == 26
    assert "Japan: Tokyo, Japanese, yen, yes\n" in printed
    assert run_example(runtime, "checkpointed_batch.py", str(kept)) == printed
    assert printed == (OUTPUTS / "checkpointed_batch.txt").read_text("utf-8")
    assert kept.read_text() == after


def test_tree_of_thought_votes_for_the_right_thought(runtime: ramiform.Runtime) -> None:
    printed = run_example(runtime, "tree_of_thought.py")
    assert "best: The capital of Japan is Tokyo." in printed
    assert "best: The currency of Brazil is the real." in printed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("question", "call", "answer"),
    [
        ("What is the weather in Oslo?", "get_weather(city='Oslo')", "It is snowy in Oslo, with 4 degrees."),
        ("What is 37 times 12?", "multiply(a=37, b=12)", "37 times 12 is 444."),
        ("Add 250 and 78.", "add(a=250, b=78)", "250 plus 78 is 328."),
        ("Set a timer for 25 minutes.", "set_timer(minutes=25)", "The timer is set for 25 minutes."),
    ],
)
def test_tool_use_calls_the_right_function_and_answers_from_its_result(
    runtime: ramiform.Runtime, question: str, call: str, answer: str
) -> None:
    printed = run_example(runtime, "tool_use.py", question).splitlines()
    assert f"  {call} -> " in "\n".join(printed)
    assert printed[-1].strip() == answer


@pytest.mark.slow
def test_judge_finds_what_is_wrong_and_only_that(runtime: ramiform.Runtime) -> None:
    right, wrong = run_example(runtime, "judge.py").split("Japan: ")[1:]
    assert right.startswith("5 of 5")
    assert wrong.startswith("3 of 5")
    assert ratings(right) == {"Place": "5", "Capital": "5", "Language": "5", "Money": "5"}
    assert ratings(wrong) == {"Place": "5", "Capital": "1", "Language": "5", "Money": "1"}


def ratings(table: str) -> dict[str, str]:
    return {cells[0]: cells[-1] for cells in rows(table)}


def rows(printed: str) -> list[list[str]]:
    """The cells of a table's lines, its head left out."""
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in printed.splitlines() if line[:1] == "│"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("topic", "points", "text"),
    [
        (
            "Japan",
            ["Place", "Capital", "Language", "Money"],
            "Japan is a country in Asia. The capital of Japan is Tokyo. People in Japan speak Japanese. "
            "The currency of Japan is the yen.",
        ),
        (
            "an owl",
            ["Kind", "Body", "Food", "Home"],
            "An owl is a bird. An owl has 2 legs. Owls eat mice. Owls live in forests.",
        ),
    ],
)
def test_skeleton_of_thought_expands_every_point_of_its_outline(
    runtime: ramiform.Runtime, topic: str, points: list[str], text: str
) -> None:
    outline, _, written = run_example(runtime, "skeleton_of_thought.py", topic).rstrip().partition("\n\n")
    assert outline.splitlines() == [f"{number}. {point}" for number, point in enumerate(points, start=1)]
    assert written == text


def test_self_consistency_takes_the_answer_of_most_samples(runtime: ramiform.Runtime) -> None:
    table = rows(run_example(runtime, "self_consistency.py"))
    assert [row[1] for row in table] == ["Canberra", "Fe", "bamboo"]
    for _, answer, votes in table:
        counted = {vote.rpartition(" ")[0]: int(vote.rpartition(" ")[2]) for vote in votes.split(", ")}
        assert sum(counted.values()) == 9
        assert counted[answer] == max(counted.values())


def test_multi_turn_chat_remembers_what_it_was_told(runtime: ramiform.Runtime) -> None:
    printed = run_example(runtime, "multi_turn_chat.py").splitlines()
    said = {
        turn.removeprefix("you: "): answer.removeprefix("model: ")
        for turn, answer in zip(printed[0:-1:2], printed[1:-1:2], strict=True)
    }
    assert said["What is my name?"] == "Your name is Ada."
    assert said["What pet do I have?"] == "You have a rabbit."
    assert said["What is the capital of Japan?"] == "The capital of Japan is Tokyo."
    figures = re.fullmatch(r"(\d+) of (\d+) prompt tokens from the cache", printed[-1])
    assert figures is not None
    assert int(figures[1]) > int(figures[2]) / 2


@pytest.mark.slow
@pytest.mark.parametrize("end", ["\n", ""], ids=["an empty line", "the end of the input"])
def test_multi_turn_chat_talks_with_whoever_types(runtime: ramiform.Runtime, end: str) -> None:
    printed = run_example(runtime, "multi_turn_chat.py", "-", typed=f"My name is Tom.\nWhat is my name?\n{end}")
    assert "model: Nice to meet you, Tom!" in printed
    assert "model: Your name is Tom." in printed


@pytest.mark.exhaustive
def test_rag_finds_the_text_that_holds_the_answer(runtime: ramiform.Runtime) -> None:
    assert [row[1:3] for row in rows(run_example(runtime, "rag.py"))] == [
        ["Sofia Quinn", "velburg.txt"],
        ["boats", "harlow.txt"],
        ["24", "nadia_haddad.txt"],
        ["chef", "tom_weber.txt"],
        ["1931", "brinwick.txt"],
    ]


def test_rag_reads_a_folder_of_ones_own(runtime: ramiform.Runtime, tmp_path: Path) -> None:
    (tmp_path / "marlow.txt").write_text("Marlow is led by Ada Quinn. Marlow makes paper.")
    (tmp_path / "tom.txt").write_text("Tom works as a baker. Tom likes chess.")
    [row] = rows(run_example(runtime, "rag.py", "What does Tom like?", str(tmp_path)))
    assert row[1:3] == ["chess", "tom.txt"]


def test_parallel_document_qa_answers_from_the_right_document(runtime: ramiform.Runtime) -> None:
    printed = run_example(runtime, "parallel_document_qa.py")
    assert [row[1:] for row in rows(printed)] == [
        ["Sofia Quinn", "velburg"],
        ["tennis", "tom_weber"],
        ["Liam Lind", "harlow"],
        ["glass", "velburg"],
        ["Marta", "tom_weber"],
    ]
    figures = re.search(r"(\d+) of (\d+) prompt tokens from the cache", printed)
    assert figures is not None
    assert int(figures[1]) > int(figures[2]) / 2  # the questions share the documents


def test_map_reduce_answers_from_summaries(runtime: ramiform.Runtime) -> None:
    printed = run_example(runtime, "map_reduce.py")
    assert printed.splitlines()[:2] == ["Brinwick was founded in 1931.", "Harlow is based in Oslo."]
    answers = [row[1].partition(" [")[0] for row in rows(printed)]
    assert answers == ["Cairo", "chef", "1931"]


def test_evaluation_tells_the_better_prompt(runtime: ramiform.Runtime) -> None:
    printed = run_example(runtime, "evaluation.py").splitlines()
    assert printed[-1].startswith("right: 1.000 against 0.000, difference +1.000")


@pytest.mark.exhaustive
def test_evaluation_is_a_file_for_the_eval_command(runtime: ramiform.Runtime, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    file = ROOT / "examples/agents/evaluation.py"
    command = [RAMIFORM, "eval", "--address", runtime.address, str(file), "--html", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert "1.000" in done.stdout
    assert "Ottawa" in page.read_text()


@pytest.mark.exhaustive
def test_optimisation_raises_the_score_on_held_out_sentences(runtime: ramiform.Runtime, tmp_path: Path) -> None:
    *shown, comparison = run_example(runtime, "optimisation.py", str(tmp_path / "best.json")).splitlines()
    found = re.search(r"difference ([+-]\d\.\d+) \(([+-]\d\.\d+) to", comparison)
    assert found is not None, comparison
    assert float(found[1]) > 0.1
    assert float(found[2]) > 0
    saved = json.loads((tmp_path / "best.json").read_text())
    assert [f"{one['text']} -> {one['topic']}" for one in saved["arguments"]["demonstrations"]] == shown


@pytest.mark.exhaustive
def test_fifty_users_of_the_service_get_their_own_answers(runtime: ramiform.Runtime) -> None:
    with served(runtime, "service.py") as url, httpx.Client(base_url=url, timeout=120) as client:
        names = [f"{first} {last}" for first in ("Ada", "Mia", "Tom", "Nina", "Leo") for last in LAST_NAMES]
        texts = [f"{name} is {20 + index} years old and lives in Oslo." for index, name in enumerate(names)]
        with ThreadPoolExecutor(50) as users:
            answers = list(users.map(lambda text: client.post("/people", json={"text": text}), texts))
        assert [answer.status_code for answer in answers] == [200] * 50
        people = [answer.json() for answer in answers]
        assert [(one["name"], one["age"], one["city"]) for one in people] == [
            (name, 20 + index, "Oslo") for index, name in enumerate(names)
        ]
        assert client.post("/people", json={"text": "x" * 1001}).status_code == 422


def wait_until_idle(runtime: ramiform.Runtime) -> int:
    """Wait until nothing runs and no page is held; return how many tokens were ever generated."""
    for _ in range(3000):
        info = ramiform.get_server_info(runtime)
        if not (info["num_running"] or info["num_waiting"] or info["num_held_pages"]):
            return int(info["num_output_tokens"])
        time.sleep(0.01)
    raise AssertionError(info)


@pytest.mark.exhaustive
def test_a_user_of_the_service_who_hangs_up_ends_the_story(runtime: ramiform.Runtime) -> None:
    before = ramiform.get_server_info(runtime)["num_output_tokens"]
    with served(runtime, "service.py") as url:
        for _ in range(4):
            with httpx.stream("POST", f"{url}/stories", json={"text": "Once upon a time"}) as answer:
                assert next(answer.iter_text())
        assert wait_until_idle(runtime) - before < 4 * 800


def test_a_user_of_the_service_who_hangs_up_ends_a_program_that_is_awaited(runtime: ramiform.Runtime) -> None:
    service = runpy.run_path(str(ROOT / "examples/agents/service.py"))
    before = ramiform.get_server_info(runtime)["num_output_tokens"]

    class Gone:
        async def receive(self) -> dict[str, str]:
            while not (await asyncio.to_thread(ramiform.get_server_info, runtime))["num_running"]:
                await asyncio.sleep(0.001)
            return {"type": "http.disconnect"}

    async def main() -> None:
        with pytest.raises(Exception, match="499"):
            await service["unless_gone"](Gone(), service["tell_story"].arun("Once", backend=runtime))

    asyncio.run(main())
    assert wait_until_idle(runtime) - before < 800


LAST_NAMES = ("Brown", "Lind", "Reed", "Quinn", "Weber", "Stone", "Haddad", "Novak", "Silva", "Berg")


@contextlib.contextmanager
def served(runtime: ramiform.Runtime, name: str) -> Iterator[str]:
    """Run an example that serves HTTP on a free port; yield its URL once it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [RAMIFORM, "run", "--address", runtime.address, str(ROOT / "examples/agents" / name), str(port)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        url = f"http://127.0.0.1:{port}"
        while True:
            with contextlib.suppress(httpx.ConnectError):
                httpx.get(f"{url}/openapi.json")
                break
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_every_agent_is_short_and_tested() -> None:
    tested = Path(__file__).read_text()
    for path in (ROOT / "examples/agents").glob("*.py"):
        assert len(path.read_text().splitlines()) <= 80, path.name
        assert path.name == "transcript.py" or f'"{path.name}"' in tested, path.name
        assert path.name == "transcript.py" or (OUTPUTS / f"{path.stem}.txt").exists(), path.name
