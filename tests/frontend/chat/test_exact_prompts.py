"""Prompts of which nothing was generated have the tokenizer's own ids, whatever was remembered: seven tokenizers."""

from __future__ import annotations

import asyncio
import io
import json
import random
import re
from pathlib import Path

import pytest
import sentencepiece
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Library

from ramiform.runtime.frontend.chat.exact_history import EncodedPrompt, ExactHistory
from ramiform.runtime.frontend.chat.renderer import SPLIT
from ramiform.runtime.frontend.text.encoding import Encoder, PromptSegment
from ramiform.runtime.tokenizer import Tokenizer, load_tokenizer
from ramiform.runtime.tokenizer.tiktoken_ranks import PATTERN

NAMES = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
GPT4 = PATTERN.replace(r"|\s+(?!\S)|\s+", r"|\s+(?!\S)|\s")  # as cl100k, in what differs here
PIECES = [
    "Be brief.",
    "Use",
    " English",
    ".",
    ":",
    ")",
    "{",
    "\n",
    "\n\n",
    "  ",
    " ",
    "it's",
    "12",
    "345",
    "é",
    "水",
    "▁",
]
TEXTS = [f"{one}{two}{three}" for one in PIECES for two in PIECES for three in PIECES[:9]]


def byte_level(pattern: str) -> Library:
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    library.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=420, special_tokens=NAMES, initial_alphabet=alphabet, show_progress=False)
    )
    return library


def metaspace(*, prefix: bool) -> Library:
    """Make a tokenizer without pieces of words: Gemma's, or with `prefix` Llama 2's, with a space after each name."""
    library = Library(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    spaces = normalizers.Replace(" ", "▁")
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prefix else spaces
    if not prefix:
        library.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    library.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=["<unk>", *NAMES, *pieces], show_progress=False)
    library.train_from_iterator([text.replace(" ", "▁") for text in TEXTS], trainer)
    state = json.loads(library.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] not in pieces]
    return Library.from_str(json.dumps(state))


def sentencepiece_model(*, prefix: bool) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS),
        model_writer=model,
        vocab_size=420,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=prefix,
        control_symbols=NAMES[2:],
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return model.getvalue()


KINDS = {
    "qwen": lambda: byte_level(PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")),
    "llama 3": lambda: byte_level(PATTERN),
    "gpt-4": lambda: byte_level(GPT4),
    "gemma": lambda: metaspace(prefix=False),
    "llama 2": lambda: metaspace(prefix=True),
    "sentencepiece": lambda: sentencepiece_model(prefix=True),
    "sentencepiece without prefix": lambda: sentencepiece_model(prefix=False),
}


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    made = KINDS[request.param]()
    if isinstance(made, bytes):
        (folder / "tokenizer.model").write_bytes(made)
    else:
        made.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return load_tokenizer(folder)


Message = tuple[str, str]


def rendered(messages: list[Message]) -> list[PromptSegment]:
    """Render messages as ChatML, with the client's names of special tokens as untrusted text."""
    text = "".join(
        f"<|im_start|>{role}\n{content.replace('<|im_end|>', f'<{SPLIT}|im_end|>')}<|im_end|>\n"
        for role, content in messages
    )
    parts = re.split(f"<{SPLIT}(\\|im_end\\|>)", f"{text}<|im_start|>assistant\n")
    return [PromptSegment(f"<{part}" if n % 2 else part, trusted=n % 2 == 0) for n, part in enumerate(parts)]


def parts_of(tokenizer: Tokenizer, ids: list[int]) -> list[tuple[int, ...]]:
    """Return the ids between special tokens, and those."""
    parts, special = [[]], set(tokenizer.special_ids.values())
    for token in ids:
        if token in special:
            parts += [[token], []]
        else:
            parts[-1].append(token)
    return [tuple(part) for part in parts]


class Chats:
    """Asks a history for prompts, each compared with the plain encoding of the same messages."""

    def __init__(self, tokenizer: Tokenizer, runner: asyncio.Runner) -> None:
        self.tokenizer = tokenizer
        self.encoder = Encoder(tokenizer)
        self.history = ExactHistory(tokenizer, self.encoder)
        self.runner = runner

    def ask(self, messages: list[Message]) -> EncodedPrompt:
        segments = rendered(messages)
        asked = self.runner.run(self.history.encode(segments, "", bound=None))
        plain = self.encoder.encode(segments, at_start=True)
        if not asked.num_remembered:
            assert asked.tokens == plain
        for one, other in zip(parts_of(self.tokenizer, asked.tokens), parts_of(self.tokenizer, plain), strict=True):
            if one != other:  # only where an answer was generated
                text = self.tokenizer.decode(other).lstrip()
                assert text.startswith("assistant")
                assert self.tokenizer.decode(one).lstrip() == text
        return asked


@pytest.fixture(scope="module")
def runner() -> asyncio.Runner:
    with asyncio.Runner() as made:
        yield made


@pytest.mark.parametrize(
    ("before", "after"), [(".", "\n\nUse"), (":", "\n"), (")", "\n\n"), ("{", "\n"), ("Be", " brief"), (" ", " x")]
)
def test_the_first_prompt_of_a_chat_does_not_depend_on_another_chat(
    tokenizer: Tokenizer, runner: asyncio.Runner, before: str, after: str
) -> None:
    chats = Chats(tokenizer, runner)
    for _ in range(2):  # the second time the texts are known to part there
        for system in (before, before + after, f"{before} {before}"):
            messages = [("system", "It's long. " * 30), ("system", system), ("user", "Hi")]
            asked = chats.ask(messages)
            chats.history.remember(asked, tokenizer.encode("Be", continues=True))


def test_any_history_and_edit_keeps_what_was_not_generated(tokenizer: Tokenizer, runner: asyncio.Runner) -> None:
    by_byte = {
        data[0]: token for token, data in enumerate(tokenizer.token_bytes) if data is not None and len(data) == 1
    }
    for seed in range(12):
        draw, chats, known = random.Random(seed), Chats(tokenizer, runner), [[("system", "Be brief." * 9)]]
        for _ in range(12):
            messages = draw.choice(known)
            asked = chats.ask(messages)
            said = "".join(draw.choices(PIECES[:-1], k=draw.randint(1, 6)))
            drifted = draw.random() < 0.5
            ids = [by_byte[byte] for byte in said.encode()] if drifted else tokenizer.encode(said, continues=True)
            if draw.random() < 0.5:
                ids.append(tokenizer.special_ids["<|im_end|>"])
            if draw.random() < 0.7:
                chats.history.remember(asked, ids)
            role, content = draw.choice(messages)
            edited = content[: draw.randint(0, len(content))] + draw.choice(["", "<|im_end|>", *PIECES])
            others = [(role, edited) if each == (role, content) else each for each in messages]
            next_turn = ("user", "".join(draw.choices(PIECES, k=draw.randint(0, 40))))
            known += [[*messages, ("assistant", said), next_turn], [*others, ("assistant", said), next_turn], others]
