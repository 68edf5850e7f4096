"""A compiled grammar and the outputs that follow it: masks, steps forward and back, forced text."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from .dfa import DEAD, START, Dfa
from .vocabulary import Vocabulary

MAX_MASK_BYTES = 64 << 20  # of masks kept per grammar, the least recently used go first
_ENDED = -1  # the state after an end of sequence


class CompiledGrammar:
    """An automaton beside a vocabulary. Shared by every output that follows it, from any thread.

    `alive[s]`: from state s the tokens of the vocabulary can spell a way to the end. It is false for states only
    where some bytes are no tokens by themselves.
    """

    def __init__(self, dfa: Dfa, vocabulary: Vocabulary, alive: NDArray[np.bool_]) -> None:
        self.dfa = dfa
        self.vocabulary = vocabulary
        self._alive = alive
        self._masks: OrderedDict[int, NDArray[np.int32]] = OrderedDict()
        self._max_masks = max(1, MAX_MASK_BYTES // (4 * vocabulary.num_words))
        self._lock = Lock()

    def matcher(self) -> Matcher:
        """A new output's."""
        return Matcher(self)

    def mask_of(self, state: int) -> NDArray[np.int32]:
        """The bitmask of a state; never written to."""
        with self._lock:
            if (mask := self._masks.get(state)) is not None:
                self._masks.move_to_end(state)
                return mask
        tokens, states = self.vocabulary.trie.walk(self.dfa, state)
        mask = self.vocabulary.bitmask(tokens[self._alive[states]], ends=bool(self.dfa.accepting[state]))
        with self._lock:
            self._masks[state] = mask
            if len(self._masks) > self._max_masks:
                self._masks.popitem(last=False)
        return mask

    def after(self, state: int, token: int) -> int:
        """The state after a token; DEAD when it may not come."""
        data = self.vocabulary.tokens[token] if 0 <= token < len(self.vocabulary) else None
        if data is None:
            return DEAD
        target = self.dfa.walk(state, data)
        return target if self._alive[target] else DEAD


class Matcher:
    """One output's way through a grammar. Not for several threads at once."""

    def __init__(self, grammar: CompiledGrammar) -> None:
        self._grammar = grammar
        self._states = [START]  # after each token so far

    def mask(self, out: NDArray[np.int32]) -> None:
        """Write which tokens may come next: bit t % 32 of word t // 32 of int32[ceil(V / 32)].

        The ends of sequence may exactly when `is_accepting`. There is always a token that may come, until an end of
        sequence has come; then none may.
        """
        state = self._states[-1]
        out[:] = 0 if state == _ENDED else self._grammar.mask_of(state)

    def accept(self, token: int) -> bool:
        """Go on by one token. False, and nothing changed, when it may not come next."""
        state = self._states[-1]
        if state == _ENDED:
            return False
        if token in self._grammar.vocabulary.eos_ids:
            after = _ENDED if self.is_accepting() else DEAD
        else:
            after = self._grammar.after(state, token)
        if after == DEAD:
            return False
        self._states.append(after)
        return True

    def rollback(self, num_tokens: int) -> None:
        """Take back the last tokens accepted."""
        assert 0 <= num_tokens < len(self._states), f"{num_tokens} of {len(self._states) - 1} tokens taken back"
        del self._states[len(self._states) - num_tokens :]

    def is_accepting(self) -> bool:
        """Whether the output may end here."""
        state = self._states[-1]
        return state == _ENDED or bool(self._grammar.dfa.accepting[state])

    def forced(self) -> bytes:
        """The bytes that must come next, up to where there is a choice or the output may end."""
        dfa, state, data = self._grammar.dfa, self._states[-1], bytearray()
        while state != _ENDED and not dfa.accepting[state]:
            targets = dfa.table[state][dfa.class_of]
            following = np.flatnonzero(targets)
            if len(following) != 1:
                break
            data.append(int(following[0]))
            state = int(targets[following[0]])
        return bytes(data)
