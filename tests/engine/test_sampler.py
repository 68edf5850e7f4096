"""Judge: one row at a time in numpy, from the definitions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ramiform.kernels import for_device
from ramiform.runtime.engine.logprobs import chosen_logprobs
from ramiform.runtime.engine.sampler import sample
from ramiform.runtime.protocol.sampling import TokenLogprob
from ramiform.runtime.scheduler.plan import Penalties, Sample
from ramiform.runtime.scheduler.rows.sampling_inputs import random_bits, splitmix64

VOCAB = 70
OPS = for_device(torch.device("cpu"))
LIKELY = 6  # tokens that are usually among the likeliest, so that what is done to them is seen
tokens = st.integers(0, LIKELY - 1) | st.integers(0, VOCAB - 1)
penalties = st.builds(
    Penalties,
    frequency=st.sampled_from([0.0, 0.5, -1.0]),
    presence=st.sampled_from([0.0, 0.7]),
    repetition=st.sampled_from([1.0, 1.3, 0.8]),
    prompt=st.lists(tokens, max_size=8),
    output=st.lists(tokens, max_size=8),
)
samples = st.builds(
    Sample,
    temperature=st.just(0.0) | st.floats(0.1, 3.0),
    top_k=st.none() | st.integers(1, 100),
    top_n_sigma=st.sampled_from([0.0, -1.0]) | st.floats(0.05, 4.0),
    top_p=st.just(1.0) | st.floats(0.05, 0.99),
    min_p=st.just(0.0) | st.floats(0.0, 0.5),
    typical_p=st.just(1.0) | st.floats(0.05, 0.99),
    xtc_probability=st.sampled_from([0.0, 0.5, 1.0]),
    xtc_threshold=st.floats(0.0, 0.6),
    dynatemp_range=st.sampled_from([0.0, 0.0, 0.5, 2.0]),
    dynatemp_exponent=st.sampled_from([1.0, 0.5, 2.0]),
    draw=st.integers(-(1 << 63), (1 << 63) - 1),
    penalties=st.none() | penalties,
    logit_bias=st.dictionaries(tokens, st.floats(-100, 100, width=32), max_size=3),
    dry=st.dictionaries(tokens, st.floats(0, 100, width=32), max_size=3),
    num_top_logprobs=st.none() | st.integers(0, 5),
    logprobs_of=st.lists(tokens, max_size=4).map(tuple),
    logprob_details=st.booleans(),
)
masks = st.none() | st.sets(tokens, min_size=1, max_size=VOCAB)


def packed(allowed: set[int], num_words: int = 3) -> bytes:
    bits = sum(1 << token for token in allowed)
    return bits.to_bytes(4 * num_words, "little")


def naive_logits(logits: np.ndarray, s: Sample, allowed: set[int] | None) -> np.ndarray:
    z = logits.astype(np.float64)
    for token, bias in s.logit_bias.items():
        z[token] += bias
    if s.penalties is not None:
        p = s.penalties
        for token in {*p.prompt, *p.output}:
            z[token] = z[token] / p.repetition if z[token] > 0 else z[token] * p.repetition
        for token in set(p.output):
            z[token] -= p.frequency * p.output.count(token) + p.presence
    for token, amount in s.dry.items():
        z[token] -= amount
    if allowed is not None:
        z[[token for token in range(VOCAB) if token not in allowed]] = -np.inf
    return z


def naive_token(logits: np.ndarray, s: Sample, allowed: set[int] | None) -> tuple[int, float]:
    """Return the token, and the log-probability with which it was drawn."""
    z = naive_logits(logits, s, allowed)
    order = sorted(range(len(z)), key=lambda token: (-z[token], token))
    if s.temperature == 0:
        return order[0], 0.0
    if s.top_n_sigma > 0:
        finite = z[np.isfinite(z)]
        reach = s.top_n_sigma * math.sqrt(sum((finite - finite.mean()) ** 2) / len(finite))
        assume((np.abs(z.max() - finite - reach) > 1e-4).all() or len(finite) == 1)
        z = np.where(z.max() - z <= reach, z, -np.inf)
    weights = np.exp((z - z.max()) / (1.0 if s.dynatemp_range else s.temperature))
    kept = order if s.top_k is None else order[: s.top_k]
    kept = naive_typical([token for token in kept if weights[token] > 1e-40], weights, s.typical_p)
    mass, before, nucleus = sum(weights[kept]), 0.0, []
    for token in kept:
        assume(s.top_p == 1 or abs(before / mass - s.top_p) > 1e-5)
        if before < s.top_p * mass or s.top_p == 1:
            nucleus.append(token)
        before += weights[token]
    weights /= weights[nucleus].max()
    assume(s.min_p == 0 or (np.abs(weights - s.min_p) > 1e-5).all())
    final = naive_xtc([token for token in nucleus if weights[token] >= s.min_p], weights, s)
    if s.dynatemp_range:
        shares = weights[final] / weights[final].sum()
        entropy = -(shares * np.log(shares)).sum() / math.log(max(2, len(final)))
        low, high = max(0.0, s.temperature - s.dynatemp_range), s.temperature + s.dynatemp_range
        temperature = max(low + (high - low) * entropy**s.dynatemp_exponent, 1e-30)
        weights = np.exp((z - z[final].max()) / temperature, where=np.isin(range(len(z)), final), out=np.zeros_like(z))
    arrivals = sorted(
        (-math.log(((splitmix64(s.draw, token) >> 12) + 0.5) / (1 << 52)) / weights[token], token)
        for token in sorted(final)
        if weights[token] > 1e-300  # dividing by less overflows, and such a token never comes first
    )
    assume(len(arrivals) == 1 or arrivals[1][0] > arrivals[0][0] * (1 + 1e-4))
    token = arrivals[0][1]
    return token, math.log(weights[token] / weights[final].sum())


def naive_typical(kept: list[int], weights: np.ndarray, typical_p: float) -> list[int]:
    if typical_p == 1:
        return kept
    shares = {token: weights[token] / weights[kept].sum() for token in kept}
    entropy = -sum(p * math.log(p) for p in shares.values())
    off = {token: abs(-math.log(p) - entropy) for token, p in shares.items()}
    ranked, before, typical = sorted(sorted(kept), key=off.__getitem__), 0.0, set()
    assume(all(off[b] - off[a] > 1e-5 for a, b in itertools.pairwise(ranked)))
    for token in ranked:
        assume(abs(before - typical_p) > 1e-5)
        if before < typical_p:
            typical.add(token)
        before += shares[token]
    return [token for token in kept if token in typical]


def naive_xtc(kept: list[int], weights: np.ndarray, s: Sample) -> list[int]:
    shares = {token: weights[token] / weights[kept].sum() for token in kept}
    assume(all(abs(p - s.xtc_threshold) > 1e-5 for p in shares.values()) or not s.xtc_probability)
    above = [token for token in kept if shares[token] >= s.xtc_threshold]  # in the order of their logits
    chance = ((splitmix64(s.draw, -1) >> 12) + 0.5) / (1 << 52)
    acts = chance < s.xtc_probability and s.xtc_threshold <= 0.5
    return [token for token in kept if token not in above[:-1]] if acts else kept


@pytest.mark.exhaustive
@given(rows=st.lists(st.tuples(samples, masks), min_size=1, max_size=5), seed=st.integers(0, 1 << 20))
@settings(max_examples=250, deadline=None)
def test_each_row_is_sampled_by_its_own_parameters(rows: list[tuple[Sample, set[int] | None]], seed: int) -> None:
    logits_RV = 2 * np.random.default_rng(seed).standard_normal((len(rows), VOCAB)).astype(np.float32)
    logits_RV[:, :LIKELY] += 4
    raw = torch.from_numpy(logits_RV)
    of_rows = [s for s, _ in rows], [None if m is None else packed(m) for _, m in rows]
    chosen = sample(OPS, raw, *of_rows)
    found = chosen_logprobs(OPS, raw, chosen, *of_rows)()
    assert np.array_equal(raw.numpy(), logits_RV)
    for row, (logits, (s, allowed)) in enumerate(zip(logits_RV, rows, strict=True)):
        token, drawn_logprob = naive_token(logits, s, allowed)
        assert chosen[row] == token
        check_logprob(logits, int(chosen[row]), found.get(row), s)
        if row in found:
            check_details(logits, found[row], s, allowed)
            if (details := found[row].details) is not None:
                assert details.drawn_logprob == pytest.approx(drawn_logprob, abs=1e-4)


def check_logprob(logits: np.ndarray, token: int, found: TokenLogprob | None, s: Sample) -> None:
    """Return log-probabilities of the raw distribution."""
    if s.num_top_logprobs is None:
        assert found is None
        return
    z = logits.astype(np.float64)
    logprobs = z - np.log(np.exp(z).sum())
    assert found is not None
    assert found.id == token
    assert found.logprob == pytest.approx(logprobs[token], abs=1e-5)
    best = np.argsort(-logprobs, kind="stable")[: s.num_top_logprobs].tolist()
    assert [token for _, token in found.top] == best
    assert [logprob for logprob, _ in found.top] == pytest.approx(logprobs[best], abs=1e-5)
    assert found.of == pytest.approx(logprobs[list(s.logprobs_of)], abs=1e-4)


def check_details(logits: np.ndarray, found: TokenLogprob, s: Sample, allowed: set[int] | None) -> None:
    if not s.logprob_details:
        assert found.details is None
        return
    z, masked = logits.astype(np.float64), naive_logits(logits, s, allowed)
    p, masked_logprobs = np.exp(z) / np.exp(z).sum(), masked - np.log(np.exp(masked).sum())
    details = found.details
    assert details is not None
    assert details.origin == "sampled"
    assert details.entropy == pytest.approx(-(p * np.log(p)).sum(), abs=1e-5)
    assert details.num_allowed == (None if allowed is None else len(allowed))
    assert details.allowed_mass == pytest.approx(1.0 if allowed is None else p[sorted(allowed)].sum(), abs=1e-6)
    assert details.masked_logprob == pytest.approx(masked_logprobs[found.id], abs=1e-4)
    if allowed is None and not s.logit_bias and not s.dry and s.penalties is None:
        assert (details.masked_logprob, details.allowed_mass) == (found.logprob, 1.0)
    for listed, masked_of in (([token for _, token in found.top], details.top), (s.logprobs_of, details.of)):
        for token, value in zip(listed, masked_of, strict=True):
            assert value == (None if np.isinf(masked[token]) else pytest.approx(masked_logprobs[token], abs=1e-4))


def plain(**changes: object) -> Sample:
    return Sample(**{"temperature": 0.0, "top_k": None, "top_p": 1.0, "draw": 0} | changes)


def test_top_k_of_one_is_greedy_even_among_equal_logits() -> None:
    logits_RV = torch.zeros(2, VOCAB)
    logits_RV[:, [9, 30]] = 5.0
    rows = [plain(temperature=1.0, top_k=1, draw=99), plain()]
    assert sample(OPS, logits_RV, rows, [None, None]).tolist() == [9, 9]


def test_extreme_temperatures_stay_finite() -> None:
    logits_RV = torch.linspace(-300, 300, VOCAB)[None]
    cold = [plain(temperature=1e-300, draw=draw) for draw in range(50)]
    assert set(sample(OPS, logits_RV.expand(50, VOCAB), cold, [None] * 50).tolist()) == {VOCAB - 1}
    hot = [plain(temperature=1e9, draw=draw) for draw in range(50)]
    assert len(set(sample(OPS, logits_RV.expand(50, VOCAB), hot, [None] * 50).tolist())) > 20


def test_a_mask_shorter_than_the_vocabulary_forbids_the_rest() -> None:
    logits_RV = torch.arange(VOCAB, dtype=torch.float32)[None]
    [result] = sample(OPS, logits_RV, [plain()], [packed(set(range(32)), num_words=1)])
    assert result == 31


def test_a_mask_longer_than_the_vocabulary_allows_nothing_beyond_it() -> None:
    [result] = sample(OPS, torch.zeros(1, VOCAB), [plain()], [packed({5, 120}, num_words=4)])
    assert result == 5


def test_the_draws_of_a_filtered_masked_row_follow_its_distribution() -> None:
    num = 4000
    logits = torch.tensor([2.0, 1.5, 1.0, 0.5, 0.0, -3.0] + [-9.0] * (VOCAB - 6))
    rows = [plain(temperature=1.3, top_p=0.9, draw=random_bits(8, position)) for position in range(num)]
    results = sample(OPS, logits.expand(num, VOCAB), rows, [packed({0, 2, 3, 4, 5})] * num)
    weights = np.exp(np.array([2.0, 1.0, 0.5, 0.0, -3.0]) / 1.3)
    nucleus = weights[: 1 + int((np.cumsum(weights / weights.sum()) < 0.9).sum())]
    expected = num * nucleus / nucleus.sum()
    counts = np.bincount(results, minlength=VOCAB)
    observed = counts[[0, 2, 3, 4, 5]][: len(nucleus)]
    assert observed.sum() == num
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    assert chi_square < 16.27  # the 0.999 quantile with 3 degrees of freedom
