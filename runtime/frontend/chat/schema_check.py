"""Check that constraints compile before an answer begins.

The core compiles them: a request for one token under the constraint tells the result, which is cached.
"""

from __future__ import annotations

from collections import OrderedDict

from ...protocol.errors import RequestError
from ...protocol.sampling import Constraint, SamplingParams
from ..text.generation import Generator, Prompt

MAX_CACHED_CHECKS = 1024


class SchemaCheck:
    """Checks constraints through the core, and caches the results."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._errors: OrderedDict[Constraint, str | None] = OrderedDict()  # error message, or None

    async def check(self, constraint: Constraint) -> None:
        """Raise RequestError (code "invalid_grammar") if the constraint does not compile, or (code "aborted") if the
        check was aborted.
        """
        if constraint not in self._errors:
            self._errors[constraint] = await self._compile(constraint)
            while len(self._errors) > MAX_CACHED_CHECKS:
                self._errors.popitem(last=False)
        self._errors.move_to_end(constraint)
        if (message := self._errors[constraint]) is not None:
            raise RequestError(message, code="invalid_grammar")

    async def _compile(self, constraint: Constraint) -> str | None:
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
        """Check the arguments' constraint of a tool. The error names the tool."""
        try:
            await self.check(arguments)
        except RequestError as error:
            if error.code != "invalid_grammar":
                raise
            raise RequestError(f"tool {name!r}: {error}", param="tools", code="invalid_tool") from None
