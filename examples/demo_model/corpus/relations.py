"""Questions about the synthetic world: every (entity, relation) with its wordings, short answer and sentence.

`all_facts` is a fixed list. Alternatives are the wrong answers that a multiple choice may offer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from .wordings import WORDINGS
from .world import (
    ANIMALS,
    COLOURS,
    COUNTRIES,
    ELEMENTS,
    MADE_OF,
    MIXED_COLOURS,
    MONTHS,
    ORDINALS,
    PLANETS,
    article,
    sentence,
    the,
)


@dataclass(frozen=True)
class Fact:
    relation: str
    entity: str
    questions: tuple[str, ...]
    answer: str
    statements: tuple[str, ...]  # the first is the canonical one: chats answer with it
    pattern: str  # the canonical statement with {answer} open

    def claim(self, answer: str) -> str:
        return self.pattern.format(answer=answer)


def _fact(relation: str, entity: str, answer: str, **more: str) -> Fact:
    questions, statements = WORDINGS[relation]
    words = {"e": entity, "E": sentence(entity), **more}
    open_words = {**words, "answer": "{answer}"}
    pattern = statements[0].format(**open_words) if relation != "flies" else ""
    return Fact(
        relation,
        entity,
        tuple(q.format(**words) for q in questions),
        answer,
        tuple(s.format(**words, answer=answer) for s in statements),
        pattern,
    )


@cache
def all_facts() -> list[Fact]:
    facts = []
    for c in COUNTRIES:
        e = the(c.name)
        facts += [
            _fact("capital", e, c.capital),
            _fact("language", e, c.language),
            _fact("currency", e, c.currency),
            _fact("continent", e, c.continent),
            _fact("country_of", c.capital, e),
            _fact("population", e, f"{c.population} million"),
        ]
    for a in ANIMALS:
        e, words = article(a.name), {"p": a.plural, "P": sentence(a.plural), "n": a.name}
        facts += [
            _fact("class", e, article(a.kind), bare=a.kind, **words),
            _fact("legs", e, str(a.legs), **words),
            _fact("food", e, a.food, **words),
            _fact("habitat", e, a.habitat, **words),
            _fact(
                "flies",
                e,
                "yes" if a.flies else "no",
                can="can" if a.flies else "cannot",
                true="true" if a.flies else "not true",
                **words,
            ),
        ]
    for p in PLANETS:
        note = p.note.removeprefix("it ")
        facts += [
            _fact("planet_place", p.name, str(p.place)),
            _fact("planet_at", ORDINALS[p.place], p.name),
            _fact("planet_kind", p.name, article(p.kind)),
            _fact("planet_note", note, p.name, q=p.note),
        ]
    for x in ELEMENTS:
        facts += [
            _fact("symbol", x.name, x.symbol),
            _fact("element_of", x.symbol, x.name),
            _fact("atomic_number", x.name, str(x.number)),
            _fact("state", x.name, x.state),
        ]
    for m in MONTHS:
        facts += [
            _fact("month_number", m.name, str(m.number)),
            _fact("month_at", ORDINALS[m.number], m.name),
            _fact("month_days", m.name, str(m.days)),
            _fact("month_after", m.name, MONTHS[m.number % 12].name),
        ]
    facts += [_fact("mix", f"{a} and {b}", c) for (a, b), c in MIXED_COLOURS.items()]
    facts += [_fact("colour", thing, colour) for thing, colour in COLOURS.items()]
    facts += [_fact("made_of", thing, made) for thing, made in MADE_OF.items()]
    return facts


@cache
def answers_of(relation: str) -> list[str]:
    return sorted({fact.answer for fact in all_facts() if fact.relation == relation})
