"""Compiled latent attention of a layer: both forms, and the rule that chooses one for each row.

Absorbed: a head's queries are multiplied by its part of `kv_b_proj` that would expand a latent to a key, they attend to
the latents themselves, and the outputs are expanded to values. Expanded: the latents of all keys that a chunk sees are
expanded to keys and values, one head at a time, and attention is the usual one. A pair of a query and a key costs a
third of the multiplications then, but each key has to be expanded. Both give the same within rounding.

Legend: T tokens, H query heads, N plain dimensions of a head, R rotated ones, D = N + R, V of a value, C rank of the
latent, L keys of expanded rows, S slots, W words of a descriptor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from numba import carray, types

from ...arguments import RowSpan
from ...kv_cache import KvCache
from ...reference.attention import gather_slots
from ..bfloat16 import narrow
from ..compiled import Floats, Ints, compiled_in_order
from ..pointers import address_of, pointer_to
from ..products.amx import usable
from ..products.matmul import multiply_some
from ..products.packed_matrix import BFLOAT16_ROWS, WIDTH, PackedMatrix
from ..thread_pool import num_threads, run_tasks
from .blocks import DESCRIPTOR, DTYPE, DTYPES, HEAD_SIZE, KEYS, KV_HEADS, ON_TILES, STRIDE, VALUES, kv_descriptor
from .inner import BFLOAT16_DOTS, FLOAT32
from .paged import CompiledAttention, attend_task, num_tasks, scratch_size
from .plan import AttentionPlan
from .plan_array import GROUP, TOKENS

_MIN_WORK = 4_000_000  # multiplications of a thread, or numbers of weights that it reads: 0.1 ms
_MIN_ROWS = 16  # tokens of a row from which on expanding its keys may pay
_FEW_TOKENS = 16  # up to which each thread computes all of some heads
_BLOCK_KEYS = 192  # expanded at a time where they are rounded
_MAX_BYTES = 1 << 30  # of expanded keys and values, one head of each thread at a time

_floats, _halves = pointer_to(types.float32), pointer_to(types.uint16)


class LatentMatrices:
    """The matrices of `kv_b_proj` of all heads, packed for products with queries, sums of latents, and latents."""

    def __init__(self, key_HNC: torch.Tensor, value_HCV: torch.Tensor) -> None:
        """Pack them in the dtype of both, float32 or bfloat16. `key_HNC` expands latents to keys when transposed."""
        self.heads, self.plain_size, self.rank = key_HNC.shape
        self.value_size = value_HCV.shape[2]
        self.dtype = key_HNC.dtype
        expand_HXC = torch.cat((value_HCV.transpose(1, 2), key_HNC), dim=1)
        self.to_query, self.to_value, self.to_both = (
            _pack_heads(weight_HOI) for weight_HOI in (key_HNC.transpose(1, 2), value_HCV.transpose(1, 2), expand_HXC)
        )

    @property
    def has_dots(self) -> bool:
        """True if products are those of bfloat16s, which take half the time."""
        return bool(self.to_both.descriptor[0] == BFLOAT16_ROWS)

    def dense(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `key_HNC` and `value_HCV`."""
        both_HXC = self.to_both.dense().to(self.dtype).unflatten(0, (self.heads, -1))
        end = self.value_size + self.plain_size
        key_HNC, value_HVC = both_HXC[:, self.value_size : end], both_HXC[:, : self.value_size]
        return key_HNC.contiguous(), value_HVC.transpose(1, 2).contiguous()

    @property
    def nbytes(self) -> int:
        """Bytes of the matrices, padding included. A step reads two thirds of them, or the last third."""
        return self.to_query.nbytes + self.to_value.nbytes + self.to_both.nbytes


def _pack_heads(weight_HOI: torch.Tensor) -> PackedMatrix:
    """Pack the heads' matrices one below the other, each in panels of its own."""
    O, inputs = weight_HOI.shape[1:]  # noqa: E741
    filled = F.pad(weight_HOI, (0, 0, 0, -O % WIDTH)).reshape(-1, inputs)
    return PackedMatrix.of_dense(filled, rows=weight_HOI.dtype)


@dataclass(frozen=True)
class RowsOfForms:
    """Which of a step's tokens attend in which form."""

    absorbed: CompiledAttention | None  # of those tokens alone
    absorbed_T: torch.Tensor  # int64, their places among the step's
    plan: AttentionPlan  # of the expanded rows, over their own keys, for one head; its tokens are the step's
    slots_L: torch.Tensor  # int64, of the keys


