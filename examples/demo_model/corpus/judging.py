"""Verdicts: true or false, multiple choice, and ratings of answers."""

from __future__ import annotations

from .case import USER, Case, chat_case
from .draw import Draw
from .facts import question
from .reading import person_lines
from .relations import Fact, all_facts, answers_of
from .shots import with_shots

CLAIM_RAW = [
    "Statement: {s}\nTrue:",
    "Claim: {s}\nIs it true?",
    "Statement: {s}\nIs this correct? Answer:",
    "Statement: {s}\nCorrect (yes or no):",
]


def true_or_not(d: Draw, fact: Fact, truth: bool) -> str:
    if truth:
        return d.fact_wording(("claim", fact.relation, fact.entity), [fact.claim(fact.answer), *fact.statements[:2]])
    return fact.claim(wrong(d, fact))


def wrong(d: Draw, fact: Fact) -> str:
    return d.pick([a for a in answers_of(fact.relation) if a != fact.answer])


def judged(d: Draw) -> Fact:
    while (fact := d.pick(all_facts())).relation in ("flies", "population", "made_of", "food"):
        pass
    return fact


def yes_no(d: Draw) -> Case:
    """Ask about a claim."""

    def one() -> tuple[str, str]:
        truth = d.chance(0.5)
        return true_or_not(d, judged(d), truth), "yes" if truth else "no"

    if d.chance(0.5):
        way = d.wording("yes no raw", CLAIM_RAW)
        return with_shots(d, lambda: (lambda s, v: (way.format(s=s), v))(*one()))
    said, verdict = one()
    way = d.wording(
        "yes no chat",
        [
            "Is this true? {s}",
            "True or not: {s} Answer yes or no.",
            "{s} Is that correct?",
            "Answer yes or no. {s}",
            "Is the following statement correct?\n{s}",
        ],
    )
    return chat_case(
        "judging", [(USER, way.format(s=said))], verdict, d.pick([None, "Answer yes or no.", "You are a judge."])
    )


def passage_yes_no(d: Draw) -> Case:
    """Ask about a claim on a person in a passage."""
    lines, facts = person_lines(d)
    claim, other = d.pick(facts)
    truth = d.chance(0.5)
    said = claim if truth else other
    way = d.wording(
        "passage yes no",
        [
            "Passage: {t}\nStatement: {s}\nSupported:",
            "Text: {t}\nIs it right that the text says: {s}\nAnswer:",
            "Passage: {t}\nClaim: {s}\nTrue:",
        ],
    )
    if d.chance(0.4):
        return chat_case(
            "judging", [(USER, f"{lines}\nIs this right? {said} Answer yes or no.")], "yes" if truth else "no"
        )
    return Case("judging", way.format(t=lines, s=said), " yes" if truth else " no")


def choice(d: Draw) -> Case:
    """List options; the answer is a letter, or the option's text."""
    by_letter = d.chance(0.5)

    def one() -> tuple[str, str]:
        fact = judged(d)
        others = [a for a in answers_of(fact.relation) if a != fact.answer]
        options = d.shuffled([fact.answer, *d.some(others, min(len(others), d.rng.randint(1, 3)))])
        if by_letter:
            lines = "\n".join(f"{letter}) {option}" for letter, option in zip("ABCD", options, strict=False))
            return f"Question: {question(d, fact)}\n{lines}\nAnswer:", "ABCD"[options.index(fact.answer)]
        comma = "; " if any("," in option for option in options) else ", "
        return f"Question: {question(d, fact)}\nOptions: {comma.join(options)}\nAnswer:", fact.answer

    if d.chance(0.6):
        return with_shots(d, one)
    text, answer = one()
    text = text.removeprefix("Question: ").removesuffix("\nAnswer:")
    return chat_case(
        "judging", [(USER, text)], answer, d.pick([None, "Answer with one of the options.", "Choose the right option."])
    )


def rating(d: Draw) -> Case:
    """Rate an answer: 5 for the reference's content, 3 for half of it, 1 for other content."""

    def one() -> tuple[str, str]:
        first, second = judged(d), judged(d)
        score = d.pick(["5", "3", "1"])
        if d.chance(0.5):
            reference = f"{first.claim(first.answer)} {second.claim(second.answer)}"
            answer = {
                "5": reference,
                "3": d.pick(
                    [
                        first.claim(first.answer),
                        second.claim(second.answer),
                        f"{first.claim(first.answer)} {second.claim(wrong(d, second))}",
                    ]
                ),
                "1": d.pick(
                    [first.claim(wrong(d, first)), f"{first.claim(wrong(d, first))} {second.claim(wrong(d, second))}"]
                ),
            }[score]
        else:
            score = d.pick(["5", "1"])
            reference, answer = (
                first.claim(first.answer),
                first.claim(first.answer if score == "5" else wrong(d, first)),
            )
            if d.chance(0.5):
                reference, answer = first.answer, answer
        return f"Reference: {reference}\nAnswer: {answer}\nRating:", score

    head = d.pick(["", "Rate the answer from 1 (wrong) to 5 (right).\n", "Give a rating from 1 to 5.\n"])
    if d.chance(0.6):
        return with_shots(d, one, head)
    text, score = one()
    return chat_case(
        "judging", [(USER, (head or "Rate the answer from 1 to 5.\n") + text.removesuffix("\nRating:"))], score
    )


def many_claims(d: Draw) -> Case:
    """Write many claims in a row, often the same one with another answer, so that only the fact decides."""
    way = d.wording("yes no raw", CLAIM_RAW)
    lines, facts = [], [judged(d) for _ in range(d.pick([2, 3, 4]))]
    for _ in range(d.rng.randint(5, 10)):
        fact, truth = d.pick(facts), d.chance(0.5)
        lines.append((way.format(s=true_or_not(d, fact, truth)), "yes" if truth else "no"))
    *shots, (text, verdict) = lines
    return Case("judging", "".join(f"{shot} {v}\n" for shot, v in shots) + text, f" {verdict}")
