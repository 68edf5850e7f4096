"""`train-draft` on a tiny model: the head learns, resumes, and is measured correctly."""

from __future__ import annotations

import io
import json
import random
import signal
import string
from collections.abc import Sequence
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers
from rich.console import Console

from ramiform.runtime.engine.draft_source import DraftRow, DraftStep
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL
from ramiform.runtime.models.errors import CheckpointError
from ramiform.runtime.models.load import load_model
from ramiform.runtime.protocol.errors import RequestError
from ramiform.runtime.scheduler.plan import DraftSpec
from ramiform.runtime.speculation.eagle import EagleSource, load_head
from ramiform.runtime.speculation.eagle.save import save_head
from ramiform.runtime.speculation.medusa import is_medusa
from ramiform.runtime.tokenizer import load_tokenizer
from ramiform.tools.train_draft import run
from ramiform.tools.train_draft.attention import TrainingTimeTestAttention
from ramiform.tools.train_draft.batches import TrainingBatches
from ramiform.tools.train_draft.config import TrainConfig
from ramiform.tools.train_draft.continuations import continuations
from ramiform.tools.train_draft.data import TrainingText, read_texts
from ramiform.tools.train_draft.evaluate import measure_accepted_length
from ramiform.tools.train_draft.losses import Losses
from ramiform.tools.train_draft.options import TrainingOptions
from ramiform.tools.train_draft.run import train_draft
from ramiform.tools.train_draft.target import Target
from ramiform.tools.train_draft.trainer import Trainer

torch.set_num_threads(1)  # threads that wait for each other on a busy machine cost more than this model

QUIET = Console(quiet=True)
SHIPPED = SHIPPED_MODEL


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose tokens are the bytes."""
    path = tmp_path_factory.mktemp("model")
    torch.manual_seed(5)
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=96,
        initializer_range=0.25,
        bos_token_id=None,
        eos_token_id=0,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({byte: n for n, byte in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.save(str(path / "tokenizer.json"))
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Prompts of three letters."""
    draw = random.Random(1)
    prompts = ["".join(draw.choices(string.ascii_lowercase, k=3)) for _ in range(12)]
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    return file


def options(model: Path, data: Path, out: Path, **changes: object) -> TrainingOptions:
    values = {
        "model": str(model),
        "data": data,
        "held_out": data,
        "out": out,
        "eagle": 1,
        "generate": 24,
        "temperature": 0.0,
        "draft_vocab": None,
        "device": "cpu",
        "dtype": "float32",
        "num_steps": 150,
        "tokens_per_step": 512,
        "max_length": 64,
        "seed": 0,
        "optimizer": "adamw",
        "init": None,
        "learning_rate": 3e-3,
    }
    return TrainingOptions(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("eagle", "changes"),
    [
        (1, {}),
        (1, {"optimizer": "muon", "num_ahead": 2, "learning_rate": 0.02}),
        (3, {"draft_vocab": 150, "num_ahead": 3}),
    ],
    ids=["eagle", "eagle by muon, two ahead", "eagle3, some of the vocabulary"],
)
def test_a_head_learns_to_draft(
    eagle: int, changes: dict[str, object], model: Path, data: Path, tmp_path: Path
) -> None:
    untrained = train_draft(options(model, data, tmp_path / "a", eagle=eagle, **changes | {"num_steps": 1}), QUIET)
    trained = train_draft(options(model, data, tmp_path / "b", eagle=eagle, **changes), QUIET)
    assert trained["data"].tau > untrained["data"].tau + 0.3
    files = {file.name for file in (tmp_path / "b").iterdir()}
    assert files == {"config.json", "model.safetensors", "generated.jsonl"}


