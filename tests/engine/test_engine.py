"""Judges: transformers' greedy generation, and the engine itself with the rows one at a time."""

from __future__ import annotations

import random
import re
from functools import partial
from pathlib import Path

import msgspec
import pytest
import torch
import transformers

from ramiform.runtime.engine import PAGE_SIZE, ForwardEngine, build_engine
from ramiform.runtime.engine.kv_pool import bytes_per_page
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.models.errors import CheckpointError
from ramiform.runtime.models.read_config import read_config
from ramiform.runtime.protocol.config import CoreConfig
from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.scheduler.plan import ForwardPlan, ForwardResult, PageCopy, Row, Sample, Score
from ramiform.runtime.speculation.build import build_source, draft_bytes
from ramiform.runtime.speculation.eagle.draft_memory import SCRATCH

GREEDY = Sample(temperature=0.0, draw=0)


def run(engine: ForwardEngine, *rows: Row, copies: tuple[PageCopy, ...] = ()) -> ForwardResult:
    return engine.run(ForwardPlan(step=7, copies=list(copies), rows=list(rows)))


def prompts(count: int) -> list[list[int]]:
    rng = random.Random(1)
    return [rng.choices(range(150), k=rng.choice([1, 2, 5, 17, 40, 70])) for _ in range(count)]


