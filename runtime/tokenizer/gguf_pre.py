"""Pre-tokenisers of byte-level BPE by their names in GGUF (`tokenizer.ggml.pre`): the patterns that cut text, in turn.

They are those of the models' tokenizer.json; llama.cpp has the same, spelled for its own reader of patterns.
"""

from __future__ import annotations

from typing import Any

_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"
_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+SHORT|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*SHORT"
)
_SLASHES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CASED = (  # DeepSeek's letters
    r"[A-Za-z\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-\x{293}\x{295}-\x{2af}"
    r"\x{370}-\x{373}\x{376}\x{377}\x{37b}-\x{37d}\x{37f}\x{386}\x{388}-\x{38a}\x{38c}\x{38e}-\x{3a1}"
    r"\x{3a3}-\x{3f5}\x{3f7}-\x{481}\x{48a}-\x{52f}\x{531}-\x{556}\x{10a0}-\x{10c5}\x{13a0}-\x{13f5}"
    r"\x{13f8}-\x{13fd}\x{1c90}-\x{1cba}\x{1cbd}-\x{1cbf}\x{1d00}-\x{1d2b}\x{1d6b}-\x{1d77}\x{1d79}-"
    r"\x{1d9a}\x{1e00}-\x{1f15}\x{1f18}-\x{1f1d}\x{1f20}-\x{1f45}\x{1f48}-\x{1f4d}\x{1f50}-\x{1f57}"
    r"\x{1f59}\x{1f5b}\x{1f5d}\x{1f5f}-\x{1f7d}\x{1f80}-\x{1fb4}\x{1fb6}-\x{1fbc}\x{1fbe}\x{1fc2}-\x{1fc4}"
    r"\x{1fc6}-\x{1fcc}\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb}\x{1fe0}-\x{1fec}\x{1ff2}-\x{1ff4}\x{1ff6}-"
    r"\x{1ffc}\x{2102}\x{2107}\x{210a}-\x{2113}\x{2115}\x{2119}-\x{211d}\x{2124}\x{2126}\x{2128}\x{212a}-"
    r"\x{212d}\x{212f}-\x{2134}\x{2139}\x{213c}-\x{213f}\x{2145}-\x{2149}\x{214e}\x{2183}\x{2184}\x{2c00}-"
    r"\x{2c7b}\x{2c7e}-\x{2ce4}\x{2ceb}-\x{2cee}\x{2cf2}\x{2cf3}\x{a640}-\x{a66d}\x{a680}-\x{a69b}\x{a722}"
    r"-\x{a76f}\x{a771}-\x{a787}\x{a78b}-\x{a78e}\x{ab70}-\x{abbf}\x{fb00}-\x{fb06}\x{fb13}-\x{fb17}"
    r"\x{ff21}-\x{ff3a}\x{ff41}-\x{ff5a}\x{10400}-\x{1044f}\x{104b0}-\x{104d3}\x{104d8}-\x{104fb}\x{10c80}"
    r"-\x{10cb2}\x{10cc0}-\x{10cf2}\x{118a0}-\x{118df}\x{1e900}-\x{1e943}]"
)
_PUNCTUATION = r"[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]"
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[\x{4e00}-\x{9fa5}\x{3040}-\x{309f}\x{30a0}-\x{30ff}]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)

# Names, the patterns, and whether a word of the vocabulary is a token whatever its merges.
_ROWS: tuple[tuple[str, tuple[str, ...], bool], ...] = (
    ("gpt-2 phi-2 mpt olmo exaone4 trillion granite-docling modern-bert a.x-4.0 mellum", (_GPT2,), False),
    ("starcoder refact command-r smollm codeshell exaone minerva-7b", (r"\p{N}", _GPT2), False),
    ("llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 glm4 glm5", (_LLAMA3,), True),
    ("dbrx smaug-bpe chatglm-bpe", (_LLAMA3,), False),
    ("qwen2 deepseek-r1-qwen stablelm2 hunyuan megrez kormo f2llmv2", (_QWEN2,), False),
    (
        "qwen35",
        (
            rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        False,
    ),
    ("gpt-4o llama4 kanana2", (rf"{_WORDS.replace('SHORT', _SHORT + '?')}|\p{{N}}{{1,3}}|{_SLASHES}",), False),
    ("tekken", (rf"{_WORDS.replace('SHORT', '')}|\p{{N}}|{_SLASHES}",), True),
    (
        "seed-coder",
        (
            rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+",
        ),
        False,
    ),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", _DEEPSEEK3, False),
    (
        "deepseek-llm",
        (
            r"[\r\n]",
            rf"\s?{_CASED}+",
            rf"\s?{_PUNCTUATION}+",
            r"\s+$",
            r"[\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+",
            r"\p{N}+",
        ),
        False,
    ),
    (
        "deepseek-coder",
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+", r"\p{N}"),
        False,
    ),
    ("falcon", (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]"), False),
    ("default", (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"), False),
)
_PATTERNS = {name: (patterns, whole) for names, patterns, whole in _ROWS for name in names.split()}
PRE_TOKENIZERS = tuple(_PATTERNS)


def pre_tokenizer(name: str) -> tuple[dict[str, Any], bool]:
    """Return the pre-tokeniser `name` as tokenizer.json has it, and whether words of the vocabulary need no merges."""
    patterns, whole = _PATTERNS[name]
    splits = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in patterns
    ]
    return {"type": "Sequence", "pretokenizers": [*splits, _BYTES]}, whole
