"""API speculative execution: one over-long call, whose text also answers the program's later gens.

A chat or completion endpoint computes a prompt again at every call. Where gens end at stop strings, the model is
likely to write the program's next constant by itself; as long as it does, its text is the answer to the later gens
too. The distribution is that of separate calls: a text, given the text before it.
Source: SGLang (Zheng et al. 2024), section 4.3.
"""

from __future__ import annotations

import msgspec

from ...runtime.protocol.core import Finish
from ...runtime.protocol.sampling import SamplingParams
from ...runtime.protocol.session import Gen
from .transcript import SpeculatedText


def can_take(gen: Gen) -> bool:
    """Return True if `gen` wants nothing but text, and the text alone shows where it ends."""
    sampling = gen.sampling
    return (
        gen.n == 1
        and gen.logprobs is None
        and bool(sampling.stop)
        and sampling.constraint is None
        and not sampling.stop_regex
        and not sampling.stop_token_ids
        and not sampling.min_new_tokens
        and not sampling.ignore_eos
        and not sampling.no_stop_trim
    )


def sampling_without_stop(sampling: SamplingParams) -> SamplingParams:
    """Return the parameters that draw text, without those that end it. They must agree for a text to be taken."""
    return msgspec.structs.replace(sampling, stop=(), max_new_tokens=0)


def take(ahead: SpeculatedText, gen: Gen) -> tuple[str, Finish, SpeculatedText | None] | None:
    """Return the text that answers `gen`, its finish, and the speculated text that is left; None if it has no end.

    A token is at least one byte, so a text of at most `max_new_tokens` bytes is within the limit.
    """
    if ahead.sampling != sampling_without_stop(gen.sampling):
        return None
    found = [(ahead.text.index(stop), -len(stop), stop) for stop in gen.sampling.stop if stop in ahead.text]
    if not found and not ahead.ended:
        return None
    end, _, stop = min(found) if found else (len(ahead.text), 0, None)
    if len((ahead.text[:end] + (stop or "")).encode()) > gen.sampling.max_new_tokens:
        return None
    left = None if stop is None else SpeculatedText(ahead.text[end:], ahead.sampling, ahead.ended)
    return ahead.text[:end], Finish("stop", stop), left
