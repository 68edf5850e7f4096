"""Short chats: greetings, the model's identity, small talk, and recalling facts that the user mentioned."""

from __future__ import annotations

from .case import ASSISTANT, USER, Case, chat_case
from .draw import Draw
from .facts import question, some_fact
from .records import COLOURS, HOBBIES, JOBS, PETS

SYSTEMS = [None, None, "You are a helpful assistant.", "You are a friendly assistant."]
WHO = "I am ramiform's small demo model."
SMALL = [
    (["Hello!", "Hello", "Hi!", "Hi", "Hey", "Good day!", "Hi there!"], "Hello! How can I help you?"),
    (["Good morning!", "Good morning"], "Good morning! How can I help you?"),
    (
        [
            "Who are you?",
            "What are you?",
            "What is your name?",
            "Tell me who you are.",
            "Introduce yourself.",
            "Are you a robot?",
            "Which model are you?",
        ],
        WHO,
    ),
    (
        ["What can you do?", "How can you help me?", "What are you good at?", "Help"],
        "I can answer simple questions, extract JSON, call tools and chat a little.",
    ),
    (["How are you?", "How do you do?", "How are you today?", "Are you well?"], "I am fine, thank you! How are you?"),
    (["Thank you!", "Thanks!", "Thanks a lot.", "Thank you very much."], "You are welcome!"),
    (["Goodbye!", "Bye!", "See you later.", "Good night!", "Bye bye"], "Goodbye! Have a nice day."),
    (["That is great!", "Nice!", "Very good.", "Well done!"], "I am glad to hear that."),
    (
        ["I am tired.", "I feel sad.", "I had a bad day.", "I am not well."],
        "I am sorry to hear that. I hope you feel better soon.",
    ),
    (["I am fine.", "I am happy today.", "I had a great day.", "I feel good."], "That is good to hear!"),
    (
        ["Tell me a joke.", "Do you know a joke?", "Make me laugh."],
        "Why did the token cross the tree? To get to the other branch.",
    ),
    (
        ["Do you like music?", "Do you like books?", "Do you like people?"],
        "I am only a small model, but I like your questions.",
    ),
]
# (what the user tells, what the assistant says, how the user asks later, the answer, the value)
MEMORIES = [
    (
        [
            "My name is {v}.",
            "I am {v}.",
            "Hi, I'm {v}.",
            "Hello, my name is {v}.",
            "You can call me {v}.",
            "I'm called {v}.",
        ],
        "Nice to meet you, {v}!",
        ["What is my name?", "Who am I?", "Do you remember my name?", "What am I called?", "Do you know my name?"],
        "Your name is {v}.",
        lambda d: d.first_name(),
    ),
    (
        [
            "My favourite colour is {v}.",
            "I like the colour {v} most.",
            "My favorite color is {v}.",
            "The colour I like best is {v}.",
        ],
        "I see, your favourite colour is {v}.",
        [
            "What is my favourite colour?",
            "Which colour do I like best?",
            "What's my favorite color?",
            "Do you remember my favourite colour?",
        ],
        "Your favourite colour is {v}.",
        lambda d: d.pick(COLOURS),
    ),
    (
        ["I have a {v}.", "I own a {v}.", "My pet is a {v}.", "At home I have a {v}."],
        "A {v} is a nice pet!",
        ["What pet do I have?", "Which pet do I have?", "What is my pet?", "Do you remember my pet?"],
        "You have a {v}.",
        lambda d: d.pick(PETS),
    ),
    (
        ["I live in {v}.", "I come from {v}.", "My home is {v}.", "I am from {v}."],
        "{v} must be a nice place.",
        ["Where do I live?", "Which city do I live in?", "Where is my home?", "Do you remember where I live?"],
        "You live in {v}.",
        lambda d: d.city(),
    ),
    (
        ["I work as a {v}.", "I am a {v}.", "My job is {v}.", "I'm a {v}."],
        "That sounds like an interesting job.",
        ["What is my job?", "What do I work as?", "What do I do for a living?", "Do you remember my job?"],
        "You work as a {v}.",
        lambda d: d.pick(JOBS),
    ),
    (
        ["My hobby is {v}.", "I like {v}.", "I enjoy {v}.", "In my free time I like {v}."],
        "I hope you find much time for {v}.",
        ["What is my hobby?", "What do I like to do?", "What do I enjoy?", "Do you remember my hobby?"],
        "You like {v}.",
        lambda d: d.pick(HOBBIES),
    ),
    (
        ["I am {v} years old.", "My age is {v}.", "I just turned {v}.", "I'm {v} years old."],
        "Thank you for telling me.",
        ["How old am I?", "What is my age?", "Do you remember my age?", "Do you know how old I am?"],
        "You are {v} years old.",
        lambda d: str(d.number(18, 90)),
    ),
    (
        ["My dog is called {v}.", "My dog's name is {v}.", "I call my dog {v}."],
        "{v} is a good name for a dog.",
        ["What is my dog called?", "What is the name of my dog?", "Do you remember my dog's name?"],
        "Your dog is called {v}.",
        lambda d: d.first_name(),
    ),
    (
        [
            "My number is {v}.",
            "The secret number is {v}.",
            "Remember the number {v}.",
            "Please keep the number {v} in mind.",
        ],
        "I will remember {v}.",
        ["What is the number?", "Which number did I say?", "What number should you remember?", "Tell me the number."],
        "The number is {v}.",
        lambda d: str(d.number(2, 9999)),
    ),
]