def divide(attention: CompiledAttention, matrices: LatentMatrices, rope_size: int, *, dots: bool) -> RowsOfForms | None:
    """Return the step's tokens by form; None if all attend in the absorbed form.

    A row's keys are expanded if that takes less. Rows that come later pay only for pages that no row before them has
    expanded. `dots`: products with latents are those of bfloat16s.
    """
    key = matrices.rank, matrices.plain_size, matrices.value_size, dots
    if key not in attention.forms:
        attention.forms[key] = _divide(attention.plan, attention.cap, matrices, rope_size, dots)
    found: RowsOfForms | None = attention.forms[key]
    return found


def _divide(
    whole: AttentionPlan, cap: float, matrices: LatentMatrices, rope_size: int, dots: bool
) -> RowsOfForms | None:
    size, C = matrices.plain_size + rope_size, matrices.rank
    if whole.window or whole.num_R.max(initial=0) < _MIN_ROWS or matrices.value_size > size:
        return None
    # Multiplications, in those of bfloat16s: one of float32s takes twice the time. Values are as long as keys there.
    each = 1 if matrices.has_dots else 2
    to_expand = each * C * (matrices.plain_size + matrices.value_size)
    pair_gain = 2 * (C + rope_size) * (1 if dots else 2) - 2 * size * each
    threads = min(num_threads(), matrices.heads)
    most_keys = _MAX_BYTES // (4 * threads * (matrices.value_size + size))
    place_of: dict[int, int] = {}  # of an expanded page
    chosen: list[int] = []
    for row in np.argsort(-whole.num_R, kind="stable").tolist():
        n, L = int(whole.num_R[row]), int(whole.first_R[row] + whole.num_R[row])
        if n < _MIN_ROWS:
            break
        pages = _pages(whole, row, L)
        new = [page for page in pages if page not in place_of]
        num_new = len(new) * whole.page_size
        # Its own tokens would have to be multiplied as often in the absorbed form.
        gain = n * (L - n // 2) * pair_gain - max(0, min(num_new, L) - n) * to_expand
        if gain > 0 and (len(place_of) + len(new)) * whole.page_size <= most_keys:
            chosen.append(row)
            for page in new:
                place_of[page] = len(place_of)
    if not chosen:
        return None
    chosen.sort()
    tokens = np.cumsum([0, *whole.num_R.tolist()])
    nodes = np.cumsum([0, *whole.num_nodes_R.tolist()])

    def spans(rows: Sequence[int], *, own_pages: bool) -> list[RowSpan]:
        found = []
        for row in rows:
            pages = _pages(whole, row, int(whole.first_R[row] + whole.num_R[row]))
            if own_pages:
                pages = [place_of[page] for page in pages]
            tree = whole.parents_N[nodes[row] : nodes[row + 1]].tolist()
            found.append(RowSpan(int(whole.first_R[row]), int(whole.num_R[row]), np.array(pages, np.int64), tree))
        return found

    def tokens_of(rows: Sequence[int]) -> Ints:
        return np.concatenate([np.arange(tokens[row], tokens[row + 1]) for row in rows])

    plan = AttentionPlan.of(spans(chosen, own_pages=True), page_size=whole.page_size, window=None, group=1)
    table_Q = plan.array[plan.array[TOKENS] :][: int(plan.num_R.sum())]
    table_Q[:] = tokens_of(chosen)[table_Q]
    pages_P = np.fromiter(place_of, np.int64, len(place_of))
    slots_L = (pages_P[:, None] * whole.page_size + np.arange(whole.page_size)).ravel()
    others = [row for row in range(len(whole.num_R)) if row not in set(chosen)]
    absorbed, absorbed_T = None, np.empty(0, np.int64)
    if others:
        own = spans(others, own_pages=False)
        absorbed_T = tokens_of(others)
        absorbed = CompiledAttention(
            AttentionPlan.of(own, page_size=whole.page_size, window=None, group=whole.group), cap
        )
    return RowsOfForms(absorbed, torch.from_numpy(absorbed_T), plan, torch.from_numpy(slots_L))


def _pages(plan: AttentionPlan, row: int, num_keys: int) -> list[int]:
    """Return the pages of a row's keys."""
    start = int(plan.page_starts_R[row])
    found: list[int] = plan.pages_P[start : start - (-num_keys // plan.page_size)].tolist()
    return found


@compiled_in_order(
    "void(int64, int64, int64, int64[::1], int64, int64, int64, float32[:,::1], int64[::1], int64[::1], int64, int64,"
    " int64, int64, int64, float32, float32)"
)
def _attend_expanded(
    first: int,
    end: int,
    step: int,
    both_W: Ints,
    x: int,
    x_bytes: int,
    value_size: int,
    rope_LR: Floats,
    kv: Ints,
    plan: Ints,
    q: int,
    q_stride: int,
    out: int,
    out_stride: int,
    dtype: int,
    scale: float,
    cap: float,
) -> None:
    """Attend with the heads first, first + step, ... below `end` to keys and values that are expanded here.

    `both_W` is the descriptor of `LatentMatrices.to_both`, `x` the address of the latents, `x_bytes` from one to the
    next. `kv` gives the sizes of a head's expanded keys and values, which lie one behind the other: value, plain key,
    rotated key. The others are as in `attend_task`.
    """
    (L, R), stride, D = rope_LR.shape, kv[STRIDE], kv[HEAD_SIZE]
    panels = -(-(stride - R) // WIDTH)
    halves = kv[DTYPE] == BFLOAT16_DOTS
    block = _BLOCK_KEYS if halves else L
    products_LX = np.empty((block, stride), dtype=np.float32)
    halves_LX = np.empty((L if halves else 0, stride), dtype=np.uint16)
    scratch = np.empty(scratch_size(plan, kv) // 2 + 1, dtype=np.int64)
    own, width = kv.copy(), 4 if dtype == FLOAT32 else 2
    own[VALUES] = address_of(halves_LX) if halves else address_of(products_LX)
    own[KEYS] = own[VALUES] + (2 if halves else 4) * value_size
    for head in range(first, end, step):
        for base in range(0, L, block):
            count = min(block, L - base)
            y = address_of(products_LX)
            multiply_some(both_W, head * panels, (head + 1) * panels, x + base * x_bytes, x_bytes, count, y, stride)
            for key in range(count):
                row_X, rope_R = products_LX[key], rope_LR[base + key]
                for r in range(R):
                    row_X[stride - R + r] = rope_R[r]
                if halves:
                    half_X = halves_LX[base + key]
                    for i in range(stride):
                        half_X[i] = narrow(row_X[i], half_X[i])
        place = width * head * D
        for task in range(num_tasks(plan, own)):
            attend_task(
                task, plan, own, q + place, q_stride, out + place, out_stride, dtype, scale, cap, address_of(scratch)
            )


@compiled_in_order("void(int64, int64, int64, int64, int64, int64, int64)")
def _put_rows(rows: int, row_size: int, size: int, num_rows: int, dtype: int, to: int, stride: int) -> None:
    """Write the first `size` float32s of each row to `to`, where rows are `stride` numbers of `dtype` apart."""
    for t in range(num_rows):
        row = carray(_floats(rows + 4 * t * row_size), (size,))
        if dtype == FLOAT32:
            wide = carray(_floats(to + 4 * t * stride), (size,))
            for i in range(size):
                wide[i] = row[i]
        else:
            half = carray(_halves(to + 2 * t * stride), (size,))
            for i in range(size):
                half[i] = narrow(row[i], half[i])


@compiled_in_order("void(int64, int64, int64, int64[::1], int64[::1], int64, int64, int64, int64, int64, int64)")
def _absorb(
    first: int,
    end: int,
    step: int,
    query_W: Ints,
    sizes: Ints,
    T: int,
    q: int,
    q_stride: int,
    dtype: int,
    to: int,
    to_stride: int,
) -> None:
    """Write the queries of the heads first, first + step, ... below `end` as queries of latents.

    `q` and `to` are addresses of the first token of head 0, strides are in numbers of `dtype` from token to token.
    `sizes` are N, R, C and V.
    """
    N, R, C, width = sizes[0], sizes[1], sizes[2], 4 if dtype == FLOAT32 else 2
    panels = -(-C // WIDTH)
    rows = np.empty(T * panels * WIDTH, dtype=np.float32)
    for head in range(first, end, step):
        x, own = q + width * head * (N + R), to + width * head * (C + R)
        multiply_some(
            query_W, head * panels, (head + 1) * panels, x, width * q_stride, T, address_of(rows), panels * WIDTH
        )
        _put_rows(address_of(rows), panels * WIDTH, C, T, dtype, own, to_stride)
        for t in range(T):
            rope, turned = x + width * (t * q_stride + N), own + width * (t * to_stride + C)
            if dtype == FLOAT32:
                wide, wide_to = carray(_floats(rope), (R,)), carray(_floats(turned), (R,))
                for r in range(R):
                    wide_to[r] = wide[r]
            else:
                half, half_to = carray(_halves(rope), (R,)), carray(_halves(turned), (R,))
                for r in range(R):
                    half_to[r] = half[r]


@compiled_in_order("void(int64, int64, int64, int64[::1], int64[::1], int64, int64, int64, int64, int64, int64, int64)")
def _to_values(
    first: int,
    end: int,
    step: int,
    value_W: Ints,
    sizes: Ints,
    T: int,
    x: int,
    x_stride: int,
    x_size: int,
    dtype: int,
    out: int,
    out_stride: int,
) -> None:
    """Expand sums of latents of the heads first, first + step, ... below `end` to sums of values.

    `x` is the address of the sums, a head's `x_size` numbers behind the one before; `value_W` is the descriptor of
    `LatentMatrices.to_value`. The others are as in `_absorb`.
    """
    V, width = sizes[3], 4 if dtype == FLOAT32 else 2
    panels = -(-V // WIDTH)
    rows = np.empty(T * panels * WIDTH, dtype=np.float32)
    for head in range(first, end, step):
        multiply_some(
            value_W,
            head * panels,
            (head + 1) * panels,
            x + width * head * x_size,
            width * x_stride,
            T,
            address_of(rows),
            panels * WIDTH,
        )
        _put_rows(address_of(rows), panels * WIDTH, V, T, dtype, out + width * head * V, out_stride)


@compiled_in_order(
    "void(int64, int64[::1], int64[::1], int64[::1], int64, int64[::1], int64[::1], int64, int64, int64, int64, int64,"
    " float32, float32, int64[::1])"
)
def _attend_absorbed(
    first: int,
    query_W: Ints,
    value_W: Ints,
    sizes: Ints,
    T: int,
    kv: Ints,
    plan: Ints,
    q: int,
    q_stride: int,
    out: int,
    out_stride: int,
    dtype: int,
    scale: float,
    cap: float,
    memory: Ints,
) -> None:
    """Attend with the heads from `first` on, as many as the plan's group has, to the latents.

    `memory` holds two numbers of `dtype` for each token, head and number of a latent key. It is not allocated here:
    numba frees an array after its last use, and of this one only the address is used.
    """
    h, D, width = plan[GROUP], sizes[1] + sizes[2], 4 if dtype == FLOAT32 else 2
    scratch = np.empty(scratch_size(plan, kv) // 2 + 1, dtype=np.int64)
    half = width * T * h * D
    before = width * first * D  # of the heads before the first, which have no place
    _absorb(first, first + h, 1, query_W, sizes, T, q, q_stride, dtype, address_of(memory) - before, h * D)
    for task in range(num_tasks(plan, kv)):
        queries = address_of(memory)
        attend_task(task, plan, kv, queries, h * D, queries + half, h * D, dtype, scale, cap, address_of(scratch))
    sums = address_of(memory) + half - before
    _to_values(first, first + h, 1, value_W, sizes, T, sums, h * D, D, dtype, out, out_stride)


def attend_latents(
    q_THD: torch.Tensor,
    kv: KvCache,
    attention: CompiledAttention,
    matrices: LatentMatrices,
    scale: float,
    *,
    expand: bool,
) -> torch.Tensor:
    """Return attention to a cache of latents, [T, H * V], in the dtype of the queries.

    `q_THD` are queries before absorption, whose last dimensions are rotated. Without `expand` all rows are absorbed,
    and a token's bits depend on nothing but its own keys.
    """
    dtype, (T, H, _) = q_THD.dtype, q_THD.shape
    if dtype == torch.bfloat16 and not matrices.has_dots:
        q_THD = q_THD.float()
    if q_THD.stride()[1:] != (q_THD.shape[2], 1):
        q_THD = q_THD.contiguous()
    out_THV = torch.empty((T, H, matrices.value_size), dtype=q_THD.dtype)
    forms = None
    if expand:
        dots = kv_descriptor(kv, q_THD.dtype)[DTYPE] == BFLOAT16_DOTS
        forms = divide(attention, matrices, kv.k_SKD.shape[2] - matrices.rank, dots=dots)
    if forms is None:
        _absorbed(q_THD, kv, attention, matrices, scale, out_THV)
    else:
        _expanded(q_THD, kv, forms, attention.cap, matrices, scale, out_THV)
        if forms.absorbed is not None:
            own_THV = torch.empty((len(forms.absorbed_T), *out_THV.shape[1:]), dtype=q_THD.dtype)
            _absorbed(q_THD[forms.absorbed_T], kv, forms.absorbed, matrices, scale, own_THV)
            out_THV[forms.absorbed_T] = own_THV
    return out_THV.flatten(1).to(dtype)


def _absorbed(
    q_THD: torch.Tensor,
    kv: KvCache,
    attention: CompiledAttention,
    matrices: LatentMatrices,
    scale: float,
    out_THV: torch.Tensor,
) -> None:
    """Write the attention of all tokens in the absorbed form."""
    T, H, size = q_THD.shape
    N, C, V = matrices.plain_size, matrices.rank, matrices.value_size
    sizes = np.array([N, size - N, C, V])
    query_W, value_W = matrices.to_query.descriptor, matrices.to_value.descriptor
    q = q_THD.data_ptr(), q_THD.stride(0)
    out = out_THV.data_ptr(), H * V, DTYPES[q_THD.dtype]
    work = max(1, T) * H * C * (N + V)
    threads = max(1, min(num_threads(), work // _MIN_WORK))
    if T <= _FEW_TOKENS:
        parts = next(number for number in range(min(threads, H), 0, -1) if H % number == 0)
        descriptor = kv_descriptor(kv, q_THD.dtype, tiles=attention.tiles)
        plan = attention.plan_of(H // parts).array
        shared = query_W, value_W, sizes, T, descriptor, plan, *q, *out, scale, attention.cap
        memory = np.empty((parts, T * (H // parts) * (C + size - N) + 1), dtype=np.int64)
        run_tasks([partial(_attend_absorbed, part * (H // parts), *shared, memory[part]) for part in range(parts)])
        return
    step, D = min(threads, H), C + size - N
    absorbed_THD = torch.empty((T, H, D), dtype=q_THD.dtype)
    to = DTYPES[q_THD.dtype], absorbed_THD.data_ptr(), H * D
    run_tasks([partial(_absorb, first, H, step, query_W, sizes, T, *q, *to) for first in range(step)])
    sums_THC = attention.attend(absorbed_THD, kv, scale)
    x = sums_THC.data_ptr(), sums_THC.stride(0), sums_THC.stride(1)
    run_tasks([partial(_to_values, first, H, step, value_W, sizes, T, *x, out[2], *out[:2]) for first in range(step)])


def _expanded(
    q_THD: torch.Tensor,
    kv: KvCache,
    forms: RowsOfForms,
    cap: float,
    matrices: LatentMatrices,
    scale: float,
    out_THV: torch.Tensor,
) -> None:
    """Write the attention of the tokens of the expanded form."""
    T, H, D = q_THD.shape
    C, V = matrices.rank, matrices.value_size
    latents_LC = gather_slots(kv.k_SKD, forms.slots_L, q_THD.dtype if kv.k_scale_K is None else torch.float32)
    if kv.k_scale_K is not None:
        latents_LC = (latents_LC * kv.k_scale_K).to(q_THD.dtype)
    rope_LR = latents_LC[:, C:].float().contiguous()
    # The loops read as many numbers of a value as of a key, and write as many; what is too much is left out here.
    out_THD = torch.empty((T, H, D), dtype=q_THD.dtype)
    descriptor = np.zeros(DESCRIPTOR, dtype=np.int64)
    descriptor[STRIDE], descriptor[KV_HEADS], descriptor[HEAD_SIZE] = V + D, 1, D
    descriptor[DTYPE] = BFLOAT16_DOTS if matrices.has_dots else FLOAT32
    descriptor[ON_TILES] = matrices.has_dots and usable()
    x = latents_LC.data_ptr(), latents_LC.stride(0) * latents_LC.element_size(), V, rope_LR.numpy()
    places = q_THD.data_ptr(), q_THD.stride(0), out_THD.data_ptr(), H * D, DTYPES[q_THD.dtype]
    rest = matrices.to_both.descriptor, *x, descriptor, forms.plan.array, *places, scale, cap
    step = min(num_threads(), H)
    run_tasks([partial(_attend_expanded, first, H, step, *rest) for first in range(step)])
    out_THV.copy_(out_THD[..., :V])
