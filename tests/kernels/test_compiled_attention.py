"""Compiled attention on CPUs. Judge: softmax in float64 over each query's own keys, one query at a time.

With bfloat16 queries and keys, weights may be rounded to bfloat16 (`within_rounding`).
"""

from __future__ import annotations

import ctypes
import mmap
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramiform.kernels import AttentionArgs, Chunk, KvCache, RowSpan, for_device
from ramiform.kernels.cpu import thread_pool
from ramiform.kernels.cpu.attention.paged import CompiledAttention
from ramiform.kernels.cpu.attention.plan import AttentionPlan
from ramiform.kernels.cpu.attention.plan_array import COST, HEADS, NUM_TILES
from ramiform.kernels.reference.ops import DeterministicOps, ReferenceOps
from ramiform.kernels.reference.quantise import E4M3, quantise

PAGE_SIZE = 16
CPU = torch.device("cpu")
SCALE = 0.3
# Float32 sums of some hundred terms, rounded after each where products and sums are not fused; bfloat16 outputs are
# rounded once.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1e-2}
FLOATS = [torch.float32, torch.bfloat16]  # of queries, keys and values


@dataclass
class Memory:
    """Slots of one layer, handed out page by page. Slots that hold no key are NaN."""

    kv: KvCache
    free: list[int]
    draw: torch.Generator
    page_size: int = PAGE_SIZE
    deterministic: bool = False

    @classmethod
    def of(
        cls, K: int, D: int, *, stored: torch.dtype = torch.float32, seed: int = 0, page_size: int = PAGE_SIZE
    ) -> Memory:
        num_pages = 6400 // page_size
        nothing = torch.full((2, num_pages * page_size, K, D), float("nan"))
        scale_K = (0.01 * torch.arange(1.0, K + 1), 0.02 * torch.arange(1.0, K + 1))
        if stored == torch.int8:
            kv = KvCache(*torch.zeros(2, num_pages * page_size, K, D, dtype=stored), *scale_K)
        elif stored == E4M3:
            kv = KvCache(*nothing.to(stored), *scale_K)
        else:
            kv = KvCache(*nothing.to(stored))
        pages = random.Random(seed).sample(range(num_pages), num_pages)
        return cls(kv, pages, torch.Generator().manual_seed(seed), page_size)

    def row(self, first: int, count: int, tree: Sequence[int] = (), prefix: Sequence[int] = ()) -> RowSpan:
        """Return a row that starts with the full pages `prefix`; other keys and values are new."""
        length, start = first + count, len(prefix) * self.page_size
        pages = np.array([*prefix, *(self.free.pop() for _ in range(-(-length // self.page_size) - len(prefix)))])
        slots = self.slots(pages, np.arange(start, length))
        for cache_SKD, scale_K in ((self.kv.k_SKD, self.kv.k_scale_K), (self.kv.v_SKD, self.kv.v_scale_K)):
            x_TKD = torch.randn(len(slots), *cache_SKD.shape[1:], generator=self.draw)
            stored = x_TKD.to(cache_SKD.dtype) if scale_K is None else quantise(x_TKD, scale_K, cache_SKD.dtype)
            cache_SKD.view(torch.uint8)[slots] = stored.view(torch.uint8)
        return RowSpan(first, count, pages, tree)

    def slots(self, pages: np.ndarray, places: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(pages[places // self.page_size] * self.page_size + places % self.page_size)

    def queries(self, rows: Sequence[RowSpan], group: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        _, K, D = self.kv.k_SKD.shape
        num_tokens = sum(row.num_tokens for row in rows)
        return torch.randn(num_tokens, K * group, D, generator=self.draw).to(dtype)

    def attend(
        self,
        q_THD: torch.Tensor,
        rows: Sequence[RowSpan],
        *,
        window: int | None = None,
        cap: float | None = None,
        kv: KvCache | None = None,
    ) -> torch.Tensor:
        kv = kv or self.kv
        args = AttentionArgs(rows, kv, q_THD.shape[1], self.page_size, window, q_THD.dtype)
        attention = for_device(CPU, deterministic=self.deterministic, attention_cap=cap).attention(args)
        assert isinstance(attention, CompiledAttention)
        return attention.attend(q_THD, kv, SCALE)

    def weights_and_values(
        self,
        q_THD: torch.Tensor,
        rows: Sequence[RowSpan],
        window: int | None,
        cap: float | None,
        sinks_H: torch.Tensor | None = None,
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield each query's weights [H, L] and values [L, H, D]."""
        k_SKD, v_SKD = self.kv.k_SKD.double(), self.kv.v_SKD.double()
        if self.kv.k_scale_K is not None and self.kv.v_scale_K is not None:
            k_SKD, v_SKD = k_SKD * self.kv.k_scale_K[:, None], v_SKD * self.kv.v_scale_K[:, None]
        group = q_THD.shape[1] // k_SKD.shape[1]
        place = 0
        for row in rows:
            for t in range(row.num_tokens):
                places = seen(row, t)
                if isinstance(window, Chunk):
                    places = places[(len(places) - 1) // window * window :]
                elif window:
                    places = places[-window:]
                slots = self.slots(row.pages, np.array(places))
                k_LHD, v_LHD = (x_SKD[slots].repeat_interleave(group, 1) for x_SKD in (k_SKD, v_SKD))
                scores_HL = torch.einsum("hd,lhd->hl", q_THD[place].double(), k_LHD) * SCALE
                if cap is not None:
                    scores_HL = cap * torch.tanh(scores_HL / cap)
                if sinks_H is not None:
                    scores_HL = torch.cat((scores_HL, sinks_H[:, None].double()), dim=1)
                yield scores_HL.softmax(-1)[:, : len(slots)], v_LHD
                place += 1

    def judge(
        self,
        q_THD: torch.Tensor,
        rows: Sequence[RowSpan],
        *,
        window: int | None = None,
        cap: float | None = None,
        sinks_H: torch.Tensor | None = None,
    ) -> torch.Tensor:
        found = self.weights_and_values(q_THD, rows, window, cap, sinks_H)
        return torch.stack([torch.einsum("hl,lhd->hd", w_HL, v_LHD) for w_HL, v_LHD in found])

    def within_rounding(
        self,
        got_THD: torch.Tensor,
        q_THD: torch.Tensor,
        rows: Sequence[RowSpan],
        *,
        window: int | None = None,
        cap: float | None = None,
    ) -> None:
        """Compare bfloat16 results with the judge.

        Weights w, rounded to w (1 + e) with |e| <= u = 2^-8 and divided by their sum, move the result o by at most
        u / (1 - u) times the sum of w |v - o|. The result is rounded too. Sums in float32 and the approximated
        exponential add less than 2e-5 of the sum of w |v|.
        """
        unit = 2.0**-8
        for got_HD, (w_HL, v_LHD) in zip(
            got_THD.double(), self.weights_and_values(q_THD, rows, window, cap), strict=True
        ):
            want_HD = torch.einsum("hl,lhd->hd", w_HL, v_LHD)
            spread_HD = torch.einsum("hl,lhd->hd", w_HL, (v_LHD - want_HD).abs())
            small_HD = 2e-5 * torch.einsum("hl,lhd->hd", w_HL, v_LHD.abs())
            limit_HD = (unit / (1 - unit) * spread_HD + small_HD) * (1 + unit) + unit * want_HD.abs()
            assert ((got_HD - want_HD).abs() <= limit_HD).all()

    def check(
        self, rows: Sequence[RowSpan], group: int, *, window: int | None = None, cap: float | None = None
    ) -> None:
        """Compare the rows with the judge, and each row alone with itself among the others, bit for bit. Queries have
        the dtype of the keys."""
        q_THD = self.queries(rows, group, self.kv.k_SKD.dtype)
        got_THD = self.attend(q_THD, rows, window=window, cap=cap)
        if q_THD.dtype == torch.bfloat16:
            self.within_rounding(got_THD, q_THD, rows, window=window, cap=cap)
        else:
            near(got_THD, self.judge(q_THD, rows, window=window, cap=cap))
        start = 0
        for row in rows:
            own = slice(start, start + row.num_tokens)
            assert torch.equal(self.attend(q_THD[own], [row], window=window, cap=cap), got_THD[own])
            start += row.num_tokens


def seen(row: RowSpan, t: int) -> list[int]:
    """Return the places that token t of a row sees, in the order of their positions."""
    first_node = row.first_position + row.num_tokens - len(row.tree)
    node = row.first_position + t - first_node
    if node < 0:
        return list(range(row.first_position + t + 1))
    path: list[int] = []
    while node >= 0:
        path.append(first_node + node)
        node = row.tree[node]
    return [*range(first_node), *reversed(path)]


def near(got_THD: torch.Tensor, want_THD: torch.Tensor) -> None:
    tolerance = TOLERANCE[got_THD.dtype]
    torch.testing.assert_close(got_THD.double(), want_THD, atol=tolerance, rtol=tolerance)


@st.composite
def mixes(draw: st.DrawFn) -> list[tuple[int, int, int, list[int]]]:
    """Rows: pages shared with an earlier row, tokens after them in the cache, new tokens, and the parents of nodes."""
    sizes = st.tuples(st.integers(0, 20), st.integers(0, 150), st.sampled_from([1, 1, 1, 5, 33, 70]))
    rows = draw(st.lists(sizes, min_size=1, max_size=6))
    trees = [
        [draw(st.integers(-1, node - 1)) for node in range(draw(st.sampled_from([0, 0, 0, 3, 12, 70])))] for _ in rows
    ]
    return [(*row, tree) for row, tree in zip(rows, trees, strict=True)]


@pytest.mark.exhaustive
@given(
    mix=mixes(),
    heads=st.tuples(st.integers(1, 3), st.integers(1, 8)),
    head_dim=st.sampled_from([6, 16, 64, 80]),
    window=st.none() | st.sampled_from([1, 3, 40, 100, Chunk(1), Chunk(7), Chunk(50)]),
    cap=st.none() | st.just(5.0),
    page_size=st.sampled_from([4, 16, 24]),
    dtype=st.sampled_from(FLOATS),
    seed=st.integers(0, 1 << 20),
)
@settings(max_examples=60, deadline=None)
def test_any_mix_of_rows_equals_softmax_and_each_row_alone(
    mix: list[tuple[int, int, int, list[int]]],
    heads: tuple[int, int],
    head_dim: int,
    window: int | None,
    cap: float | None,
    page_size: int,
    dtype: torch.dtype,
    seed: int,
) -> None:
    memory = Memory.of(heads[0], head_dim, stored=dtype, seed=seed, page_size=page_size)
    rows: list[RowSpan] = []
    for shared, more, count, tree in mix:
        parent = rows[seed % len(rows)] if rows else None
        full_pages = 0 if parent is None else min(shared, parent.first_position // page_size)
        prefix = parent.pages[:full_pages].tolist() if parent is not None else []
        rows.append(memory.row(full_pages * page_size + more, count + len(tree), tree, prefix))
    memory.check(rows, heads[1], window=window, cap=cap)


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", [2, 16, 80, 96, 128, 256])
@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 8, 33])
def test_head_sizes_and_groups(head_dim: int, group: int) -> None:
    memory = Memory.of(2, head_dim)
    prompt = memory.row(100, 40)
    rows = [prompt, memory.row(130, 1, prefix=prompt.pages[:6].tolist()), memory.row(0, 1)]
    memory.check(rows, group)


@pytest.mark.parametrize(
    ("head_dim", "group"), [(2, 3), (16, 1), (36, 7), (64, 2), (64, 7), (80, 4), (96, 5), (128, 8), (256, 33)]
)
def test_bfloat16_keys_meet_rounded_weights(head_dim: int, group: int) -> None:
    memory = Memory.of(2, head_dim, stored=torch.bfloat16)
    prompt = memory.row(100, 40)
    rows = [prompt, memory.row(130, 1, prefix=prompt.pages[:6].tolist()), memory.row(0, 1), memory.row(30, 5, [-1, 0])]
    memory.check(rows, group)
    memory.check(rows, group, window=50, cap=3.0)


def test_the_base_of_weights_follows_growing_scores() -> None:
    """Scores of later blocks exceed all before them, in the last but one row's by more than exponents hold."""
    memory = Memory.of(1, 64, stored=torch.bfloat16)
    row = memory.row(380, 4)
    slots = memory.slots(row.pages, np.arange(384))
    memory.kv.k_SKD[slots] = (torch.arange(384) / 64.0).view(-1, 1, 1).expand(-1, 1, 64).bfloat16()
    q_THD = torch.tensor([0.0, 0.5, 40.0, -1.0]).view(4, 1, 1).expand(4, 1, 64).bfloat16().contiguous()
    memory.within_rounding(memory.attend(q_THD, [row]), q_THD, [row])
    flat = memory.kv.v_SKD[slots][:1].clone()
    memory.kv.v_SKD[slots] = flat
    assert torch.equal(memory.attend(q_THD, [row]), flat.expand(4, 1, 64)), "equal values stay equal"


@pytest.mark.parametrize("window", [None, 30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, E4M3, torch.int8], ids=str)
def test_stored_dtypes(stored: torch.dtype, dtype: torch.dtype, window: int | None) -> None:
    memory = Memory.of(2, 64, stored=stored)
    rows = [memory.row(70, 40), memory.row(99, 1), memory.row(60, 6, [-1, 0, 0, 2])]
    q_THD = memory.queries(rows, 3, dtype)
    near(memory.attend(q_THD, rows, window=window), memory.judge(q_THD, rows, window=window))


@pytest.mark.parametrize("stored", [torch.float16, torch.int8, E4M3], ids=str)
def test_every_code_is_read_exactly(stored: torch.dtype) -> None:
    """A row of one key returns its value."""
    codes = torch.arange(-128, 128, dtype=torch.int8) if stored.itemsize == 1 else torch.arange(-(1 << 15), 1 << 15)
    numbers = codes.view(stored) if stored.itemsize == 1 else codes.to(torch.int16).view(stored)
    numbers = numbers[numbers.float().isfinite()]
    numbers = torch.cat([numbers, numbers[: -len(numbers) % 8]]).view(-1, 1, 8)
    kv = KvCache(torch.zeros(len(numbers), 1, 8).to(stored), numbers)
    rows = [RowSpan(0, 1, np.array([slot])) for slot in range(len(numbers))]
    args = AttentionArgs(rows, kv, 1, 1, None, torch.float32)
    got = for_device(CPU).attention(args).attend(torch.zeros(len(numbers), 1, 8), kv, 1.0)
    assert torch.equal(got, numbers.float())


def test_rows_that_share_pages_are_computed_together() -> None:
    """System prompt of 8 blocks; two forks of it, of which one forks again."""
    memory = Memory.of(2, 32)
    system = memory.row(512, 1)
    fork = memory.row(640, 1, prefix=system.pages[:32].tolist())
    rows = [system, fork, memory.row(700, 1, prefix=fork.pages[:40].tolist()), memory.row(5, 1)]
    rows += [memory.row(512 + extra, 1, prefix=system.pages[:32].tolist()) for extra in (0, 3, 90)]
    plan = AttentionPlan.of(rows, page_size=PAGE_SIZE, window=None, group=2)
    assert plan.array[NUM_TILES] == 2  # all that share the system prompt, and the one that does not
    memory.check(rows, 2)


@pytest.mark.parametrize("window", [None, 70, Chunk(96)], ids=str)
def test_wanted_tokens_alone_have_the_bits_of_all(window: int | Chunk | None) -> None:
    """Rows attend from their first wanted token on: none of the first, one that is wanted twice, nodes of a tree."""
    memory = Memory.of(2, 64)
    system = memory.row(300, 40)
    fork = memory.row(288, 30, prefix=system.pages[:18].tolist())
    rows = [system, fork, memory.row(100, 1 + 3, (-1, 0, -1)), memory.row(0, 150), memory.row(20, 1)]
    q_THD = memory.queries(rows, 2)
    plan = AttentionPlan.of(rows, page_size=PAGE_SIZE, window=window, group=2, heads=2, threads=2)
    whole = CompiledAttention(plan).attend(q_THD, memory.kv, SCALE)
    wanted = np.array([69, 73, 71, 222, 222, 190, 224])
    out_THD = CompiledAttention(replace(plan, array=plan.array_of(wanted))).attend(q_THD, memory.kv, SCALE)
    assert torch.equal(out_THD[wanted], whole[wanted])
    assert plan.array_of(wanted)[COST] < plan.array[COST] / 2


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("cuts", [(1, 300), (64, 128, 300), (37, 90, 91, 250, 300)], ids=str)
def test_chunks_have_the_bits_of_the_whole(cuts: tuple[int, ...], window: int | None, dtype: torch.dtype) -> None:
    memory = Memory.of(2, 64, stored=dtype)
    whole = memory.row(0, 300)
    q_THD = memory.queries([whole], 3, dtype)
    got = memory.attend(q_THD, [whole], window=window)
    near(got, memory.judge(q_THD, [whole], window=window))
    for begin, end in zip((0, *cuts), cuts, strict=False):
        chunk = RowSpan(begin, end - begin, whole.pages[: -(-end // PAGE_SIZE)])
        assert torch.equal(memory.attend(q_THD[begin:end], [chunk], window=window), got[begin:end])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("window", [None, 3, 70])
@pytest.mark.parametrize("first", [0, 50, 61, 64, 200])
def test_a_node_has_the_bits_of_plain_decoding(first: int, window: int | None, dtype: torch.dtype) -> None:
    """The path of each node, decoded in a cache of its own, token by token."""
    draw = random.Random(first)
    tree = [draw.randint(max(-1, node - 5), node - 1) for node in range(90)]
    memory = Memory.of(1, 64, stored=dtype)
    row = memory.row(first, 2 + len(tree), tree)
    q_THD = memory.queries([row], 2, dtype)
    got = memory.attend(q_THD, [row], window=window)
    near(got, memory.judge(q_THD, [row], window=window))
    slots = memory.slots(row.pages, np.arange(first + 2 + len(tree)))
    for t in range(row.num_tokens):
        places = seen(row, t)
        kv = KvCache(memory.kv.k_SKD[slots[places]], memory.kv.v_SKD[slots[places]])
        pages = np.arange(-(-len(places) // PAGE_SIZE))
        plain = RowSpan(len(places) - 1, 1, pages)
        assert torch.equal(memory.attend(q_THD[t : t + 1], [plain], window=window, kv=kv), got[t : t + 1])


@pytest.mark.skipif(sys.platform != "linux", reason="mprotect")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("head_dim", [6, 64, 80])
def test_nothing_is_read_behind_a_cache(head_dim: int, dtype: torch.dtype) -> None:
    """A read of the page behind the keys or the values ends the process."""
    num_slots, K = 203, 2

    def guarded() -> torch.Tensor:
        size = num_slots * K * head_dim * dtype.itemsize
        end = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        memory = mmap.mmap(-1, end + mmap.PAGESIZE)
        address = np.frombuffer(memory, np.uint8).ctypes.data
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + end), mmap.PAGESIZE, 0) == 0
        numbers = np.frombuffer(memory, np.uint8, size, end - size)
        return torch.from_numpy(numbers).view(dtype).view(num_slots, K, head_dim)

    memory = Memory(
        KvCache(guarded(), guarded()), list(range(num_slots)), torch.Generator().manual_seed(0), page_size=1
    )
    memory.check([memory.row(63, 1), memory.row(127, 2), memory.row(9, 1)], group=1)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan_in_one_row_does_not_reach_another(dtype: torch.dtype) -> None:
    memory = Memory.of(1, 16, stored=dtype)
    system = memory.row(127, 1)
    rows = [memory.row(140, 1, prefix=system.pages.tolist()) for _ in range(3)]
    memory.kv.v_SKD[memory.slots(rows[0].pages, np.array([130]))] = float("nan")
    memory.kv.k_SKD[memory.slots(rows[1].pages, np.array([140]))] = float("nan")
    out_THD = memory.attend(memory.queries(rows, 4, dtype), rows)
    assert out_THD.isnan().any(-1).any(-1).tolist() == [True, True, False]


def test_slices_of_heads_have_the_bits_of_all() -> None:
    """A slice's cache is a view whose slots are not contiguous."""
    memory = Memory.of(4, 32)
    rows = [memory.row(90, 1), memory.row(20, 30)]
    q_THD = memory.queries(rows, 2)
    whole = memory.attend(q_THD, rows)
    part = memory.attend(q_THD[:, 4:], rows, kv=memory.kv.heads(slice(2, 4)))
    assert torch.equal(part, whole[:, 4:])
    attention = for_device(CPU).attention(AttentionArgs(rows, memory.kv, 8, PAGE_SIZE, None, torch.float32))
    one = attention.attend(q_THD[:, 3:4], memory.kv.heads(slice(1, 2)), SCALE)  # half of a key head's queries
    assert torch.equal(one, whole[:, 3:4])


@pytest.mark.parametrize("lengths", [[900], [700, 300]])
def test_threads_share_the_query_heads_of_one_key_head(lengths: list[int]) -> None:
    memory = Memory.of(1, 36)
    rows = [memory.row(length, 1) for length in lengths]
    q_THD = memory.queries(rows, 6)
    alone = memory.attend(q_THD, rows)
    near(alone, memory.judge(q_THD, rows))
    before = thread_pool.num_threads()
    try:
        for threads in (2, 4, 5, 6):
            thread_pool.set_num_threads(threads)
            assert torch.equal(memory.attend(q_THD, rows), alone)
    finally:
        thread_pool.set_num_threads(before)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_tasks_of_several_heads_and_rows_have_the_bits_of_single_ones(dtype: torch.dtype) -> None:
    """A system prompt's rows become a tile for each thread, short rows a tile of several; a task has both heads."""
    memory = Memory.of(2, 64, stored=dtype)
    system = memory.row(128, 1)
    shared = [memory.row(130 + 9 * row, 1, prefix=system.pages[:8].tolist()) for row in range(9)]
    before = thread_pool.num_threads()
    try:
        for threads, rows, num_tiles in (
            (1, shared, 1),
            (2, shared, 2),
            (2, [memory.row(40 * row % 170, 1) for row in range(33)], 11),
        ):
            thread_pool.set_num_threads(threads)
            memory.check(rows, 2)
            args = AttentionArgs(rows, memory.kv, 4, PAGE_SIZE, None, dtype)
            attention = for_device(CPU).attention(args)
            assert isinstance(attention, CompiledAttention)
            plan = attention.plan.array
            assert (plan[NUM_TILES], plan[HEADS]) == (num_tiles, 2)
    finally:
        thread_pool.set_num_threads(before)


@pytest.mark.parametrize("window", [None, 30, Chunk(29)])
@pytest.mark.parametrize(("K", "group"), [(2, 3), (1, 6)])
def test_sinks_take_part_in_the_softmax(K: int, group: int, window: int | None) -> None:
    memory = Memory.of(K, 32, stored=torch.int8 if K == 2 else torch.float32)
    rows = [memory.row(900, 1), memory.row(70, 40), memory.row(60, 6, [-1, 0, 0, 2]), memory.row(0, 1)]
    q_THD, sinks_H = memory.queries(rows, group), torch.linspace(-3, 6, K * group)
    args = AttentionArgs(rows, memory.kv, K * group, PAGE_SIZE, window, torch.float32)
    for cap in (None, 5.0):
        want = memory.judge(q_THD, rows, window=window, cap=cap, sinks_H=sinks_H)
        for ops in (for_device(CPU, attention_cap=cap), ReferenceOps(cap), DeterministicOps(cap)):
            near(ops.attention(args).attend(q_THD, memory.kv, SCALE, sinks_H), want)


@pytest.mark.parametrize("sink", [-1000.0, 2.0, 60.0])
def test_sinks_take_part_in_the_softmax_of_bfloat16(sink: float) -> None:
    memory = Memory.of(2, 64, stored=torch.bfloat16)
    rows = [memory.row(900, 1), memory.row(70, 40)]
    q_THD, sinks_H = memory.queries(rows, 3, torch.bfloat16), torch.linspace(sink, sink + 3, 6)
    args = AttentionArgs(rows, memory.kv, 6, PAGE_SIZE, None, torch.bfloat16)
    got = for_device(CPU).attention(args).attend(q_THD, memory.kv, SCALE, sinks_H)
    torch.testing.assert_close(got.double(), memory.judge(q_THD, rows, sinks_H=sinks_H), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_values_may_be_the_first_dimensions_of_keys(dtype: torch.dtype) -> None:
    memory = Memory.of(1, 36, stored=dtype)
    rows = [memory.row(200, 3), memory.row(90, 40)]
    q_THD = memory.queries(rows, 4, dtype)
    latents = KvCache(memory.kv.k_SKD, memory.kv.k_SKD[..., :24])
    memory.kv = KvCache(memory.kv.k_SKD, memory.kv.k_SKD)
    near(memory.attend(q_THD, rows, kv=latents), memory.judge(q_THD, rows)[..., :24])


def check_rounded(*shapes: tuple[int, int], deterministic: bool = False) -> None:
    """Check rows of many kinds over bfloat16 keys, with head sizes and rows that share a key head as given.

    `tests/composition/test_tiles.py` does so with emulated tiles and dot products.
    """
    for head_dim, group in shapes:
        memory = replace(Memory.of(2, head_dim, stored=torch.bfloat16), deterministic=deterministic)
        prompt = memory.row(100, 40)
        rows = [prompt, memory.row(130, 1, prefix=prompt.pages[:6].tolist()), memory.row(70, 9, [-1, 0, 0, 2])]
        for window, cap in ((None, None), (50, 3.0)):
            memory.check(rows, group, window=window, cap=cap)
