"""Keys that rows share, read once for all of them. Judges: plain torch, where each row reads its own, and for bits each
row alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from triton.runtime.interpreter import InterpreterBuilder

from ramiform.kernels import AttentionArgs, DecodeAttentionArgs, KvCache, RowSpan, attention_groups
from ramiform.kernels.arguments import SharedKeys
from ramiform.kernels.reference.ops import ReferenceOps
from ramiform.kernels.triton import launch_configs
from ramiform.kernels.triton.attention import paged_attention
from ramiform.kernels.triton.ops import TritonOps
from ramiform.tests.kernels.test_deterministic_attention import check_paths, siblings

from .interpreter_dtypes import uniform_dot

PAGE_SIZE = 16
NUM_PAGES = 120
GPU = torch.cuda.is_available()


@dataclass(frozen=True)
class Case:
    """Rows as (path of shared prefixes, further keys, tokens, tree). A prefix "ab" follows the prefix "a"."""

    rows: tuple[tuple[str, int, int, tuple[int, ...]], ...]
    shared: dict[str, int]  # pages of each prefix
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    dtype: torch.dtype = torch.float32
    kv_dtype: torch.dtype | None = None
    window: int | None = None
    soft_cap: float | None = None
    sinks: bool = False

    def spans(self) -> list[RowSpan]:
        free = random.Random(5).sample(range(NUM_PAGES), NUM_PAGES)
        own = {name: [free.pop() for _ in range(count)] for name, count in self.shared.items()}
        spans = []
        for name, keys, tokens, tree in self.rows:
            pages = [page for end in range(1, len(name) + 1) for page in own[name[:end]]]
            first = len(pages) * PAGE_SIZE + keys
            pages += [free.pop() for _ in range(-(-(first + tokens) // PAGE_SIZE) - len(pages))]
            spans.append(RowSpan(first, tokens, np.array(pages), tree))
        return spans


DECODES = (("a", 5, 1, ()), ("a", 77, 1, ()), ("", 100, 1, ()), ("ab", 0, 1, ()), ("ab", 33, 1, ()), ("a", 15, 1, ()))
MIX = (
    ("a", 5, 1, ()),
    ("ab", 3, 12, ()),  # a short chunk
    ("a", 0, 40, ()),  # a long one reads its keys alone
    ("ab", 20, 1, ()),
    ("abc", 7, 1, ()),
    ("abc", 0, 5, (-1, -1, 0, 0)),
    ("", 3, 4, ()),
    ("abc", 30, 3, (-1, 0)),
    ("d", 1, 1, ()),
    ("d", 2, 2, ()),
)
PREFIXES = {"a": 8, "ab": 4, "abc": 5, "d": 4}
CASES = {
    "decodes": Case(DECODES, PREFIXES),
    "everything": Case(MIX, PREFIXES),
    "many rows of one prefix": Case((("a", 3, 1, ()),) * 19, {"a": 5}, heads=2, kv_heads=1),
    "four levels": Case(
        (("abcd", 1, 1, ()), ("abcd", 2, 1, ()), ("abc", 3, 1, ()), ("ab", 4, 1, ()), ("a", 5, 1, ())),
        {"a": 4, "ab": 4, "abc": 4, "abcd": 4},
    ),
    "seven heads share one": Case(DECODES, PREFIXES, heads=7, kv_heads=1, head_dim=48),
    "float16, e4m3": Case(DECODES, PREFIXES, dtype=torch.float16, kv_dtype=torch.float8_e4m3fn),
    "float16, int8, capped": Case(DECODES[:4], PREFIXES, dtype=torch.float16, kv_dtype=torch.int8, soft_cap=2.0),
    "bfloat16": Case(DECODES[:4], PREFIXES, dtype=torch.bfloat16),
    "a window of some shared keys": Case(MIX, PREFIXES, window=120),
    "a window shorter than some rows' own keys": Case(DECODES, PREFIXES, window=20),
    "sinks": Case(MIX, PREFIXES, soft_cap=2.0, sinks=True),
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Share whatever is shared, and launch few programs, since each takes the interpreter milliseconds."""
    monkeypatch.setattr(attention_groups, "PASS_KEYS", 0)
    monkeypatch.setattr(attention_groups, "MERGE_KEYS", 0)
    monkeypatch.setattr(launch_configs, "ASSUMED_MULTIPROCESSORS", 1)
    launch_configs._num_multiprocessors.cache_clear()
    yield
    launch_configs._num_multiprocessors.cache_clear()


def cache(case: Case, device: torch.device) -> KvCache:
    """Fill a cache; its eight-bit codes may be anything, as their scales."""
    torch.manual_seed(3)
    x = torch.randn(2, NUM_PAGES * PAGE_SIZE, case.kv_heads, case.head_dim)
    stored = case.kv_dtype or case.dtype
    k, v = (x * (20 if stored == torch.int8 else 1)).to(stored).to(device)
    scales = torch.rand(2, case.kv_heads, device=device) / 10 + 0.05 if stored.itemsize == 1 else (None, None)
    return KvCache(k, v, *scales)


