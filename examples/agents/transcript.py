"""Prints what a program wrote: the model's text in colour, and a line of figures."""

from rich.console import Console
from rich.text import Text

import ramify


def show(state: ramify.ProgramState) -> None:
    """The whole text, then tokens generated, prompt tokens reused from the cache, and tokens per second of decoding."""
    console = Console(soft_wrap=True, highlight=False)
    transcript = Text()
    for segment in state.segments():
        transcript.append(segment.text, style="bold green" if segment.generated else "")
    console.print(transcript)
    metas = [state.get_meta_info(segment.name) for segment in state.segments() if segment.generated]
    tokens = sum(meta["completion_tokens"] for meta in metas)
    cached = sum(meta["cached_tokens"] for meta in metas)
    prompt = sum(meta["prompt_tokens"] for meta in metas)
    seconds = sum(meta["e2e_latency"] for meta in metas)
    console.print(
        f"{tokens} tokens in {len(metas)} calls, {cached} of {prompt} prompt tokens from the cache, "
        f"{tokens / seconds:.0f} tok/s",
        style="dim",
    )
