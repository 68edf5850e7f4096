"""litellm: the provider `ollama_chat`, which speaks Ollama's API; there tools are not forced."""

from __future__ import annotations

from litellm_steps import steps
from outcomes import URL, report

report(**steps("ollama_chat", {"api_base": URL, "num_retries": 0}, {"temperature": 0}, {}))
