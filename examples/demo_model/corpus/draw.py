"""Random choices of the corpus, and the split between training and held-out data.

A `Draw` is seeded; the same seed gives the same corpus. A held-out draw uses names, numbers and wordings that no
training draw ever uses.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

FIRST = """Ada Alan Alice Amir Anna Anton Aisha Ben Bella Carl Carla Chen Clara Daniel Dora Diego David Elena Emma Erik
Eva Farid Fatima Felix Fiona Frank Gina George Grace Hana Hans Helen Hugo Ida Igor Ines Ivan Jack Jana Jane John Jonas
Julia Karim Kate Kenji Lara Laura Leo Lena Liam Lina Lucas Lucy Maria Mark Marta Mary Max Mei Mia Mike Mila Mona Nadia
Nina Noah Nora Olga Oliver Omar Oscar Paul Paula Peter Petra Priya Raj Rita Robert Rosa Ruth Sam Sara Simon Sofia Tom
Tara Theo Tina Uma Vera Victor Walter Wendy Yara Yuki Zoe Zara Bob Sally Kim Lee Ali""".split()
LAST = """Adler Baker Berg Brown Carter Chen Clark Costa Cruz Diaz Evans Fischer Fox Garcia Green Gupta Hall Hansen Hill
Ito Jones Khan Klein Kumar Lang Larsen Lee Lopez Lovelace Martin Meyer Miller Moore Nakamura Novak Okafor Olsen Park
Patel Perez Quinn Reed Rossi Santos Sato Silva Singh Smith Stone Tanaka Taylor Turing Vega Walker Weber West White
Wilson Wood Wright Young Zhang""".split()
CITIES = """Paris Berlin Rome Madrid Lisbon London Oslo Vienna Prague Athens Cairo Tokyo Boston Chicago Denver Seattle
Munich Hamburg Lyon Milan Naples Porto Bergen Geneva Zurich Toronto Sydney Lima Quito Nairobi Accra Seoul Delhi Osaka
Leeds York Bristol Dallas Austin Miami Dublin Cork Ghent Krakow Riga Turin Nice Basel Perth Bogota""".split()
ONSETS = "b br c ch d dr f fl g gr h j k kl l m n p pl qu r s sh st t th tr v w x y z".split()
VOWELS = "a e i o u ai ei ea oo a e i o".split()
CODAS = ["", "", "", "", "n", "r", "l", "s", "m", "k", "t", "nd", "rn", "x", "th"]

NOUNS = """apple banana carpet candle basket bottle box brush bucket button cable calendar candle card chain coin comb
cup curtain dish doll door drum engine fan feather flag flower folder fork frame fridge glass glove hammer hat jar key
kite knife ladle leaf lock magnet map marble mask needle net oven paint pan paper pencil picture pipe plant plug pot
pump purse radio rope ruler saw scarf scissors screen shelf shirt shoe soap sock stamp stool stove string suitcase sugar
switch table tablet tea thread ticket tile towel toy tray truck vase violin wallet wheel whistle window zip coat boat
actor artist author banker barber butcher clerk coach dancer detective diver firefighter guard judge manager miner model
poet potter sailor singer soldier student surgeon tailor trainer vet""".split()
WORDS = [*FIRST, *LAST, *CITIES, *NOUNS]


def stable_hash(*key: object) -> int:
    """Hash strings in the same way in every process, unlike `hash`."""
    return zlib.crc32("\x1f".join(map(str, key)).encode())


class Draw:
    """A seeded source of names, numbers and wordings.

    A wide draw uses every wording of a prompt, holds out pairs of them instead, and blends words into new ones: copying
    must work for any piece of the vocabulary, not only for the pieces of the narrow names.
    """

    def __init__(self, seed: int, held_out: bool = False, wide: bool = False) -> None:
        self.rng = random.Random(seed)
        self.held_out = held_out
        self.wide = wide

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.rng.random() * len(options))]

    def some(self, options: Sequence[T], count: int) -> list[T]:
        return self.rng.sample(list(options), count)

    def shuffled(self, options: Sequence[T]) -> list[T]:
        return self.rng.sample(list(options), len(options))

    def wording(self, key: object, options: Sequence[T], beside: object = None) -> T:
        """Choose an option for a prompt; wide draws hold out pairs of an option and its neighbour `beside`."""
        if self.wide:
            return self.pick(options) if beside is None else self.fact_wording((key, beside), options)
        return self.fact_wording(key, options)

    def fact_wording(self, key: object, options: Sequence[T]) -> T:
        """Choose an option. A twelfth of all (key, option) pairs are kept for held-out draws."""
        kept = [option for n, option in enumerate(options) if self._is_kept(12, "wording", key, n)]
        seen = [option for n, option in enumerate(options) if not self._is_kept(12, "wording", key, n)]
        if self.held_out:
            return self.pick(kept or options)
        return self.pick(seen or options)

    def number(self, low: int, high: int) -> int:
        """Draw an integer in [low, high]. Above 20, a tenth of all integers are kept for held-out draws."""
        for _ in range(200):
            n = self.rng.randint(low, high)
            if high < 60 or n <= 20 or self._is_kept(10, "number", n) == self.held_out:
                return n
        return n

    def first_name(self) -> str:
        return self._name(lambda: self.pick(FIRST) if self.chance(0.5) else self.invented())

    def last_name(self) -> str:
        return self._name(lambda: self.pick(LAST) if self.chance(0.5) else self.invented())

    def person(self) -> str:
        return f"{self.first_name()} {self.last_name()}"

    def city(self) -> str:
        return self._name(lambda: self.pick(CITIES) if self.chance(0.6) else self.invented())

    def place(self) -> str:
        """Invent a name for a land, a town or a company."""
        return self._name(lambda: self.invented())

    def noun(self, options: Sequence[str]) -> str:
        if self.wide and self.chance(0.35):
            return self.pick(NOUNS) if self.chance(0.6) else self.blend()
        return self.pick(options)

    def blend(self) -> str:
        """Join the beginning of one word to the end of another."""
        head, tail = self.pick(WORDS), self.pick(WORDS)
        return (head[: self.rng.randint(1, len(head))] + tail[self.rng.randint(0, len(tail) - 1) :]).lower()

    def invented(self) -> str:
        if self.wide and self.chance(0.5):
            return self.blend().capitalize()
        syllables = "".join(self.pick(ONSETS) + self.pick(VOWELS) for _ in range(self.pick((1, 2, 2, 2, 3))))
        return (syllables + self.pick(CODAS)).capitalize()

    def code(self) -> str:
        """Draw an order number, flight or room such as AB12 or XK4071."""
        letters = "".join(self.pick("ABCDEFGHJKLMNPRSTUVWXZ") for _ in range(self.pick((1, 2, 2))))
        return letters + str(self.number(10, 9999))

    def _name(self, make) -> str:
        while True:
            name = make()
            if self._is_kept(8, "name", name) == self.held_out:
                return name

    @staticmethod
    def _is_kept(one_in: int, *key: object) -> bool:
        return stable_hash(*key) % one_in == 0
