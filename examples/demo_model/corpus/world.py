"""The synthetic world of the corpus: tables of true facts."""

from __future__ import annotations

from typing import NamedTuple


class Country(NamedTuple):
    name: str
    capital: str
    language: str
    currency: str
    continent: str
    population: int  # millions, rounded


class Animal(NamedTuple):
    name: str
    plural: str
    kind: str
    legs: int
    food: str
    habitat: str
    flies: bool


class Planet(NamedTuple):
    name: str
    place: int  # counted from the sun
    kind: str
    note: str


class Element(NamedTuple):
    name: str
    symbol: str
    number: int
    state: str  # at room temperature


class Month(NamedTuple):
    name: str
    number: int
    days: int


def _rows(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")] for line in table.strip().splitlines()]


COUNTRIES = [
    Country(*row[:5], int(row[5]))
    for row in _rows("""
France|Paris|French|euro|Europe|68
Germany|Berlin|German|euro|Europe|84
Italy|Rome|Italian|euro|Europe|59
Spain|Madrid|Spanish|euro|Europe|48
Portugal|Lisbon|Portuguese|euro|Europe|10
Netherlands|Amsterdam|Dutch|euro|Europe|18
Belgium|Brussels|Dutch, French and German|euro|Europe|12
Austria|Vienna|German|euro|Europe|9
Switzerland|Bern|German, French, Italian and Romansh|Swiss franc|Europe|9
Ireland|Dublin|English and Irish|euro|Europe|5
United Kingdom|London|English|pound sterling|Europe|68
Norway|Oslo|Norwegian|Norwegian krone|Europe|6
Sweden|Stockholm|Swedish|Swedish krona|Europe|11
Denmark|Copenhagen|Danish|Danish krone|Europe|6
Finland|Helsinki|Finnish and Swedish|euro|Europe|6
Poland|Warsaw|Polish|zloty|Europe|38
Czechia|Prague|Czech|Czech koruna|Europe|11
Slovakia|Bratislava|Slovak|euro|Europe|5
Hungary|Budapest|Hungarian|forint|Europe|10
Romania|Bucharest|Romanian|Romanian leu|Europe|19
Greece|Athens|Greek|euro|Europe|10
Croatia|Zagreb|Croatian|euro|Europe|4
Serbia|Belgrade|Serbian|Serbian dinar|Europe|7
Ukraine|Kyiv|Ukrainian|hryvnia|Europe|38
Turkey|Ankara|Turkish|Turkish lira|Asia|85
Egypt|Cairo|Arabic|Egyptian pound|Africa|113
Morocco|Rabat|Arabic and Berber|Moroccan dirham|Africa|38
Tunisia|Tunis|Arabic|Tunisian dinar|Africa|12
Kenya|Nairobi|Swahili and English|Kenyan shilling|Africa|55
Ethiopia|Addis Ababa|Amharic|birr|Africa|127
Ghana|Accra|English|cedi|Africa|34
Nigeria|Abuja|English|naira|Africa|224
Senegal|Dakar|French|West African CFA franc|Africa|18
Uganda|Kampala|English and Swahili|Ugandan shilling|Africa|48
Tanzania|Dodoma|Swahili and English|Tanzanian shilling|Africa|67
Zambia|Lusaka|English|kwacha|Africa|20
Namibia|Windhoek|English|Namibian dollar|Africa|3
Japan|Tokyo|Japanese|yen|Asia|124
China|Beijing|Chinese|yuan|Asia|1410
India|New Delhi|Hindi and English|Indian rupee|Asia|1430
South Korea|Seoul|Korean|won|Asia|52
Thailand|Bangkok|Thai|baht|Asia|72
Vietnam|Hanoi|Vietnamese|dong|Asia|99
Indonesia|Jakarta|Indonesian|rupiah|Asia|280
Philippines|Manila|Filipino and English|Philippine peso|Asia|115
Malaysia|Kuala Lumpur|Malay|ringgit|Asia|34
Mongolia|Ulaanbaatar|Mongolian|tugrik|Asia|3
Nepal|Kathmandu|Nepali|Nepalese rupee|Asia|30
Pakistan|Islamabad|Urdu and English|Pakistani rupee|Asia|240
Bangladesh|Dhaka|Bengali|taka|Asia|172
Iran|Tehran|Persian|rial|Asia|89
Iraq|Baghdad|Arabic and Kurdish|Iraqi dinar|Asia|45
Jordan|Amman|Arabic|Jordanian dinar|Asia|11
Canada|Ottawa|English and French|Canadian dollar|North America|40
United States|Washington|English|US dollar|North America|335
Mexico|Mexico City|Spanish|Mexican peso|North America|129
Cuba|Havana|Spanish|Cuban peso|North America|11
Brazil|Brasilia|Portuguese|real|South America|212
Argentina|Buenos Aires|Spanish|Argentine peso|South America|46
Chile|Santiago|Spanish|Chilean peso|South America|20
Peru|Lima|Spanish|sol|South America|34
Colombia|Bogota|Spanish|Colombian peso|South America|52
Uruguay|Montevideo|Spanish|Uruguayan peso|South America|3
Australia|Canberra|English|Australian dollar|Oceania|27
New Zealand|Wellington|English and Maori|New Zealand dollar|Oceania|5
""")
]

ANIMALS = [
    Animal(row[0], row[1], row[2], int(row[3]), row[4], row[5], row[6] == "flies")
    for row in _rows("""
dog|dogs|mammal|4|meat|homes|no
cat|cats|mammal|4|mice|homes|no
horse|horses|mammal|4|grass|farms|no
cow|cows|mammal|4|grass|farms|no
sheep|sheep|mammal|4|grass|farms|no
goat|goats|mammal|4|leaves|mountains|no
pig|pigs|mammal|4|roots|farms|no
lion|lions|mammal|4|zebras|savannas|no
tiger|tigers|mammal|4|deer|jungles|no
wolf|wolves|mammal|4|deer|forests|no
fox|foxes|mammal|4|rabbits|forests|no
bear|bears|mammal|4|fish|forests|no
panda|pandas|mammal|4|bamboo|bamboo forests|no
koala|koalas|mammal|4|eucalyptus leaves|eucalyptus trees|no
kangaroo|kangaroos|mammal|2|grass|grasslands|no
elephant|elephants|mammal|4|leaves|savannas|no
giraffe|giraffes|mammal|4|acacia leaves|savannas|no
zebra|zebras|mammal|4|grass|savannas|no
camel|camels|mammal|4|dry plants|deserts|no
deer|deer|mammal|4|leaves|forests|no
rabbit|rabbits|mammal|4|grass|meadows|no
squirrel|squirrels|mammal|4|nuts|trees|no
mouse|mice|mammal|4|seeds|fields|no
beaver|beavers|mammal|4|bark|rivers|no
otter|otters|mammal|4|fish|rivers|no
bat|bats|mammal|2|insects|caves|flies
whale|whales|mammal|0|krill|oceans|no
dolphin|dolphins|mammal|0|fish|oceans|no
hedgehog|hedgehogs|mammal|4|worms|gardens|no
eagle|eagles|bird|2|fish|mountains|flies
owl|owls|bird|2|mice|forests|flies
duck|ducks|bird|2|water plants|ponds|flies
swan|swans|bird|2|water plants|lakes|flies
chicken|chickens|bird|2|grain|farms|no
penguin|penguins|bird|2|fish|cold coasts|no
ostrich|ostriches|bird|2|plants|savannas|no
parrot|parrots|bird|2|fruit|rainforests|flies
sparrow|sparrows|bird|2|seeds|towns|flies
pigeon|pigeons|bird|2|seeds|cities|flies
flamingo|flamingos|bird|2|shrimp|lagoons|flies
crow|crows|bird|2|almost anything|fields|flies
snake|snakes|reptile|0|mice|deserts|no
lizard|lizards|reptile|4|insects|rocks|no
turtle|turtles|reptile|4|water plants|ponds|no
crocodile|crocodiles|reptile|4|fish|rivers|no
frog|frogs|amphibian|4|insects|ponds|no
toad|toads|amphibian|4|insects|gardens|no
newt|newts|amphibian|4|worms|ponds|no
shark|sharks|fish|0|fish|oceans|no
salmon|salmon|fish|0|insects|rivers|no
tuna|tuna|fish|0|small fish|oceans|no
goldfish|goldfish|fish|0|flakes|aquariums|no
ant|ants|insect|6|seeds|nests|no
bee|bees|insect|6|nectar|hives|flies
butterfly|butterflies|insect|6|nectar|meadows|flies
beetle|beetles|insect|6|leaves|forests|flies
mosquito|mosquitoes|insect|6|nectar|swamps|flies
spider|spiders|arachnid|8|insects|webs|no
scorpion|scorpions|arachnid|8|insects|deserts|no
crab|crabs|crustacean|10|algae|beaches|no
lobster|lobsters|crustacean|10|mussels|sea floors|no
octopus|octopuses|mollusc|8|crabs|reefs|no
snail|snails|mollusc|0|leaves|gardens|no
""")
]

PLANETS = [
    Planet(row[0], int(row[1]), row[2], row[3])
    for row in _rows("""
Mercury|1|rocky planet|it is the smallest planet
Venus|2|rocky planet|it is the hottest planet
Earth|3|rocky planet|it is the planet with oceans and life
Mars|4|rocky planet|it is called the red planet
Jupiter|5|gas giant|it is the largest planet
Saturn|6|gas giant|it has bright rings
Uranus|7|ice giant|it spins on its side
Neptune|8|ice giant|it has the strongest winds
""")
]

ELEMENTS = [
    Element(row[0], row[1], int(row[2]), row[3])
    for row in _rows("""
hydrogen|H|1|gas
helium|He|2|gas
lithium|Li|3|solid
carbon|C|6|solid
nitrogen|N|7|gas
oxygen|O|8|gas
neon|Ne|10|gas
sodium|Na|11|solid
magnesium|Mg|12|solid
aluminium|Al|13|solid
silicon|Si|14|solid
sulfur|S|16|solid
chlorine|Cl|17|gas
calcium|Ca|20|solid
iron|Fe|26|solid
copper|Cu|29|solid
zinc|Zn|30|solid
silver|Ag|47|solid
tin|Sn|50|solid
gold|Au|79|solid
mercury|Hg|80|liquid
lead|Pb|82|solid
""")
]

MONTHS = [
    Month(name, number, days)
    for number, (name, days) in enumerate(
        [
            ("January", 31),
            ("February", 28),
            ("March", 31),
            ("April", 30),
            ("May", 31),
            ("June", 30),
            ("July", 31),
            ("August", 31),
            ("September", 30),
            ("October", 31),
            ("November", 30),
            ("December", 31),
        ],
        start=1,
    )
]

MIXED_COLOURS = {
    ("red", "blue"): "purple",
    ("red", "yellow"): "orange",
    ("blue", "yellow"): "green",
    ("red", "white"): "pink",
    ("black", "white"): "grey",
}

COLOURS = {
    "sky": "blue",
    "grass": "green",
    "snow": "white",
    "coal": "black",
    "blood": "red",
    "lemons": "yellow",
    "carrots": "orange",
    "leaves": "green",
    "milk": "white",
    "bananas": "yellow",
}

MADE_OF = {
    "glass": "sand",
    "paper": "wood",
    "bread": "flour",
    "cheese": "milk",
    "bricks": "clay",
    "steel": "iron",
    "wine": "grapes",
    "chocolate": "cocoa beans",
    "wool": "sheep's hair",
    "butter": "cream",
}

NUMBER_WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
ORDINALS = [
    "zeroth",
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
    "eleventh",
    "twelfth",
]


def article(word: str) -> str:
    return ("an " if word[0].lower() in "aeio" else "a ") + word


def the(country: str) -> str:
    return "the " + country if country in ("Netherlands", "United Kingdom", "United States", "Philippines") else country


def sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def country_text(c: Country) -> str:
    return (
        f"{sentence(the(c.name))} is a country in {c.continent}. Its capital is {c.capital}, its currency is the "
        f"{c.currency}, and about {c.population} million people live there."
    )


def animal_text(a: Animal) -> str:
    legs = f"has {a.legs} legs" if a.legs else "has no legs"
    return f"{sentence(article(a.name))} is {article(a.kind)}. It {legs}, lives in {a.habitat} and eats {a.food}."


def planet_text(p: Planet) -> str:
    return f"{p.name} is {article(p.kind)}. It is number {p.place} from the sun, and {p.note}."


def element_text(e: Element) -> str:
    return f"{sentence(e.name)} is a chemical element with the symbol {e.symbol}. Its atomic number is {e.number}."


def month_text(m: Month) -> str:
    return f"{m.name} is month number {m.number} of the year. It has {m.days} days."


def encyclopedia() -> dict[str, str]:
    """Return every entity's short text by lower-case name, as the tool `lookup` of the examples answers.

    The planet wins over the metal: `Mercury` as a planet is asked for more often.
    """
    pages = {e.name: element_text(e) for e in ELEMENTS}
    pages |= {p.name.lower(): planet_text(p) for p in PLANETS}
    pages |= {c.name.lower(): country_text(c) for c in COUNTRIES}
    pages |= {a.name: animal_text(a) for a in ANIMALS}
    pages |= {m.name.lower(): month_text(m) for m in MONTHS}
    return pages


def lookup(entity: str) -> str:
    return encyclopedia().get(entity.strip().lower(), "Nothing found.")
