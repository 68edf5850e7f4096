"""Tool calls in chats: the tool, its arguments, and a sentence from the result. Tools have several names."""

from __future__ import annotations

import json

from .case import ASSISTANT, TOOL, USER, Case, chat_case, tool_call
from .draw import Draw
from .facts import question, some_fact
from .toolbox import SKILLS, SLOTS, Skill

SYSTEMS = [
    None,
    None,
    None,
    "You are a helpful assistant.",
    "You are a helpful assistant. Call a tool when it helps.",
    "Use the tools.",
]
GREETINGS = [
    ("Hello!", "Hello! How can I help you?"),
    ("Hi", "Hello! How can I help you?"),
    ("Thank you!", "You are welcome!"),
    ("Good morning!", "Good morning! How can I help you?"),
    ("Thanks a lot.", "You are welcome!"),
]
POLITE = ["{ask}", "{ask}", "{ask}", "Please help me. {ask}", "Hi! {ask}", "Hello. {ask}", "{ask} Thank you."]


def tool_of(d: Draw, skill: Skill, name: str) -> dict:
    return {
        "name": name,
        "description": skill.description,
        "parameters": {
            "type": "object",
            "properties": {slot: {"type": SLOTS[slot][0]} for slot in skill.slots},
            "required": list(skill.slots),
        },
    }


def ask(d: Draw, skill: Skill) -> tuple[str, dict]:
    arguments = {slot: SLOTS[slot][1](d) for slot in skill.slots}
    words = {slot: str(value) for slot, value in arguments.items()}
    return d.pick(POLITE).format(ask=d.wording(skill.description, skill.asks).format(**words)), arguments


def chat(d: Draw) -> Case:
    """Offer one to four tools; the user wants one of them, perhaps after having used another."""
    skills = d.some(SKILLS, d.rng.randint(1, 4))
    names = {skill: d.pick(skill.names) for skill in skills}
    tools = [tool_of(d, skill, names[skill]) for skill in skills]
    system, turns = d.pick(SYSTEMS), []
    for _ in range(d.pick([0, 0, 0, 1])):
        turns += _used(d, d.pick(skills), names)
    if d.chance(0.12):
        return _without(d, turns, system, tools)
    skill = d.pick(skills)
    if d.chance(0.3):
        used = _used(d, skill, names)
        return chat_case("tools", turns + used[:-1], used[-1][1], system, tools)
    said, arguments = ask(d, skill)
    return chat_case("tools", [*turns, (USER, said)], tool_call(names[skill], arguments), system, tools)


def _used(d: Draw, skill: Skill, names: dict) -> list[tuple[str, str]]:
    said, arguments = ask(d, skill)
    result = skill.result(d, arguments)
    reply = skill.reply.format(**{**arguments, **result})
    return [
        (USER, said),
        (ASSISTANT, tool_call(names[skill], arguments)),
        (TOOL, json.dumps(result)),
        (ASSISTANT, reply),
    ]


def _without(d: Draw, turns: list, system: str | None, tools: list[dict]) -> Case:
    said, reply = d.pick(GREETINGS)
    if d.chance(0.4):
        fact = some_fact(d)
        while fact.relation in ("capital", "population"):
            fact = some_fact(d)
        said, reply = question(d, fact), fact.statements[0]
    return chat_case("tools", [*turns, (USER, said)], reply, system, tools)