def queries(case: Case, device: torch.device) -> torch.Tensor:
    torch.manual_seed(4)
    num_tokens = sum(tokens for _, _, tokens, _ in case.rows)
    return torch.randn(num_tokens, case.heads, case.head_dim).to(case.dtype).to(device)


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_shared_keys_give_what_each_row_computes_by_itself(case: Case, device: torch.device) -> None:
    kv, q_THD = cache(case, device), queries(case, device)
    args = AttentionArgs(case.spans(), kv, case.heads, PAGE_SIZE, case.window, case.dtype)
    ours = paged_attention.step_attention(args, deterministic=False, soft_cap=case.soft_cap)
    assert ours.shared is not None
    sinks_H = torch.linspace(-2, 4, case.heads, device=device) if case.sinks else None
    got = ours.attend(q_THD, kv, 0.3, sinks_H)
    want = ReferenceOps(case.soft_cap).attention(args).attend(q_THD, kv, 0.3, sinks_H)
    tolerance = {torch.float32: 5e-6, torch.float16: 3e-3, torch.bfloat16: 3e-2}[case.dtype]
    torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 60])
def test_decode_rows_read_shared_keys_from_tables_on_the_device(window: int | None, device: torch.device) -> None:
    """Prepare as a captured graph does, with room for more pieces and rows than there are."""
    case = Case(DECODES, PREFIXES, window=window)
    spans, kv, q_THD = case.spans(), cache(case, device), queries(case, device)
    places_R = [span.first_position for span in spans]
    ones, zeros = [1] * len(spans), [0] * len(spans)
    pages_R = [span.pages[: place // PAGE_SIZE] for span, place in zip(spans, places_R, strict=True)]
    groups, first_key_R = attention_groups.shared_tokens(
        pages_R, list(range(len(spans))), ones, zeros, page_size=PAGE_SIZE
    )
    pieces = attention_groups.pieces_of(groups, len(spans))
    num_padding = 2
    table_RP = np.zeros((len(spans) + num_padding, 12), dtype=np.int32)
    for row, (span, first_key) in enumerate(zip(spans, first_key_R, strict=True)):
        own = span.pages[first_key // PAGE_SIZE :]
        table_RP[row, : len(own)] = own

    def padded(array: np.ndarray, rows: int, fill: int = 0) -> torch.Tensor:
        more = np.full((rows, *array.shape[1:]), fill, dtype=np.int32)
        return torch.from_numpy(np.concatenate((array, more))).int().to(device)

    shared = SharedKeys(
        *(padded(array, 3) for array in pieces[:4]),
        padded(pieces.tokens_N, 3 * attention_groups.PIECE_TOKENS),
        padded(pieces.places_TL, num_padding, -1),
    )
    num_keys_R = padded(np.array(places_R) + 1, num_padding)
    first_keys = padded(np.array(first_key_R), num_padding)
    args = DecodeAttentionArgs(padded(table_RP, 0), num_keys_R, kv, PAGE_SIZE, window, shared, first_keys)
    attention = TritonOps().decode_attention(args)
    more_THD = torch.cat((q_THD, q_THD[:num_padding]))
    got = attention.attend(more_THD, kv, 0.3)
    step = AttentionArgs(spans, kv, case.heads, PAGE_SIZE, window, case.dtype)
    want = ReferenceOps().attention(step).attend(q_THD, kv, 0.3)
    torch.testing.assert_close(got[: len(spans)], want, atol=5e-6, rtol=5e-6)
    assert not got[len(spans) :].any()


@pytest.mark.exhaustive
@pytest.mark.parametrize("window", [None, 120] if GPU else [120])  # without one: test_deterministic_kernels.py
def test_bits_do_not_depend_on_who_shares_keys(
    window: int | None, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(MIX, PREFIXES, heads=2, kv_heads=1, window=window)
    monkeypatch.setattr(paged_attention, "DETERMINISTIC_SPLIT_KEYS", 64)
    if not GPU:
        monkeypatch.setattr(InterpreterBuilder, "create_dot", uniform_dot)
    kv, q_THD, spans = cache(case, device), queries(case, device), case.spans()

    def attend(q_THD: torch.Tensor, spans: list[RowSpan]) -> torch.Tensor:
        args = AttentionArgs(spans, kv, case.heads, PAGE_SIZE, case.window, case.dtype)
        attention = paged_attention.step_attention(args, deterministic=True)
        grouped.append(attention.shared is not None)
        return attention.attend(q_THD, kv, 0.3)

    grouped: list[bool] = []
    together = attend(q_THD, spans)
    assert grouped == [True]
    alone, first = [], 0
    for span in spans:
        alone.append(attend(q_THD[first : first + span.num_tokens], [span]))
        assert grouped[-1] == bool(span.tree)  # a tree's paths share what comes before it
        first += span.num_tokens
    assert torch.equal(together, torch.cat(alone))
    reference = ReferenceOps().attention(AttentionArgs(spans, kv, case.heads, PAGE_SIZE, case.window, case.dtype))
    torch.testing.assert_close(together, reference.attend(q_THD, kv, 0.3), atol=5e-6, rtol=5e-6)


@pytest.mark.exhaustive
@pytest.mark.skipif(GPU, reason="compares tensors on the CPU")
@pytest.mark.parametrize(("first", "topk"), [(0, 2), (30, 1), (63, 4)])
def test_a_node_has_the_bits_of_plain_decoding(first: int, topk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_attention, "DETERMINISTIC_SPLIT_KEYS", 32)
    monkeypatch.setattr(InterpreterBuilder, "create_dot", uniform_dot)
    rows = [(first, 1, siblings(topk, 3, random.Random(first))), (3, 20, [])]
    check_paths(TritonOps(deterministic=True), rows, None, seed=first)
