"""Layers of multi-token prediction: their guesses are those of a naive model, whatever is shared, cut or copied."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ramiform.runtime.engine.draft_source import DraftRow, DraftStep
from ramiform.runtime.models.errors import CheckpointError
from ramiform.runtime.models.load import load_model
from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.scheduler.plan import DraftSpec, PageCopy
from ramiform.runtime.speculation.mtp import MtpSource, load_mtp, read_mtp_layout, source

from .naive_mtp import NaiveMtp, make_checkpoint

Model = tuple[NaiveMtp, Path]
WANT = DraftSpec(steps=5, top_k=1, num_tokens=5, temperature=1.0)


LAYERS = [("deepseek", 1), ("deepseek", 3), ("glm", 1), ("glm-4.5", 1), ("qwen3-next", 1), ("qwen3.5", 2)]


@pytest.fixture(scope="module", params=LAYERS, ids=[f"{kind} {count}" for kind, count in LAYERS])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    torch.set_num_threads(1)
    kind, num_mtp = request.param
    path = tmp_path_factory.mktemp(kind)
    return make_checkpoint(kind, path, num_mtp), path


def source_of(path: Path) -> MtpSource:
    target = load_model(path, device=torch.device("cpu"), dtype=torch.float32)
    layout = read_mtp_layout(path, target.config)
    return MtpSource(load_mtp(path, layout, target), layout, num_pages=32, num_host_pages=4)


def some_tokens(count: int, seed: int) -> list[int]:
    return torch.randint(2048, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def follow(
    naive: NaiveMtp, own: MtpSource, parts: Sequence[tuple[list[int], int, list[int], DraftSpec | None]]
) -> list[tuple[list[int], list[float]] | None]:
    """Pass a step to the source: of each sequence its tokens, the newest included, where the step's part of it begins,
    its pages, and what is wanted. Returns the tokens and scores of each draft."""
    rows, states = [], []
    for tokens, first, pages, want in parts:
        rows.append(DraftRow(tokens[first:-1], first, pages, tokens[-1], want))
        states.append(naive.states(tokens[:-1])[first:])
    trees = own.follow(DraftStep(rows, torch.cat(states)))
    return [None if tree is None else (tree.tokens, tree.scores) for tree in trees]


def expected(naive: NaiveMtp, tokens: list[int], want: DraftSpec = WANT) -> tuple[list[int], object]:
    found, logits = naive.guesses(tokens, want.steps, len(naive.joints))
    best = [float((each / want.temperature).log_softmax(-1).max()) for each in logits]
    return found, pytest.approx(list(accumulate(best)), abs=2e-3)


@pytest.mark.slow
@torch.inference_mode()
def test_guesses_are_those_of_the_naive_model(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    naive, path = model
    own = source_of(path)
    monkeypatch.setattr(source, "_CATCH_UP_TOKENS", 16)
    first, second = some_tokens(50, seed=1), some_tokens(7, seed=2)
    assert follow(naive, own, [(first[:31], 0, [1, 2], None)]) == [None]
    # The first one in a second chunk, of which the source has computed nothing, and a shorter one with it.
    both = follow(naive, own, [(first, 30, [1, 2, 3, 4], WANT), (second, 0, [5], WANT)])
    assert both == [expected(naive, first), expected(naive, second)]
    # Three tokens were accepted.
    more = [*first, *some_tokens(3, seed=3)]
    assert follow(naive, own, [(more, 49, [1, 2, 3, 4], WANT)]) == [expected(naive, more)]
    # A fork inside a page, by way of a host page, which computes another token after 40 shared ones.
    own.copy([PageCopy(3, 33, 8), PageCopy(33, 9, 8)])
    fork = [*first[:40], *some_tokens(2, seed=4)]
    assert follow(naive, own, [(fork, 40, [1, 2, 9], WANT)]) == [expected(naive, fork)]


@torch.inference_mode()
def test_alternatives_are_leaves_beside_the_path(model: Model) -> None:
    naive, path = model
    tokens = some_tokens(20, seed=5)
    want = DraftSpec(steps=2, top_k=3, num_tokens=6, temperature=0.7)
    [tree] = source_of(path).follow(
        DraftStep([DraftRow(tokens[:-1], 0, [0, 1], tokens[-1], want)], naive.states(tokens[:-1]))
    )
    assert tree is not None
    _, logits = naive.guesses(tokens, 2, len(naive.joints))
    first, second = ((each / 0.7).log_softmax(-1).topk(3) for each in logits)
    assert tree.parents == [-1, -1, -1, 0, 0, 0]
    assert tree.tokens == [*first.indices.tolist(), *second.indices.tolist()]
    best = first.values[0] + second.values
    assert tree.scores == pytest.approx([*first.values.tolist(), *best.tolist()], abs=2e-3)


def changed(folder: Path, path: Path, tensors: dict[str, torch.Tensor | None]) -> Path:
    """Copy a checkpoint with tensors replaced, or left out."""
    folder.mkdir()
    shutil.copy(path / "config.json", folder)
    stored = load_file(path / "model.safetensors") | tensors
    kept = {name: tensor for name, tensor in stored.items() if tensor is not None}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def deepseek(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = tmp_path_factory.mktemp("deepseek")
    return make_checkpoint("deepseek", path), path


def test_a_head_of_the_layer_s_own_gives_its_logits(deepseek: Model, tmp_path: Path) -> None:
    naive, path = deepseek
    head = torch.randn(2048, 48) * 0.2
    own = source_of(changed(tmp_path / "a", path, {"model.layers.2.shared_head.head.weight": head}))
    tokens, want = some_tokens(9, seed=6), DraftSpec(steps=1, top_k=1, num_tokens=1, temperature=1.0)
    with torch.inference_mode():
        states = naive.states(tokens[:-1])
        [tree] = own.follow(DraftStep([DraftRow(tokens[:-1], 0, [0], tokens[-1], want)], states))
        assert tree is not None
        model, naive.model.lm_head = naive.model.lm_head, torch.nn.Linear(48, 2048, bias=False)
        naive.model.lm_head.weight.copy_(head)
        assert tree.tokens == naive.guesses(tokens, 1, 1)[0]
        naive.model.lm_head = model


@pytest.mark.slow
@pytest.mark.parametrize("is_dense", [False, True])
def test_layers_of_an_fp8_checkpoint_guess_as_their_dequantised_weights(is_dense: bool, tmp_path: Path) -> None:
    """Those that are stored dense are read so, under whatever name the list of unconverted modules has them."""
    naive = make_checkpoint("deepseek in blocks", tmp_path)
    tokens, stored = some_tokens(20, seed=5), load_file(tmp_path / "model.safetensors")
    packed, dense = dict(stored), dict(stored)
    for name, weight in stored.items():
        if not re.search(r"(_proj|_mqa)\.weight$", name) or "eh_proj" in name or (is_dense and ".layers.2." in name):
            continue
        filled = torch.nn.functional.pad(weight, (0, 0, 0, -len(weight) % 128))
        parts = filled.unflatten(1, (-1, 128)).unflatten(0, (-1, 128))
        scale = parts.abs().amax((1, 3), keepdim=True) / 448
        codes = (parts / scale).to(torch.float8_e4m3fn)
        packed[name] = codes.reshape(-1, weight.shape[1])[: len(weight)].clone()
        packed[f"{name}_scale_inv"] = scale[:, 0, :, 0].contiguous()
        dense[name] = (codes.float() * scale).reshape(-1, weight.shape[1])[: len(weight)].clone()
    folders = [changed(tmp_path / name, tmp_path, tensors) for name, tensors in (("a", packed), ("b", dense))]
    config = json.loads((folders[0] / "config.json").read_text("utf-8"))
    config["quantization_config"] = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    }
    (folders[0] / "config.json").write_text(json.dumps(config), "utf-8")
    with torch.inference_mode():
        [quantised], [expected] = (follow(naive, source_of(path), [(tokens, 0, [0, 1], WANT)]) for path in folders)
    assert quantised is not None
    assert expected is not None
    assert quantised[0] == expected[0]
    assert quantised[1] == pytest.approx(expected[1], abs=1e-2)


EH = "model.layers.2.eh_proj.weight"


@pytest.mark.parametrize(
    ("tensors", "error", "message"),
    [
        ({EH: None}, RequestError, r"holds no layers .*model\.layers\.2\.eh_proj .*num_nextn_predict_layers.*mtp\.\*"),
        ({EH: torch.ones(48, 48)}, CheckpointError, r"eh_proj\.weight has shape \(48, 48\)"),
        ({"model.layers.2.hnorm.weight": None}, CheckpointError, r"model\.layers\.2\.hnorm\.weight is in none"),
        ({"model.layers.2.other.weight": torch.ones(3)}, CheckpointError, r"layers\.2\.other\.weight is unexpected"),
        ({"model.layers.2.embed_tokens.weight": torch.ones(2048, 48)}, CheckpointError, "is not the model's embedding"),
    ],
)
def test_checkpoints_without_these_layers_or_with_others_are_refused(
    deepseek: Model, tmp_path: Path, tensors: dict[str, torch.Tensor | None], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        source_of(changed(tmp_path / "a", deepseek[1], tensors))
