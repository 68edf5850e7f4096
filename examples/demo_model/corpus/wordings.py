"""Wordings of each relation, as questions and as statements.

`{e}` is the entity, `{E}` the same at the start of a sentence, `{p}` and `{P}` its plural. Chats answer with the first
statement.
"""

WORDINGS = {
    "capital": (
        [
            "What is the capital of {e}?",
            "Which city is the capital of {e}?",
            "What's the capital of {e}?",
            "What is the capital city of {e}?",
            "Name the capital of {e}.",
            "Tell me the capital of {e}.",
            "{E} has which capital?",
            "Do you know the capital of {e}?",
            "Which capital does {e} have?",
            "Which city is the seat of government of {e}?",
        ],
        ["The capital of {e} is {answer}.", "{answer} is the capital of {e}.", "{E} has its capital in {answer}."],
    ),
    "language": (
        [
            "What language is spoken in {e}?",
            "Which language do people speak in {e}?",
            "What do people speak in {e}?",
            "What is the main language of {e}?",
            "Name the language of {e}.",
            "Which language would you hear in {e}?",
            "What is spoken in {e}?",
            "What language do they speak in {e}?",
        ],
        ["People in {e} speak {answer}.", "The language of {e} is {answer}.", "In {e} people speak {answer}."],
    ),
    "currency": (
        [
            "What is the currency of {e}?",
            "Which currency is used in {e}?",
            "What money do people use in {e}?",
            "What currency does {e} use?",
            "Name the currency of {e}.",
            "What do people pay with in {e}?",
            "Which money is used in {e}?",
            "What's the currency of {e}?",
        ],
        ["The currency of {e} is the {answer}.", "{E} uses the {answer}.", "In {e} people pay with the {answer}."],
    ),
    "continent": (
        [
            "Which continent is {e} in?",
            "On which continent is {e}?",
            "What continent is {e} on?",
            "Where is {e}?",
            "In which part of the world is {e}?",
            "Which continent does {e} belong to?",
            "Name the continent of {e}.",
            "{E} is on which continent?",
        ],
        ["{E} is in {answer}.", "{E} is a country in {answer}.", "{E} lies in {answer}."],
    ),
    "country_of": (
        [
            "{E} is the capital of which country?",
            "Which country has the capital {e}?",
            "Of which country is {e} the capital?",
            "Which country's capital is {e}?",
            "In which country is {e}?",
            "Which country is {e} in?",
            "What country is {e} the capital of?",
        ],
        ["{e} is in {answer}.", "{e} is the capital of {answer}.", "The city of {e} is in {answer}."],
    ),
    "population": (
        [
            "How many people live in {e}?",
            "What is the population of {e}?",
            "How large is the population of {e}?",
            "About how many people live in {e}?",
            "How big is {e}'s population?",
            "What's the population of {e}?",
        ],
        [
            "About {answer} people live in {e}.",
            "{E} has about {answer} people.",
            "The population of {e} is about {answer}.",
        ],
    ),
    "class": (
        [
            "What kind of animal is {e}?",
            "What type of animal is {e}?",
            "Which class of animals does {e} belong to?",
            "What sort of animal is {e}?",
            "What is {e}?",
            "To which group of animals does {e} belong?",
            "Which group of animals is {e} in?",
        ],
        ["{E} is {answer}.", "{P} belong to the animals called {bare}s.", "Every {n} is {answer}."],
    ),
    "legs": (
        [
            "How many legs does {e} have?",
            "What number of legs does {e} have?",
            "How many legs do {p} have?",
            "How many legs has {e}?",
            "Count the legs of {e}.",
            "On how many legs does {e} walk?",
            "What is the number of legs of {e}?",
        ],
        ["{E} has {answer} legs.", "{P} have {answer} legs.", "The number of legs of {e} is {answer}."],
    ),
    "food": (
        [
            "What does {e} eat?",
            "What do {p} eat?",
            "What is the food of {e}?",
            "What do {p} feed on?",
            "What does {e} like to eat?",
            "What can you feed {e}?",
            "Name the food of {e}.",
        ],
        ["{P} eat {answer}.", "{E} eats {answer}.", "{P} feed on {answer}."],
    ),
    "habitat": (
        [
            "Where does {e} live?",
            "Where do {p} live?",
            "Where can you find {e}?",
            "What is the habitat of {e}?",
            "Where would you look for {e}?",
            "What is the home of {e}?",
            "In what place do {p} live?",
        ],
        ["{P} live in {answer}.", "{E} lives in {answer}.", "You can find {p} in {answer}."],
    ),
    "flies": (
        ["Can {e} fly?", "Can {p} fly?", "Does {e} fly?", "Do {p} fly?", "Is {e} able to fly?", "Are {p} able to fly?"],
        ["{P} {can} fly.", "{E} {can} fly.", "It is {true} that {p} can fly."],
    ),
    "planet_place": (
        [
            "Which number from the sun is {e}?",
            "What number is {e} from the sun?",
            "How many planets from the sun is {e}?",
            "What is the place of {e} counted from the sun?",
            "Counted from the sun, which planet is {e}?",
        ],
        ["{e} is planet number {answer} from the sun.", "Counted from the sun, {e} is number {answer}."],
    ),
    "planet_at": (
        [
            "Which planet is the {e} from the sun?",
            "What is the {e} planet from the sun?",
            "Name the {e} planet from the sun.",
            "Which planet comes {e} from the sun?",
            "What is the {e} planet of the solar system?",
        ],
        ["The {e} planet from the sun is {answer}.", "{answer} is the {e} planet from the sun."],
    ),
    "planet_kind": (
        [
            "What kind of planet is {e}?",
            "What type of planet is {e}?",
            "What sort of planet is {e}?",
            "Is {e} a rocky planet, a gas giant or an ice giant?",
            "Which kind of planet is {e}?",
        ],
        ["{e} is {answer}.", "The planet {e} is {answer}."],
    ),
    "planet_note": (
        [
            "Which planet {e}?",
            "What planet {e}?",
            "Name the planet of which one says {q}.",
            "Of the planets, which one {e}?",
        ],
        ["{answer} is the planet that {e}.", "The planet that {e} is {answer}."],
    ),
    "symbol": (
        [
            "What is the chemical symbol of {e}?",
            "What is the symbol for {e}?",
            "Which symbol does {e} have?",
            "What's the chemical symbol for {e}?",
            "Which chemical symbol stands for {e}?",
            "Give the symbol of {e}.",
        ],
        ["The chemical symbol of {e} is {answer}.", "{E} has the symbol {answer}."],
    ),
    "element_of": (
        [
            "Which element has the symbol {e}?",
            "What element has the chemical symbol {e}?",
            "The symbol {e} stands for which element?",
            "Which element does {e} stand for?",
            "What does the chemical symbol {e} stand for?",
        ],
        ["The symbol {e} stands for {answer}.", "{e} is the chemical symbol of {answer}."],
    ),
    "atomic_number": (
        [
            "What is the atomic number of {e}?",
            "Which atomic number does {e} have?",
            "What's the atomic number of {e}?",
            "Give the atomic number of {e}.",
            "Which number does {e} have in the periodic table?",
        ],
        ["The atomic number of {e} is {answer}.", "{E} has the atomic number {answer}."],
    ),
    "state": (
        [
            "Is {e} a solid, a liquid or a gas?",
            "What state is {e} in at room temperature?",
            "At room temperature, what is {e}?",
            "In which state is {e} at room temperature?",
        ],
        ["At room temperature, {e} is a {answer}.", "{E} is a {answer} at room temperature."],
    ),
    "month_number": (
        [
            "What number is {e} among the months?",
            "Which month number is {e}?",
            "What is the number of the month {e}?",
            "Which number does {e} have among the months?",
        ],
        ["{e} is month number {answer}.", "Among the months, {e} is number {answer}."],
    ),
    "month_at": (
        [
            "Which month is the {e} of the year?",
            "What is the {e} month of the year?",
            "Name the {e} month of the year.",
            "What is the {e} month?",
            "Which is the {e} month?",
        ],
        ["The {e} month of the year is {answer}.", "{answer} is the {e} month of the year."],
    ),
    "month_days": (
        [
            "How many days does {e} have?",
            "How many days are there in {e}?",
            "How long is {e}?",
            "What is the number of days in {e}?",
            "How many days are in the month of {e}?",
        ],
        ["{e} has {answer} days.", "There are {answer} days in {e}."],
    ),
    "month_after": (
        [
            "Which month comes after {e}?",
            "What month comes after {e}?",
            "What is the month after {e}?",
            "Which month follows {e}?",
            "Name the month after {e}.",
        ],
        ["The month after {e} is {answer}.", "After {e} comes {answer}."],
    ),
    "mix": (
        [
            "What colour do you get when you mix {e}?",
            "Which colour do {e} make?",
            "What do you get by mixing {e}?",
            "Mixing {e} gives which colour?",
            "What is the mix of {e}?",
        ],
        ["Mixing {e} gives {answer}.", "{E} make {answer}."],
    ),
    "colour": (
        ["What colour is {e}?", "What is the colour of {e}?", "Which colour has {e}?", "What's the colour of {e}?"],
        ["The colour of {e} is {answer}.", "The usual colour of {e} is {answer}."],
    ),
    "made_of": (
        ["What is {e} made of?", "What is {e} made from?", "From what is {e} made?", "What do you need to make {e}?"],
        ["{E} is made from {answer}.", "People make {e} from {answer}."],
    ),
}
