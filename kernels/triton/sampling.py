"""Sampling without a sort: the race of `reference.sampling.draw_tokens` among all tokens, repeated among the likelier
ones until the filters keep its winner.

A row's blocks run the first race side by side, each in a program of its own. A filter keeps the likelier tokens. So a
winner that is dropped rules out all tokens ranked behind it, the next round runs among those before it, and few rounds
are needed. The result is that of filtering first. (FlashInfer's samplers without a sort narrow a pivot alike, but draw
anew each round.)

Numbers are float32: another token than the reference's wins only if two arrive within its rounding of each other.

Legend: R rows, V vocabulary, I blocks of a row, B tokens of a block.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .. import arguments
from ..reference.sampling import SamplingTensors
from .launching import launch

_BLOCK = 4096
_NOT_FINITE = tl.constexpr(arguments.NOT_FINITE)


def sample_tokens(logits_RV: torch.Tensor, sampling: SamplingTensors) -> torch.Tensor:
    """Return a token for each row, int64 [R], as `reference.sampling.sample_tokens` does.

    Where both filter, top-p's share is one of what top-k leaves, so the `max_top_k` likeliest logits are sorted.
    """
    R, V = logits_RV.shape
    device, block = logits_RV.device, min(_BLOCK, triton.next_power_of_2(V))
    num = 4 * triton.cdiv(V, 4 * block)  # so that results of any number of rows are aligned
    max_top_k = sampling.max_top_k
    sizes = {"NUM": num, "BLOCK_I": triton.next_power_of_2(num), "BLOCK": block}
    likeliest_RM = logits_RV.topk(min(max_top_k, V), dim=-1).values if max_top_k else logits_RV
    best, speed, mass, before = torch.empty((4, R, num), dtype=torch.float32, device=device)
    spread = torch.empty((3, R, num), dtype=torch.float32, device=device)
    token, fastest, rank = torch.empty((3, R, num), dtype=torch.int32, device=device)
    tokens_R = torch.empty(R, dtype=torch.int64, device=device)
    top_n_sigma_R, temperature_R, top_k_R, top_p_R, min_p_R, draw_R, _ = sampling
    shape, grid = (V, logits_RV.stride(0)), (R, num)
    launch(
        _best_of_block, grid, logits_RV, top_n_sigma_R, best, token, spread, *shape, NUM=num, BLOCK=block, num_warps=8
    )
    race = (top_n_sigma_R, temperature_R, min_p_R, draw_R, best, token, spread, speed, fastest, mass)
    launch(_race_of_block, grid, logits_RV, *race, *shape, **sizes, num_warps=8)
    ranks = (temperature_R, top_k_R, top_p_R, best, token, speed, fastest, rank, before)
    launch(_rank_of_block, grid, logits_RV, *ranks, *shape, **sizes, num_warps=8)
    launch(
        _choose,
        (R,),
        logits_RV,
        likeliest_RM,
        *sampling[:-1],
        *(best, token, spread, speed, fastest, mass, rank, before),
        tokens_R,
        *shape,
        likeliest_RM.stride(0),
        max_top_k,
        **sizes,
        num_warps=16,
    )
    return tokens_R


def log_sums(logits_RV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logarithm of the sum of a row's exponentials, and the entropy of its softmax in nats; float32 [R]."""
    R, V = logits_RV.shape
    log_sum_R = torch.empty(R, dtype=torch.float32, device=logits_RV.device)
    entropy_R = torch.empty_like(log_sum_R)
    launch(
        _log_sums,
        (R,),
        logits_RV,
        log_sum_R,
        entropy_R,
        V,
        logits_RV.stride(0),
        BLOCK=min(_BLOCK, triton.next_power_of_2(V)),
        num_warps=16,
    )
    return log_sum_R, entropy_R


