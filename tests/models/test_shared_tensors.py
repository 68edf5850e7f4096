"""Tensors in shared memory, read by safetensors itself."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file

from ramiform.runtime.models.stored.shared_tensors import shared_tensors, stays_as_it_is

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int64, torch.uint8, torch.bool)


def test_safetensors_reads_what_is_written_of_every_dtype() -> None:
    tensors = {str(dtype): torch.arange(6).to(dtype).reshape(2, 3) for dtype in DTYPES}
    tensors |= {"number": torch.tensor(3.5), "nothing": torch.empty(0, 4), "turned": torch.rand(3, 5).t()}
    tied = torch.rand(4, 6)
    tensors |= {"embedding": tied, "head": tied, "rows": tied[1:3]}
    tensors["trained"] = torch.rand(7, requires_grad=True)
    with shared_tensors(tensors) as path:
        read = load_file(path)
    assert not path.exists()
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (read[name].dtype, read[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(read[name].double(), tensor.detach().double()), name


def test_what_is_mapped_stays_when_the_file_is_removed() -> None:
    tensor = torch.rand(1 << 16)
    with shared_tensors({"a": tensor}) as path:
        assert stays_as_it_is(path)
        with safe_open(path, framework="pt") as opened:
            mapped = opened.get_tensor("a")
    assert torch.equal(mapped, tensor)


def test_a_file_of_anybody_may_change(tmp_path: Path) -> None:
    (tmp_path / "ramiform-weights-a").mkdir()
    assert not stays_as_it_is(tmp_path / "ramiform-weights-a/model.safetensors")
    assert not stays_as_it_is(Path("/dev/shm/model.safetensors"))
    with shared_tensors({"a": torch.ones(1)}) as path:
        path.parent.chmod(0o755)
        assert not stays_as_it_is(path)
