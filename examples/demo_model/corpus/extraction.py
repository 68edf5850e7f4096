"""Extraction: a text and the JSON record of the requested fields, in that order; or one field alone, or a form."""

from __future__ import annotations

import json

from .case import USER, Case, chat_case
from .draw import Draw
from .prose import told
from .records import listed, record

ASK_CHAT = [
    "Extract {keys} from the text as JSON.\n{text}",
    "Extract the following fields as JSON: {keys}.\nText: {text}",
    "{text}\nGive {keys} as JSON.",
    "Turn this into JSON with the keys {keys}: {text}",
    "Text: {text}\nReturn a JSON object with {keys}.",
    "Extract {keys} as JSON.\n\n{text}",
    "Read the text and fill in {keys}.\n{text}\nAnswer in JSON.",
    "Write a JSON record with the keys {keys} for: {text}",
]
ASK_RAW = [
    "Text: {text}\nJSON with {keys}:",
    "Extract {keys} as JSON.\nText: {text}\nJSON:",
    "Extract the {kind} as JSON with the keys {keys}.\nText: {text}\nJSON:",
    "Text: {text}\nKeys: {keys}\nJSON:",
    "Input: {text}\nFields: {keys}\nOutput:",
    "{text}\nAs JSON ({keys}):",
]
SYSTEMS = [None, None, "You extract JSON from text.", "You are a helpful assistant.", "Answer in JSON only."]


def _nest(d: Draw, kind: str, fields: dict) -> tuple[dict, str]:
    """Return (record, keys) with the fields under their kind: {"person": {...}}, or flat."""
    keys = list(fields)
    if d.chance(0.12):
        return {kind: fields}, f"{kind} (with {listed(keys)})"
    return fields, listed(keys) if d.chance(0.7) else ", ".join(keys)


def raw(d: Draw) -> Case:
    way = d.wording("extraction raw", ASK_RAW)
    shots = ""
    for _ in range(d.pick([0, 0, 0, 1, 2])):
        kind, text, fields = record(d)
        fields, keys = _nest(d, kind, fields)
        shots += f"{way.format(text=text, keys=keys, kind=kind)} {json.dumps(fields)}\n\n"
    kind, text, fields = record(d)
    fields, keys = _nest(d, kind, fields)
    return Case("extraction", shots + way.format(text=text, keys=keys, kind=kind), f" {json.dumps(fields)}")


def chat(d: Draw) -> Case:
    kind, text, fields = record(d)
    fields, keys = _nest(d, kind, fields)
    ask = d.wording("extraction chat", ASK_CHAT, beside=next(iter(fields))).format(text=text, keys=keys)
    return chat_case("extraction", [(USER, ask)], json.dumps(fields), d.pick(SYSTEMS))


def single(d: Draw) -> Case:
    """Ask for one field, as plain text."""
    _, text, fields = record(d)
    key, value = d.pick(list(fields.items()))
    answer = json.dumps(value) if not isinstance(value, str) else value
    if d.chance(0.5):
        way = d.wording("single raw", ["Text: {text}\n{key}:", "Text: {text}\nField: {key}\nValue:", "{text}\n{key}:"])
        return Case("extraction", way.format(text=text, key=key), f" {answer}")
    way = d.wording(
        "single chat",
        [
            "What is the {key} in this text? {text}",
            "Extract only the {key}.\n{text}",
            "{text}\nGive me the {key}, nothing else.",
            "Text: {text}\nExtract the {key}.",
        ],
    )
    return chat_case("extraction", [(USER, way.format(text=text, key=key))], answer, d.pick(SYSTEMS))


def dialogue(d: Draw) -> Case:
    """Ask field by field, as a program fills a form: each value on its own line."""
    _, text, fields = record(d)
    lines = [f"{key}: {value if isinstance(value, str) else json.dumps(value)}" for key, value in fields.items()]
    return Case("extraction", f"Text: {text}\nRecord:\n", "\n".join(lines))


def prose(d: Draw) -> Case:
    """Ask as `raw` and `chat` do, over natural sentences; all fields or some, in any order."""
    text, fields = told(d)
    asked = d.some(list(fields), d.rng.randint(max(1, len(fields) - 2), len(fields)))
    fields = {key: fields[key] for key in (asked if d.chance(0.4) else fields) if key in asked}
    keys = listed(list(fields)) if d.chance(0.7) else ", ".join(fields)
    if d.chance(0.5):
        ask = d.wording("extraction chat", ASK_CHAT, beside=next(iter(fields))).format(text=text, keys=keys)
        return chat_case("extraction", [(USER, ask)], json.dumps(fields), d.pick(SYSTEMS))
    way = d.wording("extraction raw", ASK_RAW)
    return Case("extraction", way.format(text=text, keys=keys, kind="record"), f" {json.dumps(fields)}")
