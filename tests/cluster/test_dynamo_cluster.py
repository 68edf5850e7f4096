"""`ramiform cluster`: two runtimes of the model that ships behind NVIDIA Dynamo's frontend and KV router."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

DYNAMO = Path(__file__).parents[2] / ".venv" / "dynamo"  # where `make .venv/.dynamo` installs it
IS_INSTALLED = DYNAMO.exists() or importlib.util.find_spec("dynamo") is not None
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.exhaustive,
    pytest.mark.skipif(not IS_INSTALLED, reason="needs NVIDIA Dynamo: make .venv/.dynamo"),
]
START_SECONDS = 300


@dataclass
class Cluster:
    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(line.rstrip("\n"))
                self.changed.notify_all()
        with self.changed:
            self.changed.notify_all()

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until a line matches. Fails with the log when the cluster ends before."""

        def found() -> re.Match[str] | None:
            return next((match for line in self.lines if (match := re.search(pattern, line))), None)

        with self.changed:
            self.changed.wait_for(lambda: found() or self.process.poll() is not None, timeout=START_SECONDS)
        match = found()
        assert match is not None, "\n".join(self.lines)
        return match


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    command = [sys.executable, "-P", "-m", "ramiform.cli", "cluster", "--replicas", "2", "--port", "0"]
    command += ["--wait-for-loops", "--num-pages", "1024", "--keep-going"]
    path = os.pathsep.join([str(DYNAMO), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
    )
    made = Cluster(process)
    reader = threading.Thread(target=made.read)
    reader.start()
    try:
        yield made
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(60)
        reader.join(60)
        assert process.stdout is not None
        process.stdout.close()


def chat(client: httpx.Client, messages: list[dict[str, str]], **fields: Any) -> httpx.Response:
    body = {"model": "ramiform-demo", "messages": messages, "max_tokens": 32, "temperature": 0, **fields}
    return client.post("/v1/chat/completions", json=body)


def test_two_replicas_reuse_what_they_have_and_survive_the_death_of_one(cluster: Cluster) -> None:
    serving = cluster.wait_for(r"^serving ramiform-demo at (http://127\.0\.0\.1:\d+)/v1 by 2 runtimes$")
    with httpx.Client(base_url=serving[1], timeout=120, trust_env=False) as client:
        assert cached_share(client) >= 0.97
        assert_answers_are_constrained_and_scored(client)
        assert_hints_and_salts_are_honoured(cluster, client)
        assert_a_client_that_leaves_frees_its_replica(cluster, client)
        assert_one_replica_survives(cluster, client)
    cluster.process.send_signal(signal.SIGINT)
    assert cluster.process.wait(60) == 0
    pids = [int(pid) for line in cluster.lines for pid in re.findall(r"\(process (\d+)\)$", line)]
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def cached_share(client: httpx.Client) -> float:
    """The share of the prompt tokens cached that six sessions of four turns have in common with their turn before."""
    questions = (
        "What is the capital of {}?",
        "And what do people in {} like to eat in winter, when it is cold outside?",
        "Tell me about the rivers of {} and what they are good for, please.",
        "Thank you. Which animals live in {}?",
    )
    places = ("France", "Peru", "Japan", "Egypt", "Norway", "Kenya")
    told = {
        place: [{"role": "system", "content": f"You are a guide to {place}. You answer in one short sentence."}]
        for place in places
    }
    known = dict.fromkeys(places, 0)
    num_reusable = num_cached = 0
    for question in questions:
        for place in places:
            told[place].append({"role": "user", "content": question.format(place)})
            answer = chat(client, told[place]).json()
            told[place].append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
            usage = answer["usage"]
            num_reusable += known[place]
            num_cached += min(known[place], usage["prompt_tokens_details"]["cached_tokens"])
            known[place] = usage["prompt_tokens"] + usage["completion_tokens"] - 1  # the last token is not computed
    assert num_reusable > 1000
    return num_cached / num_reusable


def assert_answers_are_constrained_and_scored(client: httpx.Client) -> None:
    asked = [{"role": "user", "content": "Is Paris a city or a river?"}]
    chosen = chat(client, asked, guided_choice=["a city of 1234", "a river"], logprobs=True, top_logprobs=2)
    [choice] = chosen.json()["choices"]
    assert choice["message"]["content"] in ("a city of 1234", "a river")
    scored = choice["logprobs"]["content"]
    assert all(len(each["top_logprobs"]) >= 2 and each["logprob"] <= 0 for each in scored)
    refused = chat(client, asked, guided_regex="[unclosed")
    assert refused.status_code == 400
    assert "unclosed" in refused.text
    two = chat(client, asked, n=2, temperature=1)
    assert two.status_code == 400
    assert "sampling_options.n" in two.text


def assert_hints_and_salts_are_honoured(cluster: Cluster, client: httpx.Client) -> None:
    letter = [{"role": "user", "content": "Please write me a long letter about the harbour of Marseille at dawn."}]
    cached = [
        chat(client, letter, nvext={"cache_salt": salt}).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        for salt in ("a", "a", "b", "b", "a")
    ]
    assert [num > 16 for num in cached] == [False, True, False, True, True]
    hints = {"nvext": {"agent_hints": {"priority": 5, "osl": 8}}}
    body = {"model": "ramiform-demo", "messages": letter, "max_tokens": 4, **hints}
    assert client.post("/v1/chat/completions", json=body, headers={"x-dynamo-session-id": "one"}).status_code == 200
    trees = [client.get(f"{url}/v1/ramiform/tree").json() for url in replica_urls(cluster)]
    assert any(node["program"] for tree in trees for node in tree["nodes"]), "a session is a program"


def assert_a_client_that_leaves_frees_its_replica(cluster: Cluster, client: httpx.Client) -> None:
    body = {"model": "ramiform-demo", "messages": [{"role": "user", "content": "Go on."}], "max_tokens": 1900}
    with client.stream("POST", "/v1/chat/completions", json={**body, "ignore_eos": True, "stream": True}) as response:
        assert response.status_code == 200
        lines = response.iter_lines()  # kept: httpx hangs up when it is collected
        next(lines)
        assert sum(loads(cluster, client)) == 1
    while sum(loads(cluster, client)):
        continue


def assert_one_replica_survives(cluster: Cluster, client: httpx.Client) -> None:
    """Kill a replica while both compute. Every client gets its answer, or one error after which it may ask again."""
    victim = int(cluster.wait_for(r"^replica 0: .*\(process (\d+)\)$")[1])
    killed = threading.Event()

    def ask(number: int) -> list[int]:
        messages = [{"role": "user", "content": f"{number}: count to a thousand."}]
        statuses = []
        for _ in range(3):
            answer = chat(client, messages, max_tokens=1200, ignore_eos=True)
            statuses.append(answer.status_code)
            if answer.status_code == 200:
                return statuses
            assert answer.status_code >= 500, answer.text
            killed.wait()
            cluster.wait_for(r"^replica 0 is gone, going on with 1 runtime:")
        return statuses

    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(ask, number) for number in range(8)]
        wait_until_both_compute(cluster, client)
        os.kill(victim, signal.SIGKILL)
        killed.set()
        answers = [each.result() for each in asked]
    assert all(statuses[-1] == 200 and len(statuses) <= 2 for statuses in answers), answers
    cluster.wait_for(r"^replica 0 is gone, going on with 1 runtime:")
    assert chat(client, [{"role": "user", "content": "Hello"}]).status_code == 200


def wait_until_both_compute(cluster: Cluster, client: httpx.Client) -> None:
    while not all(loads(cluster, client)):
        continue


def loads(cluster: Cluster, client: httpx.Client) -> list[int]:
    """Requests that run or wait at each replica."""
    return [client.get(f"{url}/load").json()["server_load"] for url in replica_urls(cluster)]


def replica_urls(cluster: Cluster) -> list[str]:
    return [cluster.wait_for(rf"^replica {index}: (\S+)")[1] for index in range(2)]
