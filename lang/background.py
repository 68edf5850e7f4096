"""A program's body in a thread of its own, for `run(stream=True)`. Knows when it ended and with what; no variables."""

from __future__ import annotations

import threading
from collections.abc import Callable

from .log import Log


class Background:
    """Runs `body` at once, and `abandon` with what it raises. `log` changes when that is over, so that readers wake."""

    def __init__(self, body: Callable[[], None], abandon: Callable[[BaseException], None], log: Log) -> None:
        self.ended = False
        self.failure: BaseException | None = None
        self._calls: tuple[Callable[[], None], Callable[[BaseException], None]] | None = (body, abandon)
        self._log = log
        self._thread = threading.Thread(target=self._run, name="ramify-program", daemon=True)
        self._thread.start()

    @property
    def is_followed(self) -> bool:
        """Whether more may come, seen from this thread. To the body itself, all that will come is there."""
        return not self.ended and threading.current_thread() is not self._thread

    def _run(self) -> None:
        assert self._calls is not None
        body, abandon = self._calls
        self._calls = None  # they hold the state
        try:
            body()
        except BaseException as error:
            self.failure = error  # before anything else fails because of it
            abandon(error)
        finally:
            del body, abandon
            with self._log.changed:
                self.ended = True
                self._log.touch()