def generate(engine: ForwardEngine, prompts: list[list[int]], steps: int) -> list[list[int]]:
    """Greedy continuations of all prompts together, prefilled in chunks of up to 16 tokens beside decode rows."""
    pages = random.Random(2).sample(range(engine.info.num_pages), engine.info.num_pages)
    tables = [[pages.pop() for _ in range(-(-(len(prompt) + steps) // PAGE_SIZE))] for prompt in prompts]
    sequences, computed = [list(prompt) for prompt in prompts], [0] * len(prompts)
    goals = [len(prompt) + steps for prompt in prompts]
    while any(len(s) < goal for s, goal in zip(sequences, goals, strict=True)):
        live = [i for i, goal in enumerate(goals) if len(sequences[i]) < goal]
        rows = []
        for i in live:
            chunk = sequences[i][computed[i] : computed[i] + 16]
            last = computed[i] + len(chunk) == len(sequences[i])
            rows.append(
                Row(
                    rid=str(i),
                    tokens=chunk,
                    first_position=computed[i],
                    pages=tables[i],
                    sample=GREEDY if last else None,
                )
            )
        for i, row, result in zip(live, rows, run(engine, *rows).rows, strict=True):
            computed[i] += len(row.tokens)
            assert (result.token is None) == (row.sample is None)
            if result.token is not None:
                sequences[i].append(result.token)
    return [s[-steps:] for s in sequences]


@pytest.mark.slow
def test_a_batch_of_mixed_rows_generates_what_transformers_does(engine: ForwardEngine, checkpoint: Path) -> None:
    judge = transformers.LlamaForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    batch = prompts(20)
    for prompt, got in zip(batch, generate(engine, batch, steps=12), strict=True):
        ids = torch.tensor([prompt])
        want = judge.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        assert got == want[0, len(prompt) :].tolist()


def test_the_same_prompt_gives_the_same_tokens_alone_and_among_others(engine: ForwardEngine) -> None:
    batch = prompts(32)
    together = generate(engine, batch, steps=10)
    assert [generate(engine, [prompt], steps=10)[0] for prompt in batch] == together


def decode_rows(engine: ForwardEngine, num_decodes: int) -> list[Row]:
    """Compute prompts; return the rows that decode after them, one greedy and two that draw."""
    samples = [GREEDY, Sample(temperature=1.0, draw=5), Sample(temperature=0.7, top_k=20, top_p=0.9, draw=6)]
    texts = [[3, 9, 27], list(range(30)), [5] * 15]
    starts = [
        Row(
            rid=str(index),
            tokens=text,
            first_position=0,
            pages=[3 * index, 3 * index + 1, 3 * index + 2],
            sample=GREEDY,
        )
        for index, text in enumerate(texts)
    ]
    rows = []
    for text, row, sample, result in zip(texts, starts, samples, run(engine, *starts).rows, strict=True):
        assert result.token is not None
        draws = [100 * int(row.rid) + number for number in range(1, num_decodes)] if sample.temperature else []
        new = {"tokens": [result.token], "first_position": len(text), "sample": sample, "draws": draws}
        rows.append(msgspec.structs.replace(row, **new))
    return rows


def test_decode_steps_of_one_plan_give_the_tokens_of_as_many_plans(engine: ForwardEngine) -> None:
    rows = decode_rows(engine, 6)
    together = engine.run(ForwardPlan(step=8, copies=[], rows=rows, num_decodes=6)).rows
    one_by_one: list[list[int]] = [[] for _ in rows]
    for number in range(6):
        for got, result in zip(one_by_one, run(engine, *rows).rows, strict=True):
            got += result.tokens
        for index, row in enumerate(rows):
            sample = row.sample
            assert sample is not None
            if row.draws and number < 5:
                sample = msgspec.structs.replace(sample, draw=row.draws[number])
            new = {"tokens": one_by_one[index][-1:], "first_position": row.first_position + 1, "sample": sample}
            rows[index] = msgspec.structs.replace(row, **new)
    assert [result.tokens for result in together] == one_by_one
    assert all(result.is_finite for result in together)


def test_a_token_that_ends_an_output_and_an_interruption_end_the_decode_steps_of_a_plan(
    engine: ForwardEngine,
) -> None:
    rows = decode_rows(engine, 6)
    plan = ForwardPlan(step=8, copies=[], rows=rows, num_decodes=6)
    whole = [result.tokens for result in engine.run(plan).rows]
    end = whole[1][2]
    first = min(tokens.index(end) for tokens in whole if end in tokens)
    result = engine.run(msgspec.structs.replace(plan, end_tokens=frozenset([end])))
    assert [own.tokens for own in result.rows] == [tokens[: first + 1] for tokens in whole]
    assert result.num_decodes == first + 1 < 6
    asked: list[int] = []
    engine.interrupt_when(lambda: asked.append(1) or len(asked) == 4)
    result = engine.run(plan)
    engine.interrupt_when(lambda: False)
    assert [own.tokens for own in result.rows] == [tokens[:4] for tokens in whole]
    assert result.num_decodes == 4


def test_decode_steps_end_where_logits_are_not_finite(engine: ForwardEngine) -> None:
    rows = decode_rows(engine, 4)
    plan = ForwardPlan(step=8, copies=[], rows=rows, num_decodes=4)
    whole = [result.tokens for result in engine.run(plan).rows]
    assert whole[0][1] not in (*(row.tokens[0] for row in rows), *(tokens[0] for tokens in whole))
    embedding_VE = engine._runner.model.parameters.embedding_VE
    assert isinstance(embedding_VE, torch.Tensor)
    embedding_VE[whole[0][1]] = torch.nan  # read by the third step
    results = engine.run(plan).rows
    assert (results[0].tokens, results[0].is_finite) == (whole[0][:2], False)
    for tokens, result in zip(whole[1:], results[1:], strict=True):
        assert result.tokens == tokens[: len(result.tokens)]
        assert len(result.tokens) in (2, 3)


def test_sampling_and_scoring_in_one_row_and_beside_others(engine: ForwardEngine) -> None:
    prompt = random.Random(4).choices(range(150), k=30)
    both = Row(
        rid="both",
        tokens=prompt,
        first_position=0,
        pages=[3, 1],
        sample=GREEDY,
        score=Score(first=10, targets=prompt[11:], num_top=0),
    )
    silent = Row(rid="silent", tokens=[4, 5], first_position=0, pages=[9])
    greedy = Row(rid="greedy", tokens=[4, 5], first_position=0, pages=[8], sample=GREEDY)
    result = run(engine, silent, both, greedy)
    assert result.step == 7
    assert (result.rows[0].token, result.rows[0].scores) == (None, [])
    assert [score.id for score in result.rows[1].scores] == prompt[11:]
    alone = run(engine, both).rows[0]
    assert result.rows[1].token == alone.token
    assert [s.logprob for s in result.rows[1].scores] == pytest.approx([s.logprob for s in alone.scores], abs=1e-5)
    assert result.rows[2].token == run(engine, greedy).rows[0].token


def test_as_many_outputs_as_tokens_need_not_be_all_of_them(engine: ForwardEngine) -> None:
    score = Score(first=0, targets=[7, 8], num_top=0)
    silent = Row(rid="silent", tokens=[3], first_position=0, pages=[0])
    both = Row(rid="both", tokens=[6, 7], first_position=0, pages=[1], sample=GREEDY, score=score)
    alone, beside = run(engine, both).rows[0], run(engine, silent, both).rows[1]
    assert beside.token == alone.token
    assert [s.logprob for s in beside.scores] == pytest.approx([s.logprob for s in alone.scores], abs=1e-5)


def test_pooled_hidden_states_are_those_of_transformers(engine: ForwardEngine, checkpoint: Path) -> None:
    judge = transformers.LlamaForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    prompt = random.Random(4).choices(range(150), k=30)
    want_TE = judge.model(torch.tensor([prompt])).last_hidden_state[0].detach()
    score = Score(first=0, targets=prompt[1:5], num_top=0)
    first = Row(rid="a", tokens=prompt[:20], first_position=0, pages=[3, 1], pool_from=0, score=score)
    beside = Row(rid="b", tokens=[4, 5], first_position=0, pages=[8], sample=GREEDY)
    second = Row(rid="a", tokens=prompt[20:], first_position=20, pages=[3, 1], pool_from=9)
    a, b = run(engine, first, beside).rows
    last = run(engine, second).rows[0]
    for result, states_PE in ((a, want_TE[:20]), (last, want_TE[29:])):
        assert result.pooled is not None
        got_E = torch.frombuffer(bytearray(result.pooled), dtype=torch.float32)
        torch.testing.assert_close(got_E, states_PE.sum(dim=0), atol=1e-4, rtol=1e-4)
    assert b.pooled is None
    assert b.token == run(engine, beside).rows[0].token
    assert [s.logprob for s in a.scores] == pytest.approx(
        [s.logprob for s in run(engine, msgspec.structs.replace(first, pool_from=None)).rows[0].scores], abs=1e-5
    )


def test_a_plan_may_only_copy_pages(engine: ForwardEngine) -> None:
    prompt = list(range(20))
    run(engine, Row(rid="a", tokens=prompt, first_position=0, pages=[0, 1]))
    chain = (PageCopy(source=1, target=2, num_tokens=4), PageCopy(source=2, target=4, num_tokens=4))
    assert run(engine, copies=chain).rows == []
    ahead = Row(rid="a", tokens=[9], first_position=20, pages=[0, 1], sample=GREEDY)
    copied = Row(rid="b", tokens=[9], first_position=20, pages=[0, 4], sample=GREEDY)
    left, right = run(engine, ahead).rows[0], run(engine, copied).rows[0]
    assert left.token == right.token


def test_scores_are_cut_into_parts_that_fit(engine: ForwardEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = list(range(40))
    score = Score(first=0, targets=prompt[1:], num_top=2)
    row = Row(rid="a", tokens=prompt, first_position=0, pages=[0, 1, 2], score=score)
    whole = run(engine, row).rows[0].scores
    monkeypatch.setattr("ramiform.runtime.engine.logprobs._MAX_LOGITS", 150 * 7)
    parts = run(engine, row).rows[0].scores
    assert [s.id for s in parts] == [s.id for s in whole]
    assert [s.logprob for s in parts] == pytest.approx([s.logprob for s in whole], abs=1e-5)


def test_warming_up_leaves_a_working_engine(engine: ForwardEngine) -> None:
    before = generate(engine, [[1, 2, 3]], steps=4)
    engine.warm_up()
    assert generate(engine, [[1, 2, 3]], steps=4) == before


def test_pages_go_to_the_host_and_come_back_as_they_were(checkpoint: Path) -> None:
    engine = build_engine(CoreConfig(device="cpu", dtype="float32", num_pages=8, host_kv_memory=0.01), checkpoint)
    assert engine.info.num_host_pages >= 3
    prompt, other = prompts(6)[5][:40], [9] * 48
    assert len(prompt) == 40
    whole = Row(rid="a", tokens=prompt, first_position=0, pages=[3, 5, 1], sample=GREEDY)
    expected = run(engine, whole).rows[0].token
    first_host = engine.info.num_pages
    down = tuple(PageCopy(page, first_host + i, 16) for i, page in enumerate([3, 5, 1]))
    # The pages are somebody else's by the same plan that copies them down.
    run(engine, Row(rid="b", tokens=other, first_position=0, pages=[1, 3, 5], sample=GREEDY), copies=down)
    up = tuple(PageCopy(first_host + i, page, 16) for i, page in enumerate([6, 0, 7]))
    last = Row(rid="a", tokens=prompt[-1:], first_position=39, pages=[6, 0, 7], sample=GREEDY)
    assert run(engine, last, copies=up).rows[0].token == expected


def test_info_states_the_models_facts(engine: ForwardEngine) -> None:
    info = engine.info
    assert (info.architecture, info.vocab_size, info.context_length) == ("LlamaForCausalLM", 150, 128)
    assert (info.dtype, info.device, info.page_size, info.num_pages) == ("float32", "cpu", 16, 300)


def test_kv_memory_sets_the_number_of_pages(checkpoint: Path) -> None:
    engine = build_engine(CoreConfig(device="cpu", kv_memory=0.01), checkpoint)
    page = bytes_per_page(read_config(checkpoint), torch.float32)
    assert page == sum(tensor.nbytes for tensor in engine._runner.pool._memory.page(0))
    assert engine.info.num_pages == int(0.01 * 2**30) // page


def test_kv_memory_must_hold_one_sequence(checkpoint: Path) -> None:
    with pytest.raises(RequestError, match=r"kv_memory 1e-06 GiB holds 0 tokens, a sequence may have 128") as caught:
        build_engine(CoreConfig(device="cpu", kv_memory=1e-6), checkpoint)
    assert caught.value.param == "kv_memory"
    advice = re.search(r"raise kv_memory to (\S+)", str(caught.value))
    assert advice is not None
    assert build_engine(CoreConfig(device="cpu", kv_memory=float(advice[1])), checkpoint).info.num_pages >= 8
    build_engine(CoreConfig(device="cpu", num_pages=4), checkpoint)  # but what is asked for by number is obeyed


def test_the_context_can_be_shortened_but_not_lengthened(checkpoint: Path) -> None:
    assert build_engine(CoreConfig(device="cpu", context_length=64), checkpoint).info.context_length == 64
    with pytest.raises(RequestError, match="129 is longer than the model's 128") as caught:
        build_engine(CoreConfig(device="cpu", context_length=129), checkpoint)
    assert caught.value.param == "context_length"


@pytest.mark.parametrize("device", ["tpu", "cuda:63", "mps", ""])
def test_a_device_that_does_not_exist_is_named(device: str, checkpoint: Path) -> None:
    with pytest.raises(RequestError, match="device") as caught:
        build_engine(CoreConfig(device=device), checkpoint)
    assert caught.value.param == "device"


def test_types_can_be_chosen(checkpoint: Path) -> None:
    assert build_engine(CoreConfig(device="cpu"), checkpoint).info.dtype == "float32"
    engine = build_engine(CoreConfig(device="cpu", dtype="bfloat16", num_pages=8), checkpoint)
    assert engine.info.dtype == "bfloat16"
    assert len(generate(engine, [[1, 2, 3]], steps=3)[0]) == 3


def test_an_unknown_model_is_named() -> None:
    with pytest.raises(CheckpointError, match="no such model directory"):
        build_engine(CoreConfig(device="cpu"), Path("/no/such/model"))


@pytest.mark.exhaustive
def test_the_draft_source_s_memory_comes_out_of_kv_memory() -> None:
    """Pages of the model and of its draft source take together the memory that the setting gives."""
    for name, settings in (("eagle", {}), ("draft", {"speculative_draft_model": str(SHIPPED_MODEL)})):
        config = CoreConfig(device="cpu", kv_memory=0.03, speculative=name, **settings)
        engine = build_engine(
            config,
            SHIPPED_MODEL,
            make_source=partial(build_source, config, SHIPPED_MODEL),
            draft_memory=partial(draft_bytes, config, SHIPPED_MODEL),
        )
        memory = engine._runner.source._memory
        own = [memory.k_SC, memory.v_SC, memory.feature_SE] if name == "eagle" else [memory.k_LSKD, memory.v_LSKD]
        page = bytes_per_page(read_config(SHIPPED_MODEL), torch.float32)
        taken = sum(tensor.nbytes for tensor in own) + engine.info.num_pages * page
        if name == "eagle":  # a head's slots that belong to no page are a constant
            taken -= sum(tensor[:SCRATCH].nbytes for tensor in own)
        assert 0.97 * 0.03 * 2**30 < taken <= 0.03 * 2**30