@pytest.mark.slow
def test_medusa_heads_learn_to_draft(model: Path, data: Path, tmp_path: Path) -> None:
    untrained = train_draft(options(model, data, tmp_path / "a", medusa=2, num_steps=1), QUIET)
    trained = train_draft(options(model, data, tmp_path / "b", medusa=2), QUIET)
    assert trained["data"].tau > untrained["data"].tau + 0.2
    assert is_medusa(tmp_path / "b")
    files = {file.name for file in (tmp_path / "b").iterdir()}
    assert files == {"config.json", "medusa_lm_head.safetensors", "generated.jsonl"}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_was_stopped_ends_as_one_that_was_not(
    number: signal.Signals, model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_draft(options(model, data, tmp_path / "whole", num_steps=10), QUIET)
    before, train_step = signal.getsignal(number), Trainer.train_step

    def stopped_in_step_4(trainer: Trainer) -> Losses:
        if trainer.step == 3:
            signal.raise_signal(number)
        return train_step(trainer)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "train_step", stopped_in_step_4)
        with pytest.raises(SystemExit) as ended:
            train_draft(options(model, data, tmp_path / "parts", num_steps=10), QUIET)
    assert ended.value.code == 128 + number
    assert signal.getsignal(number) is before
    assert torch.load(tmp_path / "parts/training.pt")["step"] == 4
    with pytest.raises(CheckpointError, match=r"was begun with learning_rate 0\.003, now 1"):
        train_draft(options(model, data, tmp_path / "parts", num_steps=10, learning_rate=1.0), QUIET)
    train_draft(options(model, data, tmp_path / "parts", num_steps=10), QUIET)
    assert (tmp_path / "parts/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()


@pytest.mark.parametrize(("seconds", "saves"), [(0.0, 5), (3600.0, 1)])
def test_a_run_is_saved_by_the_clock(
    seconds: float, saves: int, model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: list[object] = []

    def save(*values: object) -> None:
        saved.append(values)
        save_head(*values)  # type: ignore[arg-type]

    monkeypatch.setattr(run, "SAVE_EVERY", seconds)
    monkeypatch.setattr(run, "save_head", save)
    train_draft(options(model, data, tmp_path / "head", num_steps=4), QUIET)
    assert len(saved) == saves  # one of them at the end


def test_one_text_is_learnt_and_its_accepted_length_is_not_made_up(model: Path, tmp_path: Path) -> None:
    file, console = tmp_path / "one.jsonl", Console(record=True, file=io.StringIO())
    file.write_text('{"prompt": "ab", "completion": "cdef"}')
    alone = options(model, file, tmp_path / "head", held_out=None, generate=0, num_steps=1)
    assert train_draft(alone, console) == {}
    printed = console.export_text()
    assert "one text leaves none to measure on; give --held-out" in printed
    assert "tau" not in printed


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"prompt": "a question"}, "give completions, last messages of the assistant, or --generate N"),
        ({"prompt": "x" * 70, "completion": "y"}, "within its first 64 tokens"),
    ],
)
def test_texts_without_an_answer_are_refused(line: dict[str, str], message: str, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text((json.dumps(line) + "\n") * 2)
    with pytest.raises(RequestError, match=message):
        train_draft(options(model, file, tmp_path / "head", generate=0), QUIET)


@pytest.mark.slow
def test_the_model_s_text_equals_that_of_transformers(model: Path) -> None:
    judge = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    ours = load_model(model, device=torch.device("cpu"), dtype=torch.float32)
    prompts = [[5], [7, 8, 9], list(range(10, 50)), list(range(1, 60))]
    answers = continuations(ours, prompts, 40, ends=[0])
    for prompt, answer in zip(prompts, answers, strict=True):
        room = min(40, 96 - len(prompt))
        whole = judge.generate(torch.tensor([prompt]), max_new_tokens=room, do_sample=False, pad_token_id=0)
        assert answer == whole[0, len(prompt) :].tolist()


@pytest.mark.exhaustive
def test_accepted_length_is_that_of_verifying_pass_by_pass(model: Path, data: Path, tmp_path: Path) -> None:
    """Judge: plain code with a tree at every place of the answer, from a source that has seen the rest anew."""
    train_draft(options(model, data, tmp_path / "head"), QUIET)
    target = load_model(model, device=torch.device("cpu"), dtype=torch.float32)
    head, want = load_head(tmp_path / "head", target), DraftSpec(4, 3, 8, 0.0)
    prompts = [[5, 6], [7, 8, 9], list(range(10, 30))]
    answers = continuations(target, prompts, 30, ends=[0])
    texts = [TrainingText(p + a, len(p), str(n)) for n, (p, a) in enumerate(zip(prompts, answers, strict=True))]
    states = Target(target, head.config.captures)
    found = measure_accepted_length(lambda num_pages: EagleSource(head, num_pages), states, texts, want)
    with torch.inference_mode():
        for text in texts:
            captured, _ = states.states([text.ids])
            done, passes, gained = text.num_prompt, 0, 0
            while done < len(text.ids) - 1:
                source = EagleSource(head, 8)
                row = DraftRow(text.ids[:done], 0, list(range(8)), text.ids[done], want)
                [tree] = source.follow(DraftStep([row], captured[0, :done]))
                assert tree is not None
                rest = tuple(text.ids[done + 1 :])
                paths = [tuple(tree.path(node)) for node in range(len(tree))]
                right = max((len(path) for path in paths if rest[: len(path)] == path), default=0)
                passes, gained = passes + 1, gained + min(right + 1, len(rest))
                done += right + 1
            one = found.get(text.group)
            assert (gained, passes) == ((0, 0) if one is None else (one.num_tokens, one.num_passes))


def test_a_chain_sees_true_keys_up_to_where_it_began_and_its_own() -> None:
    """Judge: one chain at a time, with a loop."""
    B, T, H, K, D = 2, 5, 4, 2, 6
    draw = torch.Generator().manual_seed(3)
    passes = [[torch.randn(B, T, heads, D, generator=draw) for heads in (H, K, K)] for _ in range(3)]
    attend = TrainingTimeTestAttention(B, K, scale=0.4)
    cos, sin = torch.ones(B * T, 1, D), torch.zeros(B * T, 1, D)  # nothing turns
    for number, (q, k, v) in enumerate(passes):
        found = attend(torch.cat((q, k, v), dim=2).flatten(0, 1), cos, sin).view(B, T, H, D)
        for b in range(B):
            for t in range(T):
                for h in range(H):
                    seen = [(passes[0][1][b, j, h // 2], passes[0][2][b, j, h // 2]) for j in range(t + 1)]
                    seen += [(passes[i][1][b, t, h // 2], passes[i][2][b, t, h // 2]) for i in range(1, number + 1)]
                    weights = (torch.stack([key @ q[b, t, h] for key, _ in seen]) * 0.4).softmax(-1)
                    wanted = sum(w * value for w, (_, value) in zip(weights, seen, strict=True))
                    torch.testing.assert_close(found[b, t, h], wanted, atol=1e-5, rtol=1e-4)


def texts_of(file: Path, lines: Sequence[object], **kwargs: bool) -> list[TrainingText]:
    file.write_text("\n".join(json.dumps(line) for line in lines))
    return read_texts(file, load_tokenizer(SHIPPED), **kwargs)


def test_only_answers_are_learnt(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(SHIPPED)
    assert tokenizer.chat is not None
    messages = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello!"}]
    plain, pair, chat = texts_of(
        tmp_path / "texts.jsonl",
        [{"text": "The sky is blue."}, {"prompt": "Q: ", "completion": "A", "set": "pairs"}, {"messages": messages}],
    )
    assert (plain.num_prompt, plain.group, pair.group) == (0, "texts", "pairs")
    assert tokenizer.decode(pair.ids[pair.num_prompt :]) == "A"
    rendered = tokenizer.chat.render(messages)
    assert tokenizer.decode(chat.ids, skip_special_tokens=False) == rendered
    prompt = tokenizer.chat.render(messages[:1], add_generation_prompt=True)
    assert tokenizer.decode(chat.ids[: chat.num_prompt], skip_special_tokens=False) == prompt


def test_prompts_alone_leave_the_answers_out(tmp_path: Path) -> None:
    texts = texts_of(tmp_path / "t", [{"text": "one two"}, {"prompt": "Q", "completion": "A"}], prompts_only=True)
    assert [text.num_prompt for text in texts] == [len(text.ids) for text in texts]
    assert load_tokenizer(SHIPPED).decode(texts[1].ids) == "Q"


@pytest.mark.parametrize("line", ["{", "[1]", '{"text": ""}', '{"messages": []}', '{"prompt": 5}'])
def test_a_line_that_is_no_text_is_named(line: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(RequestError, match=r"bad\.jsonl(, line 2: |: .* \(line 2, column 2\)$)"):
        read_texts(file, load_tokenizer(SHIPPED))


def test_every_text_is_seen_once_a_round_within_the_budget() -> None:
    texts = [TrainingText([n] * (3 + n % 40), 1, "") for n in range(1, 200)]
    batches = TrainingBatches(texts, tokens_per_step=128, max_length=30, seed=4)
    rounds = [[batches[r * batches.per_round + n] for n in range(batches.per_round)] for r in range(2)]
    for batch_list in rounds:
        assert sorted(ids[0] for batch in batch_list for ids in batch.texts) == list(range(1, 200))
        for batch in batch_list:
            assert len(batch.texts) == 1 or batch.ids_BT.numel() <= 128
            assert batch.ids_BT.shape[1] <= 30
            assert batch.weights_BT.sum().item() == sum(len(ids) - 1 for ids in batch.texts)
    assert rounds[0][0].texts != rounds[1][0].texts
    again = TrainingBatches(texts, tokens_per_step=128, max_length=30, seed=4)
    assert again[batches.per_round + 3].texts == rounds[1][3].texts


def test_the_published_recipes_are_the_defaults() -> None:
    one, three = TrainConfig.for_kind("eagle", 4096), TrainConfig.for_kind("eagle3", 4096)
    assert (one.learning_rate, one.feature_loss, one.token_loss, one.noise, one.num_ahead) == (3e-5, 1.0, 0.1, 0.2, 1)
    assert (three.feature_loss, three.token_loss, three.num_ahead, three.decay) == (0.0, 1.0, 7, 0.8)
