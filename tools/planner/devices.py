"""Data sheets of devices: memory, bandwidths and dense matrix rates."""

from __future__ import annotations

import msgspec


class DeviceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Data sheet of one device."""

    memory: float  # bytes
    bandwidth: float  # of the memory, bytes/s
    bf16: float  # dense operations/s; a multiply-add is two
    eight_bit: float  # FP8 or INT8 operations/s; the bf16 rate on devices without
    link: float  # bytes/s from one device to the others, in one direction


DEVICES = {
    "a100-40": DeviceSpec(memory=40e9, bandwidth=1.555e12, bf16=312e12, eight_bit=624e12, link=300e9),
    "a100-80": DeviceSpec(memory=80e9, bandwidth=2.039e12, bf16=312e12, eight_bit=624e12, link=300e9),
    "h100": DeviceSpec(memory=80e9, bandwidth=3.35e12, bf16=989e12, eight_bit=1979e12, link=450e9),
    "h200": DeviceSpec(memory=141e9, bandwidth=4.8e12, bf16=989e12, eight_bit=1979e12, link=450e9),
    "b200": DeviceSpec(memory=180e9, bandwidth=8.0e12, bf16=2250e12, eight_bit=4500e12, link=900e9),
    "l40s": DeviceSpec(memory=48e9, bandwidth=0.864e12, bf16=362e12, eight_bit=733e12, link=32e9),
    "l4": DeviceSpec(memory=24e9, bandwidth=0.3e12, bf16=121e12, eight_bit=242e12, link=32e9),
    "rtx4090": DeviceSpec(memory=24e9, bandwidth=1.008e12, bf16=165e12, eight_bit=330e12, link=32e9),
}
