"""Training texts: JSON lines to token ids, divided into a prompt and a part that the head learns to draft."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...runtime.protocol.errors import RequestError, json_fault
from ...runtime.tokenizer import Tokenizer


@dataclass(frozen=True)
class TrainingText:
    """Token ids of a text. `ids[:num_prompt]` are the prompt, the others the target's answer."""

    ids: list[int]
    num_prompt: int
    group: str  # accepted length is reported by group


def read_texts(file: Path, tokenizer: Tokenizer, *, prompts_only: bool = False) -> list[TrainingText]:
    """Read the texts of `file`, whose lines are one of

    - {"text": ...}: all of it is learnt;
    - {"prompt": ..., "completion": ...}: the completion is learnt; both as they are, special tokens by name;
    - {"messages": [...]}: a conversation for the model's chat template; its last answer is learnt.

    A field "set" names the group, by default the file's stem. With `prompts_only` the learnt part is left out, because
    the target will generate it; a {"text"} is then all prompt. Raises RequestError naming the file and the line.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{file} cannot be read: {error}", param="data") from None
    texts = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            prompt, completion, group = _parts(json.loads(line), tokenizer, file.stem)
        except (json.JSONDecodeError, RecursionError) as error:
            raise RequestError(f"{file}: {json_fault(line, error, first_line=number)}", param="data") from None
        except (ValueError, TypeError) as error:
            raise RequestError(f"{file}, line {number}: {error}", param="data") from None
        if prompts_only:
            prompt, completion = prompt or completion, ""
        ids = tokenizer.encode(prompt, add_bos=_needs_bos(prompt, tokenizer)) if prompt else []
        if completion:
            begins = not ids and _needs_bos(completion, tokenizer)
            texts.append(
                TrainingText(ids + tokenizer.encode(completion, add_bos=begins, continues=bool(ids)), len(ids), group)
            )
        else:
            texts.append(TrainingText(ids, len(ids), group))
    if not texts:
        raise RequestError(f"{file} holds no texts", param="data")
    return texts


def _needs_bos(text: str, tokenizer: Tokenizer) -> bool:
    """Return True if the tokenizer must add BOS. Most chat templates write it themselves."""
    names = {number: name for name, number in tokenizer.special_ids.items()}
    bos = names.get(tokenizer.bos_id) if tokenizer.bos_id is not None else None
    return tokenizer.adds_bos and not (bos is not None and text.startswith(bos))


def _parts(entry: Any, tokenizer: Tokenizer, stem: str) -> tuple[str, str, str]:
    """Return prompt, completion and group of a line."""
    match entry:
        case {"text": str(text)} if text:
            prompt, completion = "", text
        case {"prompt": str(prompt), "completion": str(completion)} if prompt:
            pass
        case {"prompt": str(prompt)} if prompt:
            completion = ""
        case {"messages": [*messages]} if messages and all(isinstance(message, dict) for message in messages):
            prompt, completion = _conversation(messages, tokenizer)
        case _:
            raise ValueError(
                'must be {"text"}, {"prompt", "completion"} or {"messages"}, with texts that are not empty'
            )
    return prompt, completion, str(entry.get("set", stem))


def _conversation(messages: list[dict[str, Any]], tokenizer: Tokenizer) -> tuple[str, str]:
    if tokenizer.chat is None:
        raise ValueError('the model has no chat template, which "messages" need')
    if messages[-1].get("role") != "assistant":
        return tokenizer.chat.render(messages, add_generation_prompt=True), ""
    prompt = tokenizer.chat.render(messages[:-1], add_generation_prompt=True)
    whole = tokenizer.chat.render(messages)
    if not whole.startswith(prompt):  # a template that rewrites earlier turns: everything is learnt
        return "", whole
    return prompt, whole[len(prompt) :]
