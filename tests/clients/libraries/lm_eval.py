"""lm-eval: its model of OpenAI's chat completions, which asks for whole texts."""

from __future__ import annotations

from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalChatCompletion
from outcomes import URL, report


def refused() -> Any:
    model = LocalChatCompletion(f"{URL}/v1/chat/completions", model="no-such-model", max_retries=1)
    prompt = model.apply_chat_template([{"role": "user", "content": "Hi"}])
    try:
        return str(model.generate_until([Instance("generate_until", {}, (prompt, {"max_gen_toks": 8}), 0)]))
    except Exception as error:
        return str(error)


report(refused=refused)
