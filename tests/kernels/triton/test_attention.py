"""Judge: attention in float64, query by query. Shapes are small and odd: a program of the interpreter takes
milliseconds."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch

from ramiform.kernels.kv_cache import KvCache
from ramiform.kernels.triton.attention.chunk_attention import chunk_attention, query_tiles
from ramiform.kernels.triton.attention.paged_rows import PagedRows
from ramiform.kernels.triton.attention.split_attention import split_attention
from ramiform.kernels.triton.attention.splits import Splits, fixed_splits, make_splits, num_seen
from ramiform.kernels.triton.launch_configs import chunk_tile

PAGE_SIZE = 16
QUANTISED = (torch.int8, torch.float8_e4m3fn)
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@dataclass(frozen=True)
class Case:
    lengths: tuple[int, ...]  # keys of each row, its own tokens included
    queries: tuple[int, ...]  # tokens of each row
    heads: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype = torch.float32
    kv_dtype: torch.dtype | None = None
    window: int | None = None
    soft_cap: float | None = None
    tree: bool = False

    def __str__(self) -> str:
        parts = [f"T{sum(self.queries)}-H{self.heads}-K{self.kv_heads}-D{self.head_dim}"]
        parts.append(str(self.kv_dtype or self.dtype).removeprefix("torch."))
        parts += [f"W{self.window}"] if self.window else []
        parts += ["cap"] if self.soft_cap else []
        parts += ["tree"] if self.tree else []
        return "-".join(parts)


class Problem:
    """A case's tensors, and the answer."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case = case
        draw = random.Random(str(case))
        torch.manual_seed(draw.randrange(1 << 30))
        num_rows, num_pages = len(case.lengths), -(-max(case.lengths) // PAGE_SIZE)
        table_RP = torch.randperm(num_rows * num_pages + 3)[: num_rows * num_pages].view(num_rows, num_pages)
        k_SKD, v_SKD = torch.randn(2, (num_rows * num_pages + 3) * PAGE_SIZE, case.kv_heads, case.head_dim)
        scales = (None, None)
        if case.kv_dtype in QUANTISED:
            k_SKD, v_SKD = (x * (20 if case.kv_dtype == torch.int8 else 1) for x in (k_SKD, v_SKD))
            scales = (torch.rand(case.kv_heads) / 10 + 0.05, torch.rand(case.kv_heads) / 10 + 0.05)
        k_SKD, v_SKD = (x.to(case.kv_dtype or case.dtype) for x in (k_SKD, v_SKD))
        self.q_THD = torch.randn(sum(case.queries), case.heads, case.head_dim).to(case.dtype).to(device)
        self.scale = case.head_dim**-0.5
        self.kv = KvCache(*(None if x is None else x.to(device) for x in (k_SKD, v_SKD, *scales)))  # type: ignore[arg-type]
        visible, positions = [], []
        for length, num in zip(case.lengths, case.queries, strict=True):
            own: list[int] = []
            for i in range(num):
                parent = i - 1 if not case.tree else draw.randrange(-1, i) if i else -1
                own.append((own[parent] if parent >= 0 else 0) | 1 << i)
                positions.append(length - num + own[-1].bit_count() - 1)
            visible += own
        self.visible = visible
        self.positions = positions
        self.table_RP = table_RP
        first = torch.tensor([0, *case.queries]).cumsum(0)
        self.rows = PagedRows(
            page_table_RP=table_RP.int().to(device),
            num_keys_R=torch.tensor(case.lengths, dtype=torch.int32, device=device),
            first_query_R=first[:-1].int().to(device),
            num_queries_R=first.diff().int().to(device),
            positions_T=torch.tensor(positions, dtype=torch.int32, device=device),
            visible_T=torch.tensor(visible, device=device) if case.tree else None,
            max_queries=max(case.queries),
            page_size=PAGE_SIZE,
            window=case.window,
        )

    def splits(self, num_wanted: int) -> Splits:
        return make_splits(num_seen(self.rows), num_wanted=num_wanted, tile=64)

    def answer(self) -> torch.Tensor:
        case, group = self.case, self.case.heads // self.case.kv_heads
        k_SKD, v_SKD = (x.cpu().double() for x in (self.kv.k_SKD, self.kv.v_SKD))
        if self.kv.k_scale_K is not None and self.kv.v_scale_K is not None:
            k_SKD = k_SKD * self.kv.k_scale_K.cpu().double()[:, None]
            v_SKD = v_SKD * self.kv.v_scale_K.cpu().double()[:, None]
        out, token = [], 0
        for row, (length, num) in enumerate(zip(case.lengths, case.queries, strict=True)):
            slots = (self.table_RP[row, :, None] * PAGE_SIZE + torch.arange(PAGE_SIZE)).flatten()[:length]
            for _ in range(num):
                own = [self.visible[token] >> j & 1 == 1 for j in range(num)]
                seen = torch.tensor([True] * (length - num) + own)
                if case.window is not None:  # a tree's own tokens are all within it
                    end = length - num if case.tree else length
                    seen[:end] &= torch.arange(end) > self.positions[token] - case.window
                for head in range(case.heads):
                    q_D = self.q_THD[token, head].cpu().double()
                    scores = k_SKD[slots[seen], head // group] @ q_D * self.scale
                    if case.soft_cap is not None:
                        scores = case.soft_cap * torch.tanh(scores / case.soft_cap)
                    out.append(scores.softmax(0) @ v_SKD[slots[seen], head // group])
                token += 1
        return torch.stack(out).view(self.q_THD.shape)


def check(got: torch.Tensor, problem: Problem) -> None:
    tolerance = TOLERANCE[torch.float16 if problem.case.kv_dtype in QUANTISED else problem.case.dtype]
    torch.testing.assert_close(got.cpu().double(), problem.answer(), atol=tolerance, rtol=tolerance)


DECODES = [
    Case((1, 63, 64, 65, 200), (1, 1, 1, 1, 1), 4, 2, 64),
    Case((300,), (1,), 7, 1, 48),  # seven heads share one
    Case((17, 130), (1, 1), 32, 2, 16, torch.float16),
    Case((17, 130), (1, 1), 4, 2, 64, torch.bfloat16),
    Case((17, 130), (1, 1), 4, 2, 64, torch.float16, torch.float8_e4m3fn),
    Case((17, 130), (1, 1), 4, 2, 64, torch.bfloat16, torch.float8_e4m3fn),
    Case((17, 130), (1, 1), 4, 2, 80, torch.float16, torch.int8),
    Case((17, 200), (1, 1), 2, 1, 32, window=50),
    Case((17, 200), (1, 1), 2, 1, 32, soft_cap=3.0),
]
TREES = [
    Case((5, 130, 66), (3, 8, 1), 4, 2, 64, tree=True),
    Case((130, 40), (33, 40), 6, 2, 32, tree=True),  # several tiles of queries; a row that is all tree
    Case((130, 70), (9, 2), 4, 1, 32, torch.bfloat16, torch.float8_e4m3fn, tree=True),
    Case((200, 50), (9, 2), 4, 1, 32, window=40, tree=True),
    Case((130, 40), (5, 4), 4, 2, 32),  # few tokens without a tree
]
CHUNKS = [
    Case((63, 100, 130), (63, 40, 1), 4, 2, 64),
    Case((100,), (100,), 3, 3, 16),
    Case((90, 140), (20, 139), 14, 2, 48, torch.float16),
    Case((90, 100), (20, 100), 4, 2, 32, torch.bfloat16),
    Case((90, 100), (20, 100), 4, 2, 32, torch.float16, torch.float8_e4m3fn),
    Case((90, 100), (20, 100), 4, 2, 32, torch.float16, torch.int8),
    Case((130, 60), (50, 60), 4, 2, 32, window=33),
    Case((90, 100), (20, 100), 4, 2, 32, soft_cap=2.0),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("num_wanted", [1, 6])
@pytest.mark.parametrize("case", DECODES + TREES, ids=str)
def test_rows_of_few_tokens_attend_to_what_they_see(case: Case, num_wanted: int, device: torch.device) -> None:
    problem = Problem(case, device)
    splits = problem.splits(num_wanted)
    out_THD = torch.empty_like(problem.q_THD)
    split_attention(problem.q_THD, problem.kv, problem.rows, splits, out_THD, problem.scale, case.soft_cap)
    check(out_THD, problem)


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", CHUNKS, ids=str)
def test_rows_of_many_tokens_attend_to_what_they_see(case: Case, device: torch.device) -> None:
    problem = Problem(case, device)
    tile = chunk_tile(device, case.head_dim, problem.kv.k_SKD.dtype)
    tiles = query_tiles(case.queries, case.lengths, group=case.heads // case.kv_heads, tile=tile, device=device)
    for parts in (1, 3) if case in (CHUNKS[0], CHUNKS[-2]) else (1,):
        out_THD = torch.empty_like(problem.q_THD)
        arguments = problem.q_THD, problem.kv, problem.rows, tiles, out_THD, problem.scale, case.soft_cap
        chunk_attention(*arguments, parts=parts)
        check(out_THD, problem)


def test_a_padding_row_gets_no_split(device: torch.device) -> None:
    splits = make_splits(torch.tensor([5, 0, 1000, 0, 333], dtype=torch.int32, device=device), num_wanted=8, tile=64)
    size = int(splits.size)
    assert size % 64 == 0
    assert splits.first.tolist() == [
        0,
        1,
        1,
        1 + -(-1000 // size),
        1 + -(-1000 // size),
        1 + -(-1000 // size) + -(-333 // size),
    ]
    assert int(splits.first[-1]) <= splits.num_max


@pytest.mark.slow
def test_splits_of_one_size_give_a_row_the_same_bits_in_any_batch(device: torch.device) -> None:
    alone = Problem(Case((300,), (1,), 4, 2, 32), device)
    first = torch.empty_like(alone.q_THD)
    splits = fixed_splits(alone.rows.num_keys_R, size=128, max_keys=300)
    split_attention(alone.q_THD, alone.kv, alone.rows, splits, first, alone.scale)
    doubled = PagedRows(
        page_table_RP=alone.rows.page_table_RP.repeat(3, 1),
        num_keys_R=torch.tensor([40, 300, 7], dtype=torch.int32, device=device),
        first_query_R=torch.arange(3, dtype=torch.int32, device=device),
        num_queries_R=torch.ones(3, dtype=torch.int32, device=device),
        positions_T=torch.tensor([39, 299, 6], dtype=torch.int32, device=device),
        visible_T=None,
        max_queries=1,
        page_size=PAGE_SIZE,
        window=None,
    )
    q_THD = alone.q_THD.repeat(3, 1, 1)
    together = torch.empty_like(q_THD)
    splits = fixed_splits(doubled.num_keys_R, size=128, max_keys=300)
    split_attention(q_THD, alone.kv, doubled, splits, together, alone.scale)
    assert torch.equal(first[0], together[1])
