"""Run of `ramiform train-draft`: train a head for a model, save it, measure its accepted length. Runs can be
resumed."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ...runtime.engine.build import choose_device
from ...runtime.engine.draft_source import DraftSource
from ...runtime.models.checkpoint import fetch_checkpoint
from ...runtime.models.decoder import Decoder
from ...runtime.models.load import load_model
from ...runtime.models.read_config import read_config
from ...runtime.protocol.errors import RequestError
from ...runtime.scheduler.plan import DraftSpec
from ...runtime.speculation.build import head_folder
from ...runtime.speculation.eagle.config import HeadKind
from ...runtime.speculation.eagle.load import load_head
from ...runtime.speculation.eagle.save import save_head
from ...runtime.speculation.eagle.source import EagleSource
from ...runtime.speculation.eagle.target_probe import probe
from ...runtime.speculation.medusa import MedusaSource, load_medusa
from ...runtime.tokenizer import Tokenizer, load_tokenizer
from .batches import TrainingBatches
from .config import TrainConfig, head_config
from .continuations import continuations
from .data import TrainingText, read_texts
from .evaluate import AcceptedLength, measure_accepted_length, overall_accepted_length
from .initial_head import copy_trained_tensors, initial_head, trainable_tensors
from .losses import Losses, losses
from .medusa import initial_medusa, medusa_losses, save_medusa
from .options import TrainingOptions
from .target import Target
from .trainer import Trainer

SAVE_EVERY = 60.0  # seconds, so that a stopped machine costs about a minute, whatever a step takes
_RECIPE = (
    "num_steps",
    "tokens_per_step",
    "max_length",
    "seed",
    "optimizer",
    "learning_rate",
    "num_ahead",
    "token_loss",
)
REPORT_EVERY = 20  # steps, where no progress bar is shown
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def train_draft(options: TrainingOptions, console: Console) -> dict[str, AcceptedLength]:
    """Train, save, and measure on held-out texts. Raises RamiformError when model, data or device cannot be used."""
    path = fetch_checkpoint(options.model, out=options.out)
    out = options.out or head_folder(path)
    kind: HeadKind = "eagle3" if options.eagle == 3 else "eagle"
    if read_config(path).recurrent is not None:
        raise RequestError("draft heads are not for models with recurrent layers", param="model")
    model = load_model(path, device=choose_device(options.device), dtype=_DTYPES[options.dtype])
    tokenizer = load_tokenizer(path)
    out.mkdir(parents=True, exist_ok=True)
    texts, held_out = _texts(options, model, tokenizer, out, console)

    changes: dict[str, Any] = {name: value for name in _RECIPE if (value := getattr(options, name)) is not None}
    if options.medusa:
        return _train_medusa(options, model, path, out, texts, held_out, changes, console)
    config = TrainConfig.for_kind(kind, model.config.hidden_size, **changes)
    draft_ids = _draft_ids(kind, texts, options.draft_vocab, model.config.vocab_size)
    num_draft = model.config.vocab_size if draft_ids is None else len(draft_ids)
    head = initial_head(head_config(kind, model.config, num_draft, probe(model)), model, draft_ids, options.seed)
    if options.init is not None:
        copy_trained_tensors(head, load_head(options.init, model))
    target = Target(model, head.config.captures)
    batches = TrainingBatches(
        texts, tokens_per_step=config.tokens_per_step, max_length=config.max_length, seed=config.seed
    )
    loss = partial(losses, head, config=config)
    trainer = Trainer(trainable_tensors(head.parameters), loss, target, batches, config)
    _train(trainer, config, out, console, lambda: save_head(head, model.config, out))
    make_source = partial(EagleSource, load_head(out, model))
    return _measure(make_source, target, held_out, console)


def _train_medusa(
    options: TrainingOptions,
    model: Decoder,
    path: Path,
    out: Path,
    texts: Sequence[TrainingText],
    held_out: Sequence[TrainingText],
    changes: dict[str, Any],
    console: Console,
) -> dict[str, AcceptedLength]:
    config = TrainConfig.for_kind("medusa", model.config.hidden_size, **changes)
    heads = initial_medusa(options.medusa, model)

    def loss(
        ids_BT: torch.Tensor, weights_BT: torch.Tensor, _: torch.Tensor, final_BTE: torch.Tensor, noise: object
    ) -> Losses:
        return medusa_losses(heads, ids_BT, weights_BT, final_BTE, config.decay)

    target = Target(model, (model.config.num_layers,))
    batches = TrainingBatches(
        texts, tokens_per_step=config.tokens_per_step, max_length=config.max_length, seed=config.seed
    )
    base = options.model or path.name
    _train(Trainer(heads, loss, target, batches, config), config, out, console, lambda: save_medusa(heads, base, out))
    source = MedusaSource(load_medusa(out, model), model.config)
    return _measure(lambda num_pages: source, target, held_out, console)


def _train(trainer: Trainer, config: TrainConfig, out: Path, console: Console, save: Callable[[], None]) -> None:
    """Train to the last step, with a progress bar, and save; a stopped run goes on from its last state.

    SIGTERM and Ctrl-C save after the step, and end the program; a second one ends it at once.
    """
    unfinished = out / "training.pt"
    if unfinished.exists():
        trainer.resume(unfinished)
        console.print(f"going on from step {trainer.step}")
    progress = Progress(
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.3f}  agreement {task.fields[agreement]}"),
        TimeRemainingColumn(),
        console=console,
    )
    with _signals() as stopped_by, progress as bar:
        task = bar.add_task("", total=config.num_steps, completed=trainer.step, loss=float("nan"), agreement="")
        saved_at = time.monotonic()
        while trainer.step < config.num_steps:
            found = trainer.train_step()
            agreement = " ".join(f"{share:.2f}" for share in found.agreement)
            bar.update(task, completed=trainer.step, loss=found.total.item(), agreement=agreement)
            if trainer.step % REPORT_EVERY == 0 and not console.is_terminal:
                console.print(f"step {trainer.step}  loss {found.total.item():.3f}  agreement {agreement}")
            if stopped_by or time.monotonic() - saved_at >= SAVE_EVERY:
                trainer.save(unfinished)
                save()
                saved_at = time.monotonic()
            if stopped_by:
                console.print(f"stopped and saved at step {trainer.step}: the same command goes on from there")
                raise SystemExit(128 + stopped_by[0])
    save()
    unfinished.unlink(missing_ok=True)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect the numbers of SIGTERM and SIGINT, where signals can be handled, instead of ending the program."""
    numbers: list[int] = []
    before: dict[int, Any] = {}

    def note(number: int, _: object) -> None:
        numbers.append(number)
        for each, handler in before.items():
            signal.signal(each, handler)

    if threading.current_thread() is threading.main_thread():
        before |= {each: signal.signal(each, note) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield numbers
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _measure(
    make_source: Callable[[int], DraftSource], target: Target, held_out: Sequence[TrainingText], console: Console
) -> dict[str, AcceptedLength]:
    """Measure the accepted length on held-out texts and print it, or why there is none."""
    measured = measure_accepted_length(make_source, target, held_out, MEASURED_TREE)
    if measured:
        console.print(table(measured))
    elif not held_out:
        console.print("no accepted length: one text leaves none to measure on; give --held-out")
    else:
        console.print("no accepted length: no held-out text has a prompt that the model answers with two tokens")
    return measured


# With the known token, eight tokens are verified at once.
MEASURED_TREE = DraftSpec(steps=5, top_k=4, num_tokens=7, temperature=0.0)


def table(measured: dict[str, AcceptedLength]) -> Table:
    """Return the accepted length of each group, and of all, as a table."""
    title = f"tokens per pass, greedy, {MEASURED_TREE.num_tokens} draft tokens"
    shown = Table("held-out set", "tau", "passes", title=title)
    for group, one in sorted(measured.items()):
        shown.add_row(group, f"{one.tau:.2f}", str(one.num_passes))
    shown.add_section()
    overall = overall_accepted_length(measured)
    shown.add_row("all", f"{overall.tau:.2f}", str(overall.num_passes))
    return shown


def _texts(
    options: TrainingOptions, model: Decoder, tokenizer: Tokenizer, out: Path, console: Console
) -> tuple[list[TrainingText], list[TrainingText]]:
    """Return the texts to learn, and those to measure on, which the target always continues greedily."""
    generates = options.generate > 0
    texts = read_texts(options.data, tokenizer, prompts_only=generates)
    if options.held_out is not None:
        prompts = read_texts(options.held_out, tokenizer, prompts_only=True)
    else:  # every fiftieth text
        chosen = set(range(0, len(texts), 50)) if len(texts) > 1 else set()
        prompts = [text for n, text in enumerate(read_texts(options.data, tokenizer, prompts_only=True)) if n in chosen]
        texts = [text for n, text in enumerate(texts) if n not in chosen]
    limit = model.config.context_length
    for text in [*prompts, *texts]:
        highest = max(text.ids, default=0)
        if highest >= model.config.vocab_size:
            raise RequestError(f"token {highest} of the tokenizer is beyond the model's vocabulary", param="data")
    num_held_out = options.generate or 128
    prompts = [text for text in prompts if 0 < len(text.ids) < limit]
    held_out = _continued(model, tokenizer, prompts, num_held_out, 0.0, options.seed, console, "held-out texts")
    if generates:
        cached = out / "generated.jsonl"
        if cached.exists():
            texts = [TrainingText(**json.loads(line)) for line in cached.read_text(encoding="utf-8").splitlines()]
        else:
            texts = [text for text in texts if 0 < len(text.ids) < limit]
            texts = _continued(
                model, tokenizer, texts, options.generate, options.temperature, options.seed, console, "texts"
            )
            cached.write_text("".join(json.dumps(asdict(text)) + "\n" for text in texts), encoding="utf-8")
    return texts, held_out


def _continued(
    model: Decoder,
    tokenizer: Tokenizer,
    prompts: Sequence[TrainingText],
    num_tokens: int,
    temperature: float,
    seed: int,
    console: Console,
    description: str,
) -> list[TrainingText]:
    with Progress(TextColumn(f"{description} continued"), BarColumn(), MofNCompleteColumn(), console=console) as bar:
        task = bar.add_task("", total=len(prompts))
        answers = continuations(
            model,
            [text.ids for text in prompts],
            num_tokens,
            ends=tokenizer.eos_ids,
            temperature=temperature,
            seed=seed,
            on_done=lambda count: bar.update(task, completed=count),
        )
    return [
        TrainingText(text.ids + answer, len(text.ids), text.group)
        for text, answer in zip(prompts, answers, strict=True)
    ]


def _draft_ids(
    kind: HeadKind, texts: Sequence[TrainingText], wanted: int | None, vocab_size: int
) -> torch.Tensor | None:
    """Return the draft vocabulary of EAGLE-3, ascending: the most frequent learnt tokens, then those of lowest id.
    None: all tokens."""
    size = min(wanted or 32000, vocab_size)
    if kind == "eagle" or size == vocab_size:
        return None
    counts = Counter(token for text in texts for token in text.ids[text.num_prompt :])
    ranked = sorted(range(vocab_size), key=lambda token: (-counts[token], token))
    return torch.tensor(sorted(ranked[:size]))
