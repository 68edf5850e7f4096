"""Ends streamed text at the first stop string, for endpoints that do not know the stop."""

from __future__ import annotations

from collections.abc import Sequence


class StopCutter:
    """Gives out streamed text up to the first of `stops`; `found` is then that stop.

    With `skips_space` white space at the beginning is left out: the prompt has it already.
    """

    def __init__(self, stops: Sequence[str], *, skips_space: bool = False) -> None:
        self.found: str | None = None
        self._stops = stops
        self._held = ""  # may be the beginning of a stop
        self._skips_space = skips_space

    def take(self, text: str) -> str:
        """Return the text that is sure to come before any stop. Nothing comes after a found stop."""
        if self.found is not None:
            return ""
        if self._skips_space:
            text = text.lstrip()
            self._skips_space = not text
        self._held += text
        matches = [(self._held.index(stop), -len(stop), stop) for stop in self._stops if stop in self._held]
        if matches:
            place, _, self.found = min(matches)
            given, self._held = self._held[:place], ""
            return given
        num_held = max(
            (n for stop in self._stops for n in range(1, len(stop)) if self._held.endswith(stop[:n])), default=0
        )
        end = len(self._held) - num_held
        given, self._held = self._held[:end], self._held[end:]
        return given

    def end(self) -> str:
        """Return the text that was held back, once no more comes."""
        given, self._held = self._held, ""
        return given
