"""Sampling without a sort: the race of `reference.sampling.draw_tokens` among all tokens, repeated among the likelier
ones until the filters keep its winner.

A filter keeps the likelier tokens. So a winner that is dropped rules out all tokens ranked behind it, the next round
runs among those before it, and few rounds are needed. The result is that of filtering first. (FlashInfer's samplers
without a sort narrow a pivot alike, but draw anew each round.)

Legend: R rows, V vocabulary, B tokens of a block.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .. import arguments
from .launching import launch

_BLOCK = 4096
NOT_FINITE = tl.constexpr(arguments.NOT_FINITE)


def sample_tokens(logits_RV: torch.Tensor, sampling: arguments.SamplingTensors) -> torch.Tensor:
    """Return a token for each row, int64 [R], as `reference.sampling.sample_tokens` does.

    Where both filter, top-p's share is one of what top-k leaves, so the `max_top_k` likeliest logits are sorted.
    """
    R, V = logits_RV.shape
    max_top_k = sampling.max_top_k
    tokens_R = torch.empty(R, dtype=torch.int64, device=logits_RV.device)
    likeliest_RM = logits_RV.topk(min(max_top_k, V), dim=-1).values if max_top_k else logits_RV
    launch(
        _sample,
        (R,),
        logits_RV,
        likeliest_RM,
        sampling.temperature_R,
        sampling.top_k_R,
        sampling.top_p_R,
        sampling.min_p_R,
        sampling.draw_R,
        tokens_R,
        V,
        logits_RV.stride(0),
        likeliest_RM.stride(0),
        max_top_k,
        BLOCK=min(_BLOCK, triton.next_power_of_2(V)),
        num_warps=16,
    )
    return tokens_R


def logprobs(logits_RV: torch.Tensor, tokens_R: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log p(token) and the logarithm of the sum of exponentials, float32 [R] each."""
    R, V = logits_RV.shape
    found_R = torch.empty(R, dtype=torch.float32, device=logits_RV.device)
    normaliser_R = torch.empty_like(found_R)
    launch(
        _logprob,
        (R,),
        logits_RV,
        tokens_R,
        found_R,
        normaliser_R,
        V,
        logits_RV.stride(0),
        BLOCK=min(_BLOCK, triton.next_power_of_2(V)),
        num_warps=16,
    )
    return found_R, normaliser_R


