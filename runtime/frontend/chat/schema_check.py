"""Whether constraints that an answer may come to need can be compiled, known before the answer begins.

The core compiles; a request for one token under the constraint says what it thinks of it. Asked once per constraint.
"""

from __future__ import annotations

from collections import OrderedDict

from ...protocol.errors import RequestError
from ...protocol.sampling import Constraint, SamplingParams
from ..text.generation import Generator, Prompt

MAX_CACHED_CHECKS = 1024


class SchemaCheck:
    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._known: OrderedDict[Constraint, str | None] = OrderedDict()  # what is wrong with each

    async def check(self, constraint: Constraint) -> None:
        """Raises RequestError (code "invalid_grammar") for one that cannot be compiled, or (code "aborted") when it did
        not come to be known."""
        if constraint not in self._known:
            self._known[constraint] = await self._ask(constraint)
            while len(self._known) > MAX_CACHED_CHECKS:
                self._known.popitem(last=False)
        self._known.move_to_end(constraint)
        if (message := self._known[constraint]) is not None:
            raise RequestError(message, code="invalid_grammar")

    async def _ask(self, constraint: Constraint) -> str | None:
        bos = self._generator.tokenizer.bos_id
        sampling = SamplingParams(max_new_tokens=1, temperature=0.0, constraint=constraint)
        try:
            with self._generator.start(Prompt(tokens=[bos or 0], sampling=sampling)) as [sample]:
                generated = await sample.result()
        except RequestError as error:
            if error.code != "invalid_grammar":
                raise
            return str(error)
        if generated.sequence.finish.type == "abort":
            raise RequestError("the request was aborted while its schema was looked at", code="aborted")
        return None

    async def check_tool(self, name: str, arguments: Constraint) -> None:
        """The same for the arguments of a tool. The error names it."""
        try:
            await self.check(arguments)
        except RequestError as error:
            if error.code != "invalid_grammar":
                raise
            raise RequestError(f"tool {name!r}: {error}", param="tools", code="invalid_tool") from None
