"""Rotary embeddings: frequencies and angles of positions, for every scaling type.

A head whose first dimensions alone rotate has frequencies of zero for the others, and so has a layer without positions.
Heads that pair neighbouring dimensions are reordered when they are loaded (`stored_layout`).

Dynamic NTK scaling and LongRoPE change the frequencies with the sequence's length. The scheduler says by which length
a sequence's tokens rotate (`scheduler/rope_switch.py`), and keeps those of other lengths apart.

Legend: D head size, ... any positions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from .config import RopeConfig


class Rope:
    """Frequencies on `device`, and angles in `dtype`."""

    def __init__(
        self,
        config: RopeConfig,
        head_dim: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
        is_endless: bool = False,
    ) -> None:
        """`is_endless`: positions may be so large that float32 does not hold their phases, and there are no tables."""
        self._is_endless = is_endless
        self._config = config
        self._head_dim = head_dim
        self._dtype = dtype
        self._frequencies = rope_frequencies(config, head_dim).to(device)
        num_rotated = rotary_dim(config, head_dim) // 2
        self._amplitude = torch.ones(head_dim // 2, device=device)
        self._amplitude[:num_rotated] = rope_amplitude(config)
        # Of those that depend on the length; a CUDA graph must not copy them from the host.
        long = replace(config, factors=config.long_factors or config.factors)
        self._long_frequencies = rope_frequencies(long, head_dim).to(device)
        self._axes = torch.zeros(head_dim // 2, dtype=torch.int64, device=device)
        if len(config.axes) <= len(self._axes):  # transformers' layers rotate by themselves, whatever their heads' size
            self._axes[: len(config.axes)] = torch.tensor(config.axes, dtype=torch.int64)
        self._exponents = _exponents(rotary_dim(config, head_dim)).to(device)
        self._tables = self._compute(torch.empty(0, dtype=torch.int64, device=device), self._frequencies)

    @property
    def depends_on_length(self) -> bool:
        return self._config.depends_on_length

    def angles(self, positions: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos and sin `[..., 1, D]`, as `apply_rope` takes them, of integer `positions` [...].

        `lengths` [...] are those by which they rotate; only scaling that depends on them reads them.
        """
        if self.depends_on_length:
            return self._compute(positions, self._frequencies_at(lengths))
        if self._is_endless or positions.device.type != "cpu":
            return self._compute(positions, self._frequencies)
        cos_P1D, sin_P1D = self.tables(int(positions.numpy().max(initial=-1)) + 1)
        flat = positions.flatten()
        shape = *positions.shape, 1, self._head_dim
        return cos_P1D.index_select(0, flat).view(shape), sin_P1D.index_select(0, flat).view(shape)

    def angles_of_three(self, positions_3T: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return `angles` of tokens whose positions are three numbers; `RopeConfig.axes` says which each pair reads."""
        assert self._config.axes, "the model's positions have one number"
        return self._of_phases(positions_3T[self._axes].T.float() * self._frequencies)

    def turned_back(self, distances: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos and sin `[..., 1, D]` in float32 that turn back what is rotated by integer `distances` [...]."""
        phases = distances[..., None].double() * self._frequencies
        cos, sin = phases.cos().float(), phases.sin().float()
        return torch.cat((cos, cos), dim=-1).unsqueeze(-2), torch.cat((sin, -sin), dim=-1).unsqueeze(-2)

    def tables(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos and sin [P, 1, D] of the positions 0 to P - 1, with P >= `count`; not for scaling that depends on
        lengths."""
        assert not self.depends_on_length
        if len(self._tables[0]) < count:
            with torch.inference_mode(False):  # training reads the tables too
                positions = torch.arange(max(count, 2 * len(self._tables[0]), 256), device=self._frequencies.device)
                self._tables = self._compute(positions, self._frequencies)
        return self._tables

    def _compute(self, positions: torch.Tensor, frequencies: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._of_phases(
            positions[..., None].to(torch.float64 if self._is_endless else torch.float32) * frequencies
        )

    def _of_phases(self, phases: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = phases.cos() * self._amplitude, phases.sin() * self._amplitude
        return (
            torch.cat((cos, cos), dim=-1).unsqueeze(-2).to(self._dtype),
            torch.cat((-sin, sin), dim=-1).unsqueeze(-2).to(self._dtype),
        )

    def _frequencies_at(self, lengths: torch.Tensor) -> torch.Tensor:
        """Return the frequencies at each length, [..., D/2]."""
        config, D, R = self._config, self._head_dim, rotary_dim(self._config, self._head_dim)
        if config.type == "longrope":
            is_long = lengths[..., None] > config.original_context
            return torch.where(is_long, self._long_frequencies, self._frequencies)
        stretch = (config.factor * lengths / config.original_context - (config.factor - 1)).clamp_min(1.0)
        base = config.theta * stretch ** (R / (R - 2))
        return _padded(1.0 / base[..., None] ** self._exponents, D)


def rotary_dim(config: RopeConfig, head_dim: int) -> int:
    """Return the number of a head's dimensions that rotate."""
    return head_dim if config.rotary_dim is None else config.rotary_dim


def rope_frequencies(config: RopeConfig, head_dim: int) -> torch.Tensor:
    """Return the radians per position of each pair of dimensions, float32 [D/2]; those of a short sequence where they
    depend on its length."""
    return _padded(_rotated_frequencies(config, rotary_dim(config, head_dim)), head_dim)


def _padded(frequencies: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Append zeros for the pairs that do not rotate."""
    return torch.nn.functional.pad(frequencies, (0, head_dim // 2 - frequencies.shape[-1]))


def _rotated_frequencies(config: RopeConfig, head_dim: int) -> torch.Tensor:
    plain = 1.0 / config.theta ** _exponents(head_dim)
    if config.factors:
        plain = plain / torch.tensor(config.factors)
    match config.type:
        case "default" | "dynamic" | "longrope":
            return plain
        case "linear":  # Chen et al. 2023, position interpolation
            return plain / config.factor
        case "none":
            return torch.zeros_like(plain)
        case "llama3":
            # Wavelengths beyond the original context are interpolated, short ones kept, a ramp in between.
            wavelengths = 2 * math.pi / plain
            turns = config.original_context / wavelengths
            ramp = (turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)
            return torch.lerp(plain / config.factor, plain, ramp.clamp(0, 1))
        case "yarn":  # Peng et al. 2023, section 3.2, "NTK-by-parts"
            low, high = _yarn_range(config, head_dim)
            ramp = (torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)
            return torch.lerp(plain, plain / config.factor, ramp.clamp(0, 1))


def rope_amplitude(config: RopeConfig) -> float:
    """Return the factor of cos and sin: the config's, or yarn's attention temperature (section 3.4), else 1."""
    if config.attention_factor is not None:
        return config.attention_factor
    if config.type != "yarn":
        return 1.0

    def temperature(mscale: float) -> float:
        return 0.1 * mscale * math.log(config.factor) + 1.0 if config.factor > 1 else 1.0

    if config.mscale and config.mscale_all_dim:
        return temperature(config.mscale) / temperature(config.mscale_all_dim)
    return temperature(1.0)


def _exponents(head_dim: int) -> torch.Tensor:
    return torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim


def _yarn_range(config: RopeConfig, head_dim: int) -> tuple[float, float]:
    """Return the pairs (fractional indices) that turn `beta_fast` and `beta_slow` times within the original context."""

    def pair_that_turns(times: float) -> float:
        return head_dim * math.log(config.original_context / (times * 2 * math.pi)) / (2 * math.log(config.theta))

    low, high = pair_that_turns(config.beta_fast), pair_that_turns(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    return low, high + 0.001 if low == high else high


def side_by_side(parts_T1D: Sequence[torch.Tensor], T: int, D: int) -> NDArray[np.float32]:
    """Return cosines or sines of each rope, [P, T, D]."""
    if len(parts_T1D) == 1:
        return parts_T1D[0].float().numpy().reshape(1, T, D)
    return np.stack([part.float().numpy().reshape(T, D) for part in parts_T1D])
