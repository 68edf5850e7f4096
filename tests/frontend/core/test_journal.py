"""A frontend's memory of conversations goes on after a restart. The judge is the same memory without one."""

from __future__ import annotations

import asyncio
import random
import shutil
import stat
from contextvars import copy_context
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from ramiform.runtime.frontend.api.bodies import SessionParams
from ramiform.runtime.frontend.chat.exact_history import EncodedPrompt, ExactHistory
from ramiform.runtime.frontend.chat.renderer import MessageRenderer
from ramiform.runtime.frontend.core.journal import MAX_FOLDERS, Journal, open_journal
from ramiform.runtime.frontend.core.sessions import ClientSessions
from ramiform.runtime.frontend.core.tenant import Tenant, current_tenant
from ramiform.runtime.frontend.http.native.sessions import SessionStore
from ramiform.runtime.frontend.text.encoding import Encoder
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.protocol.saved_state import SavedTurn
from ramiform.tests.frontend.chat.test_exact_history import drifted, plain, same_meaning
from ramiform.tests.frontend.harness import shipped_tokenizer
from ramiform.tests.serving.test_sessions import NoPeers

TOKENIZER = shipped_tokenizer()
RENDERER = MessageRenderer(TOKENIZER)
ENCODER = Encoder(TOKENIZER)
WORDS = "cats sleep on a mat é 水 😀 <|end|> and dream\nof mice".split(" ")
Messages = list[dict[str, Any]]


class Conversations:
    """Random conversations of two keys in one memory, with the pieces that a frontend puts together."""

    def __init__(self, folder: Path, slot: int = 0, **options: Any) -> None:
        self.journal = Journal(folder, "model", slot, **options)
        self.history = ExactHistory(TOKENIZER, ENCODER, journal=self.journal)
        self.journal.records = []
        self.chats: list[tuple[str | None, Messages]] = []

    def ask(self, key: str | None, messages: Messages) -> EncodedPrompt:
        def ask() -> EncodedPrompt:
            current_tenant.set(Tenant(key))
            return asyncio.run(self.history.encode(RENDERER.render(messages), "salt", bound=None))

        return copy_context().run(ask)

    def talk(self, draw: random.Random) -> None:
        """Begin a conversation, or go on with one, or with a part of its last answer."""
        if not self.chats or draw.random() < 0.3:
            self.chats.append((draw.choice([None, "one", "other"]), []))
        key, messages = draw.choice(self.chats)
        if messages and draw.random() < 0.2:
            messages[-1]["content"] = messages[-1]["content"][: draw.randint(0, 20)]
        messages.append({"role": "user", "content": " ".join(draw.choices(WORDS, k=draw.randint(1, 40)))})
        answer = " ".join(draw.choices(WORDS, k=draw.randint(1, 20)))
        self.history.remember(self.ask(key, messages), drifted(answer, draw))
        messages.append({"role": "assistant", "content": answer})

    def questions(self) -> list[tuple[str | None, Messages]]:
        return [(key, [*messages, {"role": "user", "content": "Go on."}]) for key, messages in self.chats]


def killed(folder: Path, number: int) -> Path:
    """Return what a process leaves that is killed now."""
    return Path(shutil.copytree(folder, folder.with_name(f"{folder.name}-{number}")))


@pytest.mark.parametrize("rewrite", [1, None])
@pytest.mark.parametrize("slot", [0, 1])
def test_a_conversation_goes_on_after_a_kill_with_the_ids_it_had(
    tmp_path: Path, rewrite: int | None, slot: int
) -> None:
    draw = random.Random(5)
    live = Conversations(tmp_path / "folder", rewrite=rewrite)
    num_remembered = 0
    for restart in range(4):
        for _ in range(12):
            live.talk(draw)
            live.journal.flush()
        again = Conversations(killed(tmp_path / "folder", restart), slot, rewrite=rewrite)
        for key, messages in live.questions():
            asked = live.ask(key, messages)
            found = again.ask(key, messages)
            assert found.tokens == asked.tokens
            assert found.num_remembered == asked.num_remembered
            assert again.ask("a third key", messages).num_remembered == 0
            num_remembered += found.num_remembered
        again.chats = [(key, [dict(each) for each in messages]) for key, messages in live.chats]
        for _ in range(6):  # what comes after the restart is kept over the next one
            again.talk(draw)
            again.journal.flush()
        third = Conversations(killed(tmp_path / f"folder-{restart}", 3), rewrite=rewrite)
        for key, messages in again.questions():
            assert third.ask(key, messages).tokens == again.ask(key, messages).tokens
        for each in (again, third):
            each.journal.close()
    assert num_remembered > 1000
    live.journal.close()


def damage(path: Path, draw: random.Random) -> None:
    data = bytearray(path.read_bytes())
    at, size = draw.randrange(len(data)), draw.randint(1, 200)
    match draw.randrange(4):
        case 0:
            del data[at:]
        case 1:
            data[at : at + size] = bytes(len(data[at : at + size]))
        case 2:
            data[at] ^= 1 << draw.randrange(8)
        case 3:
            other = draw.randrange(len(data))
            data[at : at + size], data[other : other + size] = data[other : other + size], data[at : at + size]
    path.write_bytes(data)


