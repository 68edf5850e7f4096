"""Print the text of a state, the model's part in colour, and a line of figures."""

from rich.console import Console
from rich.text import Text

import ramiform


def show(state: ramiform.ProgramState) -> None:
    """Print the whole text, then tokens generated, prompt tokens reused from the cache, and tokens per second."""
    console = Console(soft_wrap=True, highlight=False)
    segments = state.segments()
    console.print(Text.assemble(*((part.text, "bold green" if part.generated else "") for part in segments)))
    metas = [part.meta for part in segments if part.meta is not None]
    tokens, cached, prompt = (
        sum(m[key] for m in metas) for key in ("completion_tokens", "cached_tokens", "prompt_tokens")
    )
    seconds = sum(meta["e2e_latency"] for meta in metas)
    console.print(
        f"{tokens} tokens in {len(metas)} calls, {cached} of {prompt} prompt tokens from the cache, "
        f"{tokens / seconds:.0f} tok/s",
        style="dim",
    )
