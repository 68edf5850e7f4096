"""litellm: the provider `openai`, which sends to any server of OpenAI's API."""

from __future__ import annotations

from litellm_steps import steps
from outcomes import SWITCH, URL, report

server = {"api_base": f"{URL}/v1", "api_key": "none", "num_retries": 0}
forced = {"tool_choice": "required", "parallel_tool_calls": False}
report(**steps("openai", server, forced, {"tools": [SWITCH], "tool_choice": "none"}))
