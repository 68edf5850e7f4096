"""Jump-forward: text that the grammar leaves no choice about is appended at once, and computed as a prefill chunk.

After Zheng et al., SGLang (2024), section 4. Tokens are appended, never replaced, and each must be what could have been
sampled: the grammar accepts it, it is not to be avoided yet, and it ends nothing. What would end the output is left to
the model, so every output ends with a sampled token, whichever way it got there.
"""

from __future__ import annotations

from ...constrained.errors import GrammarError
from .jump_forward import Retokenise
from .request import Request
from .sampling_inputs import grammar_too_complex


def jump_forward(request: Request, retokenise: Retokenise) -> int:
    """Append what must come next, as far as its tokens are settled. Returns the number of tokens; the client gets them
    with the next one that is sampled. Raises RequestError when the grammar cannot be followed any further."""
    num_tokens = len(request.tokens)
    room = request.end - 1 - num_tokens
    if request.matcher is None or room <= 0:
        return 0
    try:
        forced = request.matcher.forced()
        for token in retokenise(request.tokens, forced)[:room] if forced else ():
            if not _may_be_appended(request, token):
                break
            # An engine of grammars may be stricter about tokens than about bytes: then the model is asked.
            if not request.matcher.accept(token):
                break
            finish = request.stops.feed(token, request.num_output)
            assert finish is None
            request.tokens.append(token)
    except GrammarError as error:
        raise grammar_too_complex(error) from None
    return len(request.tokens) - num_tokens


def _may_be_appended(request: Request, token: int) -> bool:
    stops, num_output = request.stops, request.num_output
    return token not in stops.avoided(num_output) and not stops.would_end(token, num_output)
