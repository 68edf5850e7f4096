"""Classification: sentiment, topic and urgency of short texts, with shots or as a chat."""

from __future__ import annotations

from collections.abc import Callable

from .case import USER, Case, chat_case
from .draw import Draw
from .records import ITEMS
from .shots import with_shots

GOOD = (
    "great|wonderful|excellent|lovely|perfect|fantastic|very good|beautiful|amazing|superb|delightful|brilliant".split(
        "|"
    )
)
BAD = "terrible|awful|bad|horrible|boring|broken|very poor|ugly|disappointing|dreadful|useless|miserable".split("|")
SUBJECTS = "movie book food service hotel room staff music concert coffee game trip show restaurant teacher app".split()
LIKE = [
    "I love it",
    "I would buy it again",
    "I am happy with it",
    "We had a great time",
    "I recommend it to everyone",
    "It made my day",
    "I smiled all day",
]
HATE = [
    "I hate it",
    "I want my money back",
    "I am not happy with it",
    "We left early",
    "I warn everyone",
    "It ruined my day",
    "It broke after a day",
]
URGENT = [
    "The server is down and nobody can work.",
    "There is water all over the floor!",
    "Please call back at once, the {i} is on fire.",
    "We need the {i} within the hour.",
    "{n} is hurt and needs a doctor now.",
    "The payment fails for all customers right now.",
    "Help, the door is locked and {n} is inside!",
    "The deadline is in ten minutes and the {i} is missing.",
    "I smell gas in the {i} room!",
]
CALM = [
    "Could you send me the {i} some time next week?",
    "{n} likes the new {i}.",
    "No hurry, but the {i} could be cleaned.",
    "Thank you for the {i}.",
    "We might meet {n} next month.",
    "Here are the photos of the {i}.",
    "When you have time, look at the {i}.",
    "Just a short note: the {i} has arrived.",
    "{n} says hello.",
]
TOPICS = {
    "sports": [
        "{n} scored two goals in the final.",
        "The team of {n} won the match.",
        "{n} ran the race in ten minutes.",
        "The tennis player {n} lost the game.",
        "The coach praised {n} after the match.",
    ],
    "weather": [
        "It rained all day in {p}.",
        "Snow is expected in {p} tomorrow.",
        "The storm reached {p} at night.",
        "It is sunny and warm in {p}.",
        "Fog covers {p} this morning.",
    ],
    "food": [
        "{n} baked a cake with apples.",
        "The soup in {p} tastes of garlic.",
        "{n} cooks rice with vegetables.",
        "The restaurant in {p} serves fresh bread.",
        "{n} ate three pancakes.",
    ],
    "technology": [
        "The new phone has a better camera.",
        "{n} wrote a program for robots.",
        "The computer of {n} got an update.",
        "A company in {p} builds faster chips.",
        "The software of {n} has a bug.",
    ],
    "travel": [
        "{n} took the train to {p}.",
        "The flight to {p} takes two hours.",
        "{n} booked a hotel in {p}.",
        "Tourists visit the old town of {p}.",
        "{n} packed a suitcase for {p}.",
    ],
    "music": [
        "{n} plays the piano in {p}.",
        "The band of {n} sang a new song.",
        "{n} gave a concert in {p}.",
        "The choir practised a melody.",
        "{n} bought a guitar.",
    ],
    "money": [
        "The bank in {p} raised its rates.",
        "{n} sold all shares.",
        "The price of gold rose.",
        "{n} pays high taxes in {p}.",
        "The company of {n} made a profit.",
    ],
}


def review(d: Draw, good: bool) -> str:
    subject, word, other = d.pick(SUBJECTS), d.pick(GOOD if good else BAD), d.pick(GOOD if good else BAD)
    tail = d.pick(LIKE if good else HATE)
    return d.wording(
        "review",
        [
            f"The {subject} was {word}. {tail}.",
            f"What a {word} {subject}!",
            f"The {subject} in {d.city()} is {word} and the {d.pick(SUBJECTS)} is {other}.",
            f"{tail}. The {subject} was {word}.",
            f"{d.first_name()} found the {subject} {word}.",
            f"I think this {subject} is {word}.",
            f"A {word} {subject}. {tail}.",
            f"This {subject} is {word}, and I find it {other}.",
            f"{tail}!",
        ],
    )


