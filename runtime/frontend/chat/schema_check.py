"""Check that constraints compile before an answer begins.

The core compiles them: a request for no token under the constraint tells the result, which is cached.
"""

from __future__ import annotations

import sys
from collections import OrderedDict

from ...protocol.errors import RequestError
from ...protocol.sampling import Constraint, SamplingParams
from ..text.generation import Generator, Prompt

MAX_CACHED_CHECKS = 1024
MAX_CACHED_BYTES = 16 << 20  # of the constraints' sources and the errors


class SchemaCheck:
    """Checks constraints through the core, and caches the results."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._errors: OrderedDict[Constraint, str | None] = OrderedDict()  # error message, or None
        self._num_bytes = 0

    async def check(self, constraint: Constraint) -> None:
        """Raise RequestError (code "invalid_grammar") if the constraint does not compile, or (code "aborted") if the
        check was aborted.
        """
        if constraint in self._errors:
            message = self._errors[constraint]
            self._errors.move_to_end(constraint)
        else:
            message = await self._compile(constraint)
            self._keep(constraint, message)
        if message is not None:
            raise RequestError(message, code="invalid_grammar")

    def _keep(self, constraint: Constraint, message: str | None) -> None:
        if constraint not in self._errors:  # another request may have checked it meanwhile
            self._errors[constraint] = message
            self._num_bytes += _num_bytes(constraint, message)
        while len(self._errors) > MAX_CACHED_CHECKS or self._num_bytes > MAX_CACHED_BYTES:
            self._num_bytes -= _num_bytes(*self._errors.popitem(last=False))

    async def _compile(self, constraint: Constraint) -> str | None:
        bos = self._generator.tokenizer.bos_id
        sampling = SamplingParams(max_new_tokens=0, temperature=0.0, constraint=constraint)
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


def _num_bytes(constraint: Constraint, message: str | None) -> int:
    return sys.getsizeof(constraint.source) + sys.getsizeof(message)
