"""Prompts to fill in text, of the tokens that models have for it. Source: llama.cpp's server.

Knows names of special tokens; knows nothing of requests.
"""

from __future__ import annotations

from typing import NamedTuple

from ....protocol.errors import RequestError
from ....tokenizer.interface import Tokenizer
from ...text.encoding import Encoder, PromptSegment, TokenLimit
from .body import InfillBody

# Names of the tokens in different families, as llama.cpp finds them where a file names none.
_NAMES = {
    "prefix": (
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<｜fim▁begin｜>",
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
    ),
    "suffix": (
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<｜fim▁hole｜>",
        "<SUF>",
        "▁<SUF>",
        "<|code_suffix|>",
    ),
    "middle": ("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>", "<|code_middle|>"),
    "repository": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "file": ("<|file_sep|>",),
}
_BETWEEN_FILES = "\n\n--- snippet ---\n\n"


class InfillTokens(NamedTuple):
    """Tokens around the parts of a text; None: the model has no token for whole repositories."""

    prefix: int
    suffix: int
    middle: int
    repository: int | None
    file: int | None


def infill_tokens(tokenizer: Tokenizer) -> InfillTokens:
    """Find a model's tokens. Raises RequestError for one that is not trained to fill in text."""
    found = {
        part: next((tokenizer.special_ids[name] for name in names if name in tokenizer.special_ids), None)
        for part, names in _NAMES.items()
    }
    missing = [part for part in ("prefix", "suffix", "middle") if found[part] is None]
    if missing:
        raise RequestError(
            f"this model does not fill in text: it has no token for {' and '.join(missing)}",
            param="input_prefix",
            code="not_supported",
        )
    return InfillTokens(**found)  # type: ignore[arg-type]


async def infill_prompt(
    body: InfillBody, tokenizer: Tokenizer, encoder: Encoder, bound: TokenLimit | None
) -> list[int]:
    """Return the ids of the prompt. Names of special tokens in its texts are plain text. Raises RequestError."""
    tokens = infill_tokens(tokenizer)

    async def encoded(text: str, param: str) -> list[int]:
        segments = [PromptSegment(text, trusted=False)]
        return await encoder.encode_async(segments, at_start=False, param=param, bound=bound)

    ids: list[int] = []
    if tokens.repository is not None:
        ids += [tokens.repository, *await encoded("myproject\n", "input_extra")]
    for extra in body.input_extra:
        if tokens.file is None:
            ids += await encoded(_BETWEEN_FILES, "input_extra")
        else:
            ids += [tokens.file, *await encoded(f"{extra.filename}\n", "input_extra")]
        ids += await encoded(extra.text, "input_extra")
    if tokens.file is not None:
        ids += [tokens.file, *await encoded("filename\n", "input_extra")]
    if tokenizer.adds_bos and tokenizer.bos_id is not None:
        ids.append(tokenizer.bos_id)
    prefix = [*await encoded(body.input_prefix, "input_prefix"), *await encoded(body.prompt, "prompt")]
    suffix = await encoded(body.input_suffix, "input_suffix")
    return [*ids, tokens.prefix, *prefix, tokens.suffix, *suffix, tokens.middle]