def _labelled(
    d: Draw, text_of, labels: dict[str, object], asks: list[str], word: str, chats: list[str], key: str
) -> Case:
    """Write a text and its label, with examples or as a chat."""

    def one() -> tuple[str, str]:
        label = d.pick(list(labels))
        return text_of(labels[label]), label

    options = ", ".join(labels)
    if d.chance(0.55):
        way = d.wording((key, "raw"), asks)
        head = d.pick(
            [
                "",
                "",
                f"Choose one of: {options}.\n",
                f"Labels: {options}\n",
                f"Classify the text as {' or '.join(labels)}.\n",
            ]
        )
        return with_shots(d, lambda: (lambda t, v: (way.format(t=t, w=word), v))(*one()), head)
    text, label = one()
    return chat_case(
        "judging",
        [(USER, d.wording((key, "chat"), chats).format(t=text, o=options))],
        label,
        d.pick([None, None, f"Answer with one of: {options}."]),
    )


def sentiment(d: Draw) -> Case:
    return _labelled(
        d,
        lambda good: review(d, good),
        {"positive": True, "negative": False},
        ["Review: {t}\nSentiment:", "Text: {t}\nSentiment:", "Review: {t}\nLabel:", "Message: {t}\nFeeling:"],
        "Sentiment",
        [
            "Is this review positive or negative? {t}",
            "Classify the sentiment as positive or negative.\n{t}",
            "{t}\nPositive or negative?",
            "What is the sentiment of this text? {t}",
        ],
        "sentiment",
    )


def topic(d: Draw) -> Case:
    names = dict.fromkeys(d.some(list(TOPICS), d.rng.randint(3, len(TOPICS))))
    labels = {name: name for name in names}
    return _labelled(
        d,
        lambda name: d.pick(TOPICS[name]).format(n=d.first_name(), p=d.city()),
        labels,
        ["Text: {t}\nTopic:", "Sentence: {t}\nTopic:", "Text: {t}\nCategory:", "News: {t}\nTopic:"],
        "Topic",
        [
            "What is the topic of this text: {o}?\n{t}",
            "Classify the text as one of {o}.\n{t}",
            "{t}\nWhich topic is it? Choose from {o}.",
            "Topics: {o}\nText: {t}\nWhich topic fits?",
        ],
        "topic",
    )


def _urgent_or_not(d: Draw, text_of: Callable[[object], str], urgent: object, calm: object) -> Case:
    return _labelled(
        d,
        text_of,
        {"urgent": urgent, "not urgent": calm},
        ["Message: {t}\nUrgency:", "Email: {t}\nLabel:", "Message: {t}\nPriority:", "Ticket: {t}\nUrgency:"],
        "Urgency",
        [
            "Is this message urgent or not urgent? {t}",
            "Classify as urgent or not urgent.\n{t}",
            "{t}\nUrgent or not urgent?",
        ],
        "urgency",
    )


def urgency(d: Draw) -> Case:
    def message(texts: list[str]) -> str:
        return d.wording(("urgency", len(texts)), texts).format(n=d.first_name(), i=d.pick(ITEMS))

    return _urgent_or_not(d, message, URGENT, CALM)


REQUESTS = [
    "call {n}",
    "send the {i}",
    "check the {i}",
    "answer {n}",
    "look at the {i}",
    "repair the {i}",
    "bring the {i}",
]
NOW = ["right now", "at once", "immediately", "within ten minutes", "before it is too late", "this minute"]
LATER = [
    "some time next week",
    "when you have time",
    "next month",
    "whenever you like",
    "some day",
    "when it suits you",
]
TROUBLE = ["It is an emergency!", "{n} is in danger.", "Nobody can work.", "The {i} is burning!", "Everything is down."]
EASE = ["There is no hurry.", "It can wait.", "{n} sends greetings.", "All is well here.", "It is not important."]


def priority(d: Draw) -> Case:
    """Classify urgency from its signs, in new combinations."""

    def message(signs: tuple[list[str], list[str]]) -> str:
        when, why = signs
        ask, moment, reason = d.pick(REQUESTS), d.pick(when), d.pick(why)
        shapes = [
            f"Please {ask} {moment}.",
            f"{moment.capitalize()}, please {ask}.",
            f"{reason} Please {ask} {moment}.",
            f"Could you {ask} {moment}? {reason}",
            reason,
            f"You should {ask} {moment}.",
            f"{reason} You should {ask}.",
        ]
        return d.wording("priority", shapes).format(n=d.first_name(), i=d.pick(ITEMS))

    return _urgent_or_not(d, message, (NOW, TROUBLE), (LATER, EASE))