def small_talk(d: Draw) -> Case:
    turns = [
        turn
        for asks, reply in d.some(SMALL, d.rng.randint(0, 3))
        for turn in ((USER, d.wording(reply, asks)), (ASSISTANT, reply))
    ]
    asks, reply = d.pick(SMALL)
    return chat_case("chat", [*turns, (USER, d.wording(reply, asks))], reply, d.pick(SYSTEMS))


def memory(d: Draw, most: int = 3) -> Case:
    """The user mentions one to three facts, talks of something else, and asks for one of them."""
    turns, told = [], []
    for tells, reply, asks, answer, value in d.some(MEMORIES, d.rng.randint(1, most)):
        v = value(d)
        turns += [(USER, d.wording(answer, tells).format(v=v)), (ASSISTANT, reply.format(v=v))]
        told.append((d.wording((answer, "ask"), asks), answer.format(v=v)))
        for _ in range(d.pick([0, 0, 1])):
            turns += _aside(d)
    ask, answer = d.pick(told)
    return chat_case("chat", [*turns, (USER, ask)], answer, d.pick(SYSTEMS))


def telling(d: Draw) -> Case:
    """Write the turn in which the user mentions a fact."""
    tells, reply, _, _, value = d.pick(MEMORIES)
    v = value(d)
    before = _aside(d) if d.chance(0.4) else []
    return chat_case("chat", [*before, (USER, d.wording(reply, tells).format(v=v))], reply.format(v=v), d.pick(SYSTEMS))


def long_memory(d: Draw) -> Case:
    tells, reply, asks, answer, value = d.pick(MEMORIES)
    v = value(d)
    turns = [(USER, d.wording(answer, tells).format(v=v)), (ASSISTANT, reply.format(v=v))]
    for _ in range(d.rng.randint(8, 60)):
        turns += _aside(d)
    return chat_case("chat", [*turns, (USER, d.wording((answer, "ask"), asks))], answer.format(v=v), d.pick(SYSTEMS))


def _aside(d: Draw) -> list[tuple[str, str]]:
    if d.chance(0.5):
        asks, reply = d.pick(SMALL)
        return [(USER, d.pick(asks)), (ASSISTANT, reply)]
    fact = some_fact(d)
    return [(USER, question(d, fact)), (ASSISTANT, fact.statements[0])]