@triton.jit
def _random(draw, token_B):
    """Return the token's random number in (0, 1): the token-th output of SplitMix64 seeded with `draw`, 52 bits plus a
    half."""
    z_B = draw.to(tl.uint64) + (token_B + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
    z_B = (z_B ^ (z_B >> 30)) * 0xBF58476D1CE4E5B9
    z_B = (z_B ^ (z_B >> 27)) * 0x94D049BB133111EB
    z_B = z_B ^ (z_B >> 31)
    return ((z_B >> 12).to(tl.float64) + 0.5) * 2.220446049250313e-16


@triton.jit(do_not_specialize=["stride_likeliest", "max_top_k"])
def _sample(
    logits_RV,
    likeliest_RM,
    temperature_R,
    top_k_R,
    top_p_R,
    min_p_R,
    draw_R,
    tokens_R,
    V,
    stride,
    stride_likeliest,
    max_top_k,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits = logits_RV + row * stride
    best = float("-inf")
    greedy = 0
    num_nan = 0
    for begin in range(0, V, BLOCK):
        v_B = begin + tl.arange(0, BLOCK)
        logit_B = tl.load(logits + v_B, mask=v_B < V, other=float("-inf"))
        num_nan += tl.sum((logit_B != logit_B).to(tl.int32), 0)
        largest = tl.max(logit_B, 0)
        if largest > best:
            best = largest
            greedy = begin + tl.argmax(logit_B, 0)
    if (num_nan > 0) | (best == float("inf")) | (best == float("-inf")):
        tl.store(tokens_R + row, tl.full((), NOT_FINITE, tl.int64))
        return
    temperature = tl.load(temperature_R + row)
    if temperature == 0.0:
        tl.store(tokens_R + row, greedy.to(tl.int64))
        return

    temperature = tl.maximum(temperature, 1e-30)
    top_k = tl.load(top_k_R + row)
    top_p = tl.load(top_p_R + row)
    min_p = tl.load(min_p_R + row)
    draw = tl.load(draw_R + row)

    # Mass that top-p takes its share of: all, or that of the k likeliest.
    total = 0.0
    total = total.to(tl.float64)
    if top_p < 1.0:
        if top_k < V:
            for begin in range(0, max_top_k, BLOCK):
                m_B = begin + tl.arange(0, BLOCK)
                logit_B = tl.load(
                    likeliest_RM + row * stride_likeliest + m_B,
                    mask=(m_B < max_top_k) & (m_B < top_k),
                    other=float("-inf"),
                )
                total += tl.sum(tl.exp((logit_B - best) / temperature).to(tl.float64), 0)
        else:
            for begin in range(0, V, BLOCK):
                v_B = begin + tl.arange(0, BLOCK)
                logit_B = tl.load(logits + v_B, mask=v_B < V, other=float("-inf"))
                total += tl.sum(tl.exp((logit_B - best) / temperature).to(tl.float64), 0)

    # Only tokens that rank before the pivot take part; the first pivot ranks behind all of them.
    pivot = float("-inf")
    pivot_token = V
    winner = greedy
    done = False
    while not done:
        fastest = 0.0
        fastest = fastest.to(tl.float64)
        winner = greedy
        for begin in range(0, V, BLOCK):
            v_B = begin + tl.arange(0, BLOCK)
            logit_B = tl.load(logits + v_B, mask=v_B < V, other=float("-inf"))
            weight_B = tl.exp((logit_B - best) / temperature)
            runs_B = (logit_B > pivot) | ((logit_B == pivot) & (v_B < pivot_token))
            runs_B &= (weight_B >= min_p) & (v_B < V)
            time_B = -tl.log(_random(draw, v_B))
            speed_B = tl.where(runs_B, weight_B.to(tl.float64) / time_B, 0.0)
            speed = tl.max(speed_B, 0)
            if speed > fastest:
                fastest = speed
                winner = begin + tl.argmax(speed_B, 0)
        if (top_k >= V) & (top_p >= 1.0):
            done = True
        else:
            winning = tl.load(logits + winner)
            rank = 0
            before = 0.0
            before = before.to(tl.float64)
            for begin in range(0, V, BLOCK):
                v_B = begin + tl.arange(0, BLOCK)
                logit_B = tl.load(logits + v_B, mask=v_B < V, other=float("-inf"))
                ahead_B = (logit_B > winning) | ((logit_B == winning) & (v_B < winner))
                rank += tl.sum(ahead_B.to(tl.int32), 0)
                weight_B = tl.exp((logit_B - best) / temperature).to(tl.float64)
                before += tl.sum(tl.where(ahead_B, weight_B, 0.0), 0)
            done = (rank < top_k) & ((top_p >= 1.0) | (before < top_p * total))
            done = done | (winner == greedy)  # the likeliest passes every filter
            pivot = winning
            pivot_token = winner
    tl.store(tokens_R + row, winner.to(tl.int64))


@triton.jit
def _logprob(logits_RV, tokens_R, found_R, normaliser_R, V, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    largest = float("-inf")
    total = 0.0
    for begin in range(0, V, BLOCK):
        v_B = begin + tl.arange(0, BLOCK)
        logit_B = tl.load(logits_RV + row * stride + v_B, mask=v_B < V, other=float("-inf")).to(tl.float32)
        new = tl.maximum(largest, tl.max(logit_B, 0))
        base = tl.where(new == float("-inf"), 0.0, new)
        total = total * tl.exp(largest - base) + tl.sum(tl.exp(logit_B - base), 0)
        largest = new
    normaliser = largest + tl.log(total)
    token = tl.load(tokens_R + row)
    tl.store(found_R + row, tl.load(logits_RV + row * stride + token).to(tl.float32) - normaliser)
    tl.store(normaliser_R + row, normaliser)