def test_a_damaged_file_costs_ids_and_never_gives_wrong_ones(tmp_path: Path) -> None:
    draw = random.Random(6)
    live = Conversations(tmp_path / "folder")
    for _ in range(30):
        live.talk(draw)
    live.journal.close()
    questions = live.questions()
    for number in range(40):
        folder = killed(tmp_path / "folder", number)
        damage(folder / "model" / "0.journal", draw)
        again = Conversations(folder)
        for key, messages in draw.sample(questions, 3):
            assert same_meaning(again.ask(key, messages).tokens, plain(messages))
        again.talk(draw)  # the file goes on where it was damaged
        again.journal.close()
        third = Conversations(folder)
        [(key, messages)] = again.questions()
        assert third.ask(key, messages).tokens == again.ask(key, messages).tokens
        third.journal.close()
        shutil.rmtree(folder)


def test_what_is_remembered_stays_within_its_bounds(tmp_path: Path) -> None:
    live = Conversations(tmp_path / "folder", rewrite=20_000)
    draw, sizes = random.Random(7), []
    for _ in range(80):
        live.talk(draw)
        live.journal.flush()
        sizes.append((tmp_path / "folder" / "model" / "0.journal").stat().st_size)
        live.history._max_bytes = 40_000
    assert max(sizes) < 60_000
    assert any(after < before for before, after in pairwise(sizes)), "it was written anew"
    live.journal.close()


def test_sessions_go_on_after_a_kill(tmp_path: Path) -> None:
    folder, draw, rids = tmp_path / "folder", random.Random(8), count()
    peers: Any = NoPeers()

    def begin(folder: Path, rewrite: int | None = None) -> tuple[Journal, SessionStore]:
        journal = Journal(folder, "model", rewrite=rewrite)
        store = SessionStore(peers, ClientSessions(lambda name: None), journal=journal)
        journal.records = []
        return journal, store

    async def play(store: SessionStore, known: list[tuple[str | None, str, str]]) -> None:
        key, name = draw.choice([None, "key"]), draw.choice(["a", "b", "c"])
        own = [rid for *owner, rid in known if owner == [key, name]]
        if draw.random() < 0.1:
            await store.close(key, name)
            await store.open(key, name)
            known[:] = [each for each in known if each[:2] != (key, name)]
            return
        parent = draw.choice(own) if own and draw.random() < 0.8 else None
        params = SessionParams(id=name, rid=parent, replace=draw.random() < 0.2)
        try:
            before = await store.begin(key, params)
        except RequestError:
            return  # it was replaced
        rid = draw.choice(own) if own and draw.random() < 0.1 else f"request {next(rids)}"
        tokens = [*before, *draw.choices(range(1000), k=5)]
        await store.record(key, params, rid, tokens, len(before) + 2, len(before))
        known.append((key, name, rid))

    async def go(rewrite: int | None) -> None:
        journal, store = begin(folder, rewrite)
        known: list[tuple[str | None, str, str]] = []
        for key in (None, "key"):
            for name in "abc":
                await store.open(key, name)
        for step in range(60):
            await play(store, known)
            journal.flush()
            if step % 10 == 0:
                copy = killed(folder, step)
                second, again = begin(copy)
                for key, name, rid in known:
                    asked = [await _begun(each, key, SessionParams(id=name, rid=rid)) for each in (store, again)]
                    assert asked[0] == asked[1]
                second.close()
                shutil.rmtree(copy)
        with pytest.raises(RequestError, match="no session"):
            await store.begin("another key", SessionParams(id="a"))
        assert b"key" not in (folder / "model" / "0.journal").read_bytes()
        journal.close()
        shutil.rmtree(folder)

    for rewrite in (1, None):
        asyncio.run(go(rewrite))


async def _begun(store: SessionStore, key: str | None, params: SessionParams) -> list[int] | str:
    try:
        return await store.begin(key, params)
    except RequestError as error:
        return str(error)


def test_the_loop_writes_in_time_and_at_the_end(tmp_path: Path) -> None:
    async def go() -> None:
        journal = Journal(tmp_path, "model", seconds=0.0)
        journal.start()
        journal.note(SavedTurn(None, "a", "open"))
        path = tmp_path / "model" / "0.journal"
        while not path.stat().st_size:
            await asyncio.sleep(0.0)
        journal.note(SavedTurn(None, "b", "open"))
        await journal.stop()

    asyncio.run(go())
    assert [turn.id for turn in Journal(tmp_path, "model").records if isinstance(turn, SavedTurn)] == ["a", "b"]


def test_files_are_private_and_folders_bounded(tmp_path: Path) -> None:
    config = CoreConfig(model="here", disk_cache=str(tmp_path / "cache"))
    assert open_journal(CoreConfig(model="here"), TOKENIZER, 0) is None
    first = open_journal(config, TOKENIZER, 0)
    second = open_journal(config, TOKENIZER, 0)  # of another server: a file of its own
    assert first is not None
    assert second is not None
    [folder] = (tmp_path / "cache" / "conversations").iterdir()
    assert {path.name for path in folder.iterdir()} == {"0.lock", "0.journal", "1.lock", "1.journal"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for number in range(MAX_FOLDERS + 4):
        Journal(folder.parent, f"model {number}").close()
    assert len(list(folder.parent.iterdir())) <= MAX_FOLDERS + 1
    assert folder.exists(), "it is held"
    second.close()
    (folder / "1.journal").chmod(0o644)
    with pytest.raises(RequestError, match="closed to others") as refused:
        open_journal(config, TOKENIZER, 1)
    assert refused.value.param == "disk_cache"
    first.close()
