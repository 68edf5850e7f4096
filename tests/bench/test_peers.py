"""The comparison with other servers: its model is the same in both formats, its load notices a wrong answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import gguf
import pytest
import tokenizers
import torch
from safetensors import safe_open

from ramiform.bench.peers.checkpoint import GGUF_NAME, make_checkpoint
from ramiform.bench.peers.load import Run, Scenario, prompts, send

SCENARIO = Scenario("two", 2, 5, 3, num_shared=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("peers"), small=True, dtype=torch.bfloat16)


@pytest.mark.exhaustive
def test_the_gguf_file_holds_the_weights_of_the_checkpoint(folder: Path) -> None:
    stored = {t.name: t for t in gguf.GGUFReader(folder / GGUF_NAME).tensors}
    with safe_open(folder / "model.safetensors", "pt") as weights:
        assert len(stored) == len(weights.keys())
        for ours, theirs in [
            ("model.embed_tokens.weight", "token_embd.weight"),
            ("model.layers.7.self_attn.k_proj.weight", "blk.7.attn_k.weight"),
            ("model.layers.0.self_attn.q_proj.bias", "blk.0.attn_q.bias"),
            ("model.layers.3.mlp.down_proj.weight", "blk.3.ffn_down.weight"),
        ]:
            found = stored[theirs]
            numbers = torch.tensor(gguf.quants.dequantize(found.data, found.tensor_type))
            assert torch.equal(numbers, weights.get_tensor(ours).float()), ours


@pytest.mark.exhaustive
def test_every_id_of_the_vocabulary_has_a_text(folder: Path) -> None:
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 32768
    assert tokenizer.decode([5000, 32767]) == " w5000 w32767"
    assert len(gguf.GGUFReader(folder / GGUF_NAME).fields["tokenizer.ggml.tokens"].data) == 32768


def test_prompts_share_what_they_shall_and_differ_between_rounds() -> None:
    (a, b), (c, d) = prompts(SCENARIO, 1000, 0), prompts(SCENARIO, 1000, 1)
    assert a[:4] == b[:4] != c[:4]
    assert a[4:] != b[4:]
    assert len(c) == len(d) == 5


@pytest.mark.parametrize(("counts", "speed"), [("output tok/s", 3.0), ("prompt tok/s", 5.0), ("s", 0.5)])
def test_more_of_speed_is_better_whatever_is_counted(counts: str, speed: float) -> None:
    scenario = Scenario("x", 2, 5, 3, counts=counts)  # type: ignore[arg-type]
    assert Run(scenario, seconds=2.0, ttft=1.0, cpu_seconds=0.0).speed == speed


@asynccontextmanager
async def server(num_tokens: int) -> AsyncIterator[str]:
    """Streams an answer of so many tokens to whoever asks."""
    usage = {"prompt_tokens": 5, "completion_tokens": num_tokens}
    answering: list[asyncio.Task[None] | None] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.append(asyncio.current_task())
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n")
        for event in [json.dumps({"usage": None}), json.dumps({"usage": usage}), "[DONE]"]:
            data = f"data: {event}\n\n".encode()
            writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        writer.write(b"0\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        try:
            yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        finally:
            await asyncio.wait([task for task in answering if task is not None])


async def ask(num_tokens: int) -> tuple[float, float]:
    async with server(num_tokens) as url:
        return await send(url, "any", SCENARIO, prompts(SCENARIO, 1000, 0))


def test_an_answer_of_the_right_length_is_timed() -> None:
    seconds, ttft = asyncio.run(ask(3))
    assert 0 < ttft <= seconds


def test_an_answer_that_is_too_short_is_no_measurement() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(ask(2))
    assert "(5, 3) tokens were asked for" in str(caught.value.exceptions[0])