@triton.jit
def _time(draw, token_B):
    """Return when the tokens arrive: -log u of the random number u in (0, 1) that the token-th output of SplitMix64
    seeded with `draw` gives, 52 bits and a half.

    In float32 to its last digits, and without float64, of which consumer GPUs have a 64th of the units. The first to
    arrive have u near 1, so 1 - u is made of the bits, and a series taken where the logarithm would cancel.
    """
    z_B = draw.to(tl.uint64) + (token_B + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
    z_B = (z_B ^ (z_B >> 30)) * 0xBF58476D1CE4E5B9
    z_B = (z_B ^ (z_B >> 27)) * 0x94D049BB133111EB
    z_B = z_B ^ (z_B >> 31)
    high_B = ((z_B >> 32) & 0xFFFFFFFF).to(tl.uint32)
    low_B = ((z_B >> 12) & 0xFFFFF).to(tl.uint32)
    u_B = high_B.to(tl.float32) * 2.0**-32 + (low_B.to(tl.float32) + 0.5) * 2.0**-52
    w_B = (high_B ^ 0xFFFFFFFF).to(tl.float32) * 2.0**-32 + ((low_B ^ 0xFFFFF).to(tl.float32) + 0.5) * 2.0**-52
    series_B = 1.0 / 8 + w_B * (1.0 / 9)
    for power in tl.static_range(7, 0, -1):
        series_B = 1.0 / power + w_B * series_B
    return tl.where(w_B < 0.125, w_B * series_B, -tl.log(u_B))


@triton.jit
def _weights(logits, v_B, V, best, reach, temperature):
    """Return the logits of a block and their weights: that of the best 1, those beyond `reach` 0."""
    logit_B = tl.load(logits + v_B, mask=v_B < V, other=float("-inf"))
    return logit_B, tl.where(best - logit_B <= reach, tl.exp((logit_B - best) / temperature), 0.0)


@triton.jit
def _best_of_row(best_RI, token_RI, row, NUM: tl.constexpr, BLOCK_I: tl.constexpr):
    """Return the largest value that the row's blocks have found, and its token, the first one of equals."""
    i = tl.arange(0, BLOCK_I)
    best_I = tl.load(best_RI + row * NUM + i, mask=i < NUM, other=float("-inf"))
    return tl.max(best_I, 0), tl.load(token_RI + row * NUM + tl.argmax(best_I, 0))


@triton.jit
def _reach_of_row(top_n_sigma_R, spread_3RI, row, R, NUM: tl.constexpr, BLOCK_I: tl.constexpr):
    """Return how far below the row's best logit top-n-sigma keeps tokens: infinity without it."""
    n = tl.load(top_n_sigma_R + row)
    reach = tl.full((), float("inf"), tl.float32)
    if n > 0.0:
        i = tl.arange(0, BLOCK_I)
        at_I = spread_3RI + row * NUM + i
        num_I = tl.load(at_I, mask=i < NUM, other=0.0)
        mean_I = tl.load(at_I + R * NUM, mask=i < NUM, other=0.0)
        squares_I = tl.load(at_I + 2 * R * NUM, mask=i < NUM, other=0.0)
        num = tl.sum(num_I, 0)
        off_I = mean_I - tl.sum(num_I * mean_I, 0) / num
        reach = n * tl.sqrt((tl.sum(squares_I, 0) + tl.sum(num_I * off_I * off_I, 0)) / num)
    return reach


@triton.jit
def _best_of_block(
    logits_RV, top_n_sigma_R, best_RI, token_RI, spread_3RI, V, stride, NUM: tl.constexpr, BLOCK: tl.constexpr
):
    """Find the block's largest logit, infinity if one is not a number, and its token.

    For top-n-sigma also: how many logits are finite, their mean, and the sum of the squares of their distances to it.
    """
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    v_B = block * BLOCK + tl.arange(0, BLOCK)
    logit_B = tl.load(logits_RV + row * stride + v_B, mask=v_B < V, other=float("-inf"))
    num_nan = tl.sum((logit_B != logit_B).to(tl.int32), 0)
    tl.store(best_RI + row * NUM + block, tl.where(num_nan > 0, float("inf"), tl.max(logit_B, 0)))
    tl.store(token_RI + row * NUM + block, block * BLOCK + tl.argmax(logit_B, 0))
    if tl.load(top_n_sigma_R + row) > 0.0:
        finite_B = tl.abs(logit_B) < float("inf")
        num = tl.sum(finite_B.to(tl.float32), 0)
        mean = tl.sum(tl.where(finite_B, logit_B, 0.0), 0) / tl.maximum(num, 1.0)
        off_B = tl.where(finite_B, logit_B - mean, 0.0)
        at, plane = spread_3RI + row * NUM + block, tl.num_programs(0).to(tl.int64) * NUM
        tl.store(at, num)
        tl.store(at + plane, mean)
        tl.store(at + 2 * plane, tl.sum(off_B * off_B, 0))


@triton.jit
def _race_of_block(
    logits_RV,
    top_n_sigma_R,
    temperature_R,
    min_p_R,
    draw_R,
    best_RI,
    token_RI,
    spread_3RI,
    speed_RI,
    fastest_RI,
    mass_RI,
    V,
    stride,
    NUM: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Find the block's first to arrive, without the filters of ranks, and the sum of its weights."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature = tl.load(temperature_R + row)
    if temperature == 0.0:
        return
    best, _ = _best_of_row(best_RI, token_RI, row, NUM, BLOCK_I)
    if (best == float("inf")) | (best == float("-inf")):  # the row has no token
        return
    reach = _reach_of_row(top_n_sigma_R, spread_3RI, row, tl.num_programs(0), NUM, BLOCK_I)
    v_B = block * BLOCK + tl.arange(0, BLOCK)
    _, weight_B = _weights(logits_RV + row * stride, v_B, V, best, reach, tl.maximum(temperature, 1e-30))
    runs_B = (weight_B >= tl.load(min_p_R + row)) & (v_B < V)
    speed_B = tl.where(runs_B, weight_B / _time(tl.load(draw_R + row), v_B), 0.0)
    tl.store(speed_RI + row * NUM + block, tl.max(speed_B, 0))
    tl.store(fastest_RI + row * NUM + block, block * BLOCK + tl.argmax(speed_B, 0))
    tl.store(mass_RI + row * NUM + block, tl.sum(weight_B, 0))


@triton.jit
def _rank_of_block(
    logits_RV,
    temperature_R,
    top_k_R,
    top_p_R,
    best_RI,
    token_RI,
    speed_RI,
    fastest_RI,
    rank_RI,
    before_RI,
    V,
    stride,
    NUM: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Count and sum up the block's tokens that rank before the row's first to arrive."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature = tl.load(temperature_R + row)
    if (temperature == 0.0) | ((tl.load(top_k_R + row) >= V) & (tl.load(top_p_R + row).to(tl.float32) >= 1.0)):
        return
    best, _ = _best_of_row(best_RI, token_RI, row, NUM, BLOCK_I)
    if (best == float("inf")) | (best == float("-inf")):
        return
    _, winner = _best_of_row(speed_RI, fastest_RI, row, NUM, BLOCK_I)
    logits = logits_RV + row * stride
    v_B = block * BLOCK + tl.arange(0, BLOCK)
    rank, before = _before(logits, v_B, V, best, tl.maximum(temperature, 1e-30), winner)
    tl.store(rank_RI + row * NUM + block, rank)
    tl.store(before_RI + row * NUM + block, before)


@triton.jit
def _before(logits, v_B, V, best, temperature, winner):
    """Return how many tokens of a block rank before `winner`, and the sum of their weights. The winner is within reach,
    so they are."""
    logit_B, weight_B = _weights(logits, v_B, V, best, float("inf"), temperature)
    winning = tl.load(logits + winner)
    ahead_B = (logit_B > winning) | ((logit_B == winning) & (v_B < winner))
    return tl.sum(ahead_B.to(tl.int32), 0), tl.sum(tl.where(ahead_B, weight_B, 0.0), 0)


@triton.jit(do_not_specialize=["stride_likeliest", "max_top_k"])
def _choose(
    logits_RV,
    likeliest_RM,
    top_n_sigma_R,
    temperature_R,
    top_k_R,
    top_p_R,
    min_p_R,
    draw_R,
    best_RI,
    token_RI,
    spread_3RI,
    speed_RI,
    fastest_RI,
    mass_RI,
    rank_RI,
    before_RI,
    tokens_R,
    V,
    stride,
    stride_likeliest,
    max_top_k,
    NUM: tl.constexpr,
    BLOCK_I: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Choose the row's token. If the filters drop the first to arrive, which is rare, repeat the race in here."""
    row = tl.program_id(0).to(tl.int64)
    logits = logits_RV + row * stride
    best, greedy = _best_of_row(best_RI, token_RI, row, NUM, BLOCK_I)
    if (best == float("inf")) | (best == float("-inf")):
        tl.store(tokens_R + row, tl.full((), _NOT_FINITE, tl.int64))
        return
    temperature = tl.load(temperature_R + row)
    if temperature == 0.0:
        tl.store(tokens_R + row, greedy.to(tl.int64))
        return
    temperature = tl.maximum(temperature, 1e-30)
    top_k = tl.load(top_k_R + row)
    top_p = tl.load(top_p_R + row).to(tl.float32)
    fastest, winner = _best_of_row(speed_RI, fastest_RI, row, NUM, BLOCK_I)
    # The likeliest passes every filter, and wins where all speeds were too small for a number.
    winner = tl.where(fastest > 0.0, winner, greedy)
    if (top_k < V) | (top_p < 1.0):
        i = tl.arange(0, BLOCK_I)
        reach = _reach_of_row(top_n_sigma_R, spread_3RI, row, tl.num_programs(0), NUM, BLOCK_I)
        # Mass that top-p takes its share of: all, or that of the k likeliest.
        total = tl.sum(tl.load(mass_RI + row * NUM + i, mask=i < NUM, other=0.0), 0)
        if (top_p < 1.0) & (top_k < V):
            total = total * 0.0
            for begin in range(0, max_top_k, BLOCK):
                m_B = begin + tl.arange(0, BLOCK)
                inside_B = (m_B < max_top_k) & (m_B < top_k)
                at_B = likeliest_RM + row * stride_likeliest + m_B
                logit_B = tl.load(at_B, mask=inside_B, other=float("-inf"))
                weight_B = tl.where(best - logit_B <= reach, tl.exp((logit_B - best) / temperature), 0.0)
                total += tl.sum(weight_B, 0)
        rank = tl.sum(tl.load(rank_RI + row * NUM + i, mask=i < NUM, other=0), 0)
        before = tl.sum(tl.load(before_RI + row * NUM + i, mask=i < NUM, other=0.0), 0)
        min_p = tl.load(min_p_R + row)
        draw = tl.load(draw_R + row)
        done = (winner == greedy) | ((rank < top_k) & ((top_p >= 1.0) | (before < top_p * total)))
        while not done:
            # Only tokens that rank before the one that was dropped take part.
            pivot = tl.load(logits + winner)
            pivot_token = winner
            winner = greedy
            fastest = 0.0
            for begin in range(0, V, BLOCK):
                v_B = begin + tl.arange(0, BLOCK)
                logit_B, weight_B = _weights(logits, v_B, V, best, reach, temperature)
                runs_B = (logit_B > pivot) | ((logit_B == pivot) & (v_B < pivot_token))
                runs_B &= (weight_B >= min_p) & (v_B < V)
                speed_B = tl.where(runs_B, weight_B / _time(draw, v_B), 0.0)
                speed = tl.max(speed_B, 0)
                if speed > fastest:
                    fastest = speed
                    winner = begin + tl.argmax(speed_B, 0)
            rank = 0
            before = 0.0
            for begin in range(0, V, BLOCK):
                v_B = begin + tl.arange(0, BLOCK)
                more, mass = _before(logits, v_B, V, best, temperature, winner)
                rank += more
                before += mass
            done = (winner == greedy) | ((rank < top_k) & ((top_p >= 1.0) | (before < top_p * total)))
    tl.store(tokens_R + row, winner.to(tl.int64))


@triton.jit
def _log_sums(logits_RV, log_sum_R, entropy_R, V, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    largest = float("-inf")
    total, moment = 0.0, 0.0  # of the weights, and of weights times their logarithms
    for begin in range(0, V, BLOCK):
        v_B = begin + tl.arange(0, BLOCK)
        logit_B = tl.load(logits_RV + row * stride + v_B, mask=v_B < V, other=float("-inf")).to(tl.float32)
        new = tl.maximum(largest, tl.max(logit_B, 0))
        base = tl.where(new == float("-inf"), 0.0, new)
        shift = tl.maximum(largest - base, -1e4)  # finite: times 0 is 0
        logarithm_B = tl.maximum(logit_B - base, -1e4)
        weight_B = tl.exp(logarithm_B)
        moment = tl.exp(shift) * (moment + total * shift) + tl.sum(weight_B * logarithm_B, 0)
        total = total * tl.exp(shift) + tl.sum(weight_B, 0)
        largest = new
    tl.store(log_sum_R + row, largest + tl.log(total))
    tl.store(entropy_R + row, tl.log(total) - moment / total)
