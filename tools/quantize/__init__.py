"""Quantising dense checkpoints (`ramiform quantize`) and measuring KV scales (`ramiform calibrate-kv`)."""

from typing import Literal

CalibratedMethod = Literal["awq", "gptq", "int8"]
Method = Literal["int8", "int4-rtn", "awq", "gptq", "fp8"]
