"""Ends streamed text at the first stop string, for endpoints that do not know the stop."""

from __future__ import annotations

from collections.abc import Sequence

from ...runtime.protocol.stop_strings import StopStrings

_ANY_TEXT = "surrogatepass"  # an endpoint's JSON may hold halves of characters


class StopCutter:
    """Gives out streamed text up to the first of `stops`; `found` is then that stop.

    With `skips_space` white space at the beginning is left out: the prompt has it already.
    """

    def __init__(self, stops: Sequence[str], *, skips_space: bool = False) -> None:
        self.found: str | None = None
        self._stops = StopStrings(stops)
        self._held = b""  # may be the beginning of a stop
        self._skips_space = skips_space

    def take(self, text: str) -> str:
        """Return the text that is sure to come before any stop. Nothing comes after a found stop."""
        if self.found is not None:
            return ""
        if self._skips_space:
            text = text.lstrip()
            self._skips_space = not text
        data = text.encode(errors=_ANY_TEXT)
        match, window = self._stops.feed(data), self._held + data
        if match is not None:
            self.found = match.text.decode()
            given, self._held = window[: len(self._held) + match.start], b""
        else:
            end = len(window) - self._stops.num_pending
            given, self._held = window[:end], window[end:]
        return given.decode(errors=_ANY_TEXT)

    def end(self) -> str:
        """Return the text that was held back, once no more comes."""
        given, self._held = self._held, b""
        return given.decode(errors=_ANY_TEXT)
