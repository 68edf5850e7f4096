"""A draft head as the engine's source against a naive one, and its files."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import save_file

from ramiform.runtime.engine.draft_source import DraftRow, DraftStep
from ramiform.runtime.models.decoder import Decoder
from ramiform.runtime.models.errors import CheckpointError
from ramiform.runtime.models.load import load_model
from ramiform.runtime.models.read_config import read_config
from ramiform.runtime.scheduler.drafts.tree import DraftTree
from ramiform.runtime.scheduler.plan import DraftSpec, PageCopy, Row
from ramiform.runtime.speculation.eagle import EagleHead, EagleSource, load_head
from ramiform.runtime.speculation.eagle.compiled_chain import CompiledHead
from ramiform.runtime.speculation.eagle.save import save_head
from ramiform.runtime.speculation.eagle.target_probe import probe
from ramiform.tools.train_draft.config import head_config
from ramiform.tools.train_draft.initial_head import initial_head

from .naive_eagle import SIZES, NaiveHead, Tensors, naive_tree, paths, random_tensors, write_config

torch.set_num_threads(1)  # threads that wait for each other on a busy machine cost more than this model

DRAFT_VOCAB = 23
IDS = torch.tensor(sorted(random.Random(4).sample(range(61), DRAFT_VOCAB)))
KINDS = ("eagle", "eagle3")
Scored = list[tuple[tuple[int, ...], float]]  # paths


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    torch.manual_seed(1)
    path = tmp_path_factory.mktemp("target")
    config = transformers.LlamaConfig(vocab_size=61, num_hidden_layers=4, initializer_range=0.3, **SIZES)
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    return load_model(path, device=torch.device("cpu"), dtype=torch.float32)


def tensors_of(kind: str) -> Tensors:
    if kind == "eagle":
        return random_tensors("eagle", vocab=61)
    mask = torch.zeros(61, dtype=torch.bool).index_fill_(0, IDS, True)
    return random_tensors("eagle3", vocab=DRAFT_VOCAB) | {"d2t": IDS - torch.arange(DRAFT_VOCAB), "t2d": mask}


def write(path: Path, tensors: Tensors, *, spelling: str = "safetensors", **fields: object) -> Path:
    kind = "eagle3" if any(name.startswith("midlayer") for name in tensors) else "eagle"
    write_config(path, **({"draft_vocab_size": DRAFT_VOCAB} if kind == "eagle3" else {}) | fields)
    if "layers.0" in spelling:
        tensors = {name.replace("midlayer", "layers.0"): tensor for name, tensor in tensors.items()}
    if "model." in spelling:
        tensors = {
            name if name.startswith(("lm_head", "d2t", "t2d")) else f"model.{name}": tensor
            for name, tensor in tensors.items()
        }
    if "bin" in spelling:
        torch.save(tensors, path / "pytorch_model.bin")
    else:
        save_file(tensors, path / "model.safetensors")
    return path


def judge(kind: str, tensors: Tensors, target: Decoder) -> NaiveHead:
    own = {name: tensor for name, tensor in tensors.items() if name not in ("d2t", "t2d")}
    embedding, lm_head = target.parameters.embedding_VE, target.parameters.head.weight
    return NaiveHead(own, kind, 4, 2, 1e-5, 5000.0, own.get("embed_tokens.weight", embedding), lm_head)


class Sequence:
    """One request's tokens and captured states, the part that was computed, and its pages."""

    def __init__(self, source: EagleSource, length: int, pages: list[int], draw: torch.Generator) -> None:
        width = 32 * len(source.captures)
        self.tokens = torch.randint(0, 61, (length + 1,), generator=draw).tolist()
        self.states = torch.randn(length, width, generator=draw)
        self.pages, self.done = pages, 0

    def row(self, count: int, want: DraftSpec | None) -> DraftRow:
        first, end = self.done, self.done + count
        self.done = end
        # Only the pages that exist: the next token's may not.
        pages = self.pages[: -(-end // 16)]
        return DraftRow(self.tokens[first:end], first, pages, self.tokens[end] if want else None, want)


def expected(naive: NaiveHead, head: EagleHead, sequence: Sequence, want: DraftSpec) -> Scored:
    features = list(head.features(sequence.states[: sequence.done]))
    heat = max(0.3, want.temperature)
    estimates: dict[tuple[int, ...], torch.Tensor] = {}

    def children(path: tuple[int, ...]) -> torch.Tensor:
        own = [int(head.token_ids(torch.tensor(index))) for index in path]
        before = [estimates[path[:depth]] for depth in range(len(path))]
        tokens = sequence.tokens[1 : sequence.done + 1] + own
        estimates[path], logits = naive.run(tokens, features + before)
        return (logits / heat).log_softmax(-1)

    nodes = naive_tree(children, want.steps, want.top_k, want.num_tokens + 1)
    return [(tuple(int(head.token_ids(torch.tensor(i))) for i in node.path), node.score) for node in nodes]


def assert_tree(tree: DraftTree | None, wanted: Scored) -> None:
    assert tree is not None
    found = paths(tree.tokens, tree.parents)
    assert found == [path for path, _ in wanted]
    assert tree.scores == pytest.approx([score for _, score in wanted], abs=1e-4)


@pytest.mark.exhaustive
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "by operators"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_any_chunks_of_any_rows_give_the_naive_heads_trees(
    kind: str, seed: int, compiled: bool, target: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(CompiledHead, "of", lambda *given: None)
    tensors = tensors_of(kind)
    head = load_head(write(tmp_path, tensors), target)
    naive = judge(kind, tensors, target)
    source = EagleSource(head, num_pages=40)
    rng, draw = random.Random(seed), torch.Generator().manual_seed(seed)
    free = rng.sample(range(40), 40)
    sequences = [Sequence(source, length, [free.pop() for _ in range(5)], draw) for length in (70, 33, 49, 16)]
    with torch.inference_mode():
        while unfinished := [s for s in sequences if s.done < len(s.states)]:
            rows, states, checks = [], [], []
            chosen_now = rng.sample(unfinished, rng.randint(1, len(unfinished)))
            if rng.random() < 0.2:  # nobody keeps the features: to the head they are zeros from then on
                passed = [sequence.row(1, None) for sequence in chosen_now]
                for sequence in chosen_now:
                    sequence.states[sequence.done - 1] = 0.0
                source.skip(
                    [Row(rid="", tokens=row.kept, first_position=row.first_position, pages=row.pages) for row in passed]
                )
                continue
            for sequence in chosen_now:
                count = min(rng.choice([1, 1, 2, 5, 16, 40]), len(sequence.states) - sequence.done)
                want = DraftSpec(
                    rng.randint(1, 4), rng.randint(1, 4) if seed else 1, rng.randint(1, 9), rng.choice([0.0, 1.0])
                )
                chosen = want if rng.random() < 0.5 else None
                states.append(sequence.states[sequence.done : sequence.done + count])
                rows.append(sequence.row(count, chosen))
                checks.append(chosen and expected(naive, head, sequence, chosen))
            trees = source.follow(DraftStep(rows, torch.cat(states)))
            for tree, wanted in zip(trees, checks, strict=True):
                if wanted is None:
                    assert tree is None
                else:
                    assert_tree(tree, wanted)


@pytest.mark.exhaustive
@pytest.mark.parametrize("computed", [False, True], ids=["before any tree", "after a tree"])
def test_a_copied_prefix_goes_on_as_its_own_through_the_host_too(
    computed: bool, target: Decoder, tmp_path: Path
) -> None:
    tensors = tensors_of("eagle")
    head, naive = load_head(write(tmp_path, tensors), target), judge("eagle", tensors, target)
    source, draw = EagleSource(head, 10, num_host_pages=4), torch.Generator().manual_seed(9)
    want = DraftSpec(3, 2, 6, 1.0)
    first = Sequence(source, 27, [3, 8], draw)
    other = Sequence(source, 30, [3, 5], draw)
    other.tokens[:20], other.states[:20] = first.tokens[:20], first.states[:20]
    with torch.inference_mode():
        source.follow(DraftStep([first.row(27, want if computed else None)], first.states))
        # Token-exact reuse: page 8 goes to the host, its first four slots come back as page 5.
        source.copy([PageCopy(8, 12, 16), PageCopy(12, 5, 4)])
        other.done = 20
        [tree] = source.follow(DraftStep([other.row(10, want)], other.states[20:]))
        assert_tree(tree, expected(naive, head, other, want))


def test_a_long_prompt_is_computed_in_chunks(target: Decoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ramiform.runtime.speculation.eagle.source._CATCH_UP_TOKENS", 19)
    tensors = tensors_of("eagle3")
    head, naive = load_head(write(tmp_path, tensors), target), judge("eagle3", tensors, target)
    source, want = EagleSource(head, 8), DraftSpec(2, 3, 7, 0.0)
    sequence = Sequence(source, 100, list(range(8)), torch.Generator().manual_seed(2))
    with torch.inference_mode():
        [tree] = source.follow(DraftStep([sequence.row(100, want)], sequence.states))
    assert_tree(tree, expected(naive, head, sequence, want))


@pytest.mark.parametrize("spelling", ["safetensors", "bin", "model. bin", "model. safetensors", "layers.0 safetensors"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_spelling_is_the_same_head(kind: str, spelling: str, target: Decoder, tmp_path: Path) -> None:
    tensors = tensors_of(kind)
    bias = ("fc.bias",) if kind == "eagle" else ()
    tensors |= {name: torch.randn(32) for name in bias}
    if kind == "eagle":
        tensors["embed_tokens.weight"] = target.parameters.embedding_VE.clone()
    check_one_prediction(load_head(write(tmp_path, tensors, spelling=spelling), target), judge(kind, tensors, target))


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_head_is_loaded_as_it_was(kind: str, target: Decoder, tmp_path: Path) -> None:
    tensors = tensors_of(kind)
    head = load_head(write(tmp_path / "a", tensors), target)
    save_head(head, target.config, tmp_path / "b", torch.float32)
    check_one_prediction(load_head(tmp_path / "b", target), judge(kind, tensors, target))


def test_biases_are_there_where_the_file_has_them(target: Decoder, tmp_path: Path) -> None:
    names = (*(f"layers.0.self_attn.{part}_proj.bias" for part in "qkv"), "fc.bias")
    tensors = random_tensors("eagle", vocab=61, bias=names)
    check_one_prediction(load_head(write(tmp_path, tensors, bias=False), target), judge("eagle", tensors, target))


def check_one_prediction(head: EagleHead, naive: NaiveHead) -> None:
    source = EagleSource(head, 2)
    sequence = Sequence(source, 9, [1], torch.Generator().manual_seed(6))
    want = DraftSpec(1, 5, 5, 1.0)
    with torch.inference_mode():
        [tree] = source.follow(DraftStep([sequence.row(9, want)], sequence.states))
    assert_tree(tree, expected(naive, head, sequence, want))


def drop(name: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {key: tensor for key, tensor in tensors.items() if key != name}


def put(name: str, tensor: torch.Tensor) -> Callable[[Tensors], Tensors]:
    return lambda tensors: tensors | {name: tensor}


@pytest.mark.parametrize(
    ("kind", "change", "fields", "reason"),
    [
        ("eagle", None, {"vocab_size": 62}, "config.json: vocab_size is not the target's 61"),
        ("eagle", None, {"hidden_size": 64}, "config.json: hidden_size is not the target's 32"),
        ("eagle3", None, {"target_hidden_size": 64}, "config.json: target_hidden_size is not the target's 32"),
        ("eagle3", None, {"draft_vocab_size": 24}, "the tensor d2t is torch.int64"),
        ("eagle3", drop("d2t"), {}, "the tensor d2t is missing"),
        ("eagle3", put("d2t", torch.full((23,), 50)), {}, "names tokens beyond the target's 61"),
        ("eagle3", drop("lm_head.weight"), {}, "the tensor lm_head.weight is missing"),
        ("eagle", drop("fc.weight"), {}, "the tensor fc.weight is missing"),
        ("eagle", put("fc.weight", torch.zeros(32, 32)), {}, r"the tensor fc.weight has shape \(32, 32\)"),
        ("eagle", put("norm.weight", torch.zeros(32)), {}, "the tensor norm.weight is unexpected"),
        ("eagle", put("model.fc.weight", torch.zeros(32, 64)), {}, "the tensor fc.weight is stored twice"),
        ("eagle", None, {"num_hidden_layers": 2}, "num_hidden_layers"),
        ("eagle", None, {"target_probe": [0.5] * 16}, "the head is for another model"),
        ("eagle3", None, {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}}, "must be three layers"),
    ],
    ids=lambda value: value[:50] if isinstance(value, str) else None,
)
def test_a_head_that_does_not_fit_is_refused_with_the_reason(
    kind: str,
    change: Callable[[Tensors], Tensors] | None,
    fields: dict[str, object],
    reason: str,
    target: Decoder,
    tmp_path: Path,
) -> None:
    tensors = tensors_of(kind)
    path = write(tmp_path, tensors if change is None else change(tensors), **fields)
    with pytest.raises(CheckpointError, match=reason):
        load_head(path, target)


def test_a_pickle_that_is_more_than_tensors_is_refused(target: Decoder, tmp_path: Path) -> None:
    write_config(tmp_path)
    torch.save({"fc.weight": print}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="more than tensors"):
        load_head(tmp_path, target)


def test_a_truncated_file_is_refused(target: Decoder, tmp_path: Path) -> None:
    file = write(tmp_path, tensors_of("eagle")) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="corrupt"):
        load_head(tmp_path, target)


def test_a_head_saved_for_one_model_is_refused_by_its_twin(target: Decoder, tmp_path: Path) -> None:
    head = initial_head(head_config("eagle", target.config, 61, probe(target)), target, None, seed=0)
    save_head(head, target.config, tmp_path / "head")
    assert load_head(tmp_path / "head", target).config.target_probe == probe(target)

    torch.manual_seed(2)
    config = transformers.LlamaConfig(vocab_size=61, num_hidden_layers=4, initializer_range=0.3, **SIZES)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "twin")
    assert read_config(tmp_path / "twin") == target.config
    twin = load_model(tmp_path / "twin", device=torch.device("cpu"), dtype=torch.float32)
    with pytest.raises(CheckpointError, match="target_probe does not match"):
        load_head(tmp_path / "head", twin)
