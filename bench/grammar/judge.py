"""`jsonschema` as the judge of a text: with formats, numbers as the decimals they are, and no network.

Its patterns are read by the standard library's `re`; a schema that it cannot read, or not finish, is not judged.
"""

from __future__ import annotations

import decimal
import json
from decimal import Decimal
from typing import Any, Literal

import jsonschema
import referencing.exceptions
from referencing import Registry

Verdict = Literal["valid", "not valid", "not JSON", "not judged"]
_ROOMY = decimal.Context(prec=5000, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)


def verdict(schema: Any, text: str) -> Verdict:
    """Validate a JSON text with `jsonschema`, in the draft that the schema names, or in 2020-12."""
    try:
        value = json.loads(text, parse_float=Decimal, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return "not JSON"
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    base = jsonschema.validators.validator_for(exact, default=jsonschema.Draft202012Validator)
    if base is not jsonschema.Draft4Validator:  # where 1.0 is no integer
        base = jsonschema.validators.extend(base, type_checker=base.TYPE_CHECKER.redefine("integer", _is_integer))
    validator = base(exact, format_checker=base.FORMAT_CHECKER, registry=Registry())
    try:
        with decimal.localcontext(_ROOMY):
            return "valid" if validator.is_valid(value) else "not valid"
    except Exception as error:
        if isinstance(error, RecursionError | referencing.exceptions.Unresolvable) or "pattern" in str(error):
            return "not judged"
        if type(error).__name__ in ("error", "PatternError", "_WrappedReferencingError"):  # of `re` and of jsonschema
            return "not judged"
        raise


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _is_integer(_: object, value: Any) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, Decimal) and value == value.to_integral_value())
