"""litellm: a conversation beyond the context, to `URL MODEL`; prints the class of litellm's that it raises."""

from __future__ import annotations

import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it fetches prices when imported

import litellm

litellm.telemetry = False
litellm.suppress_debug_info = True
url, model = sys.argv[1:]
for stream in (False, True):
    try:
        litellm.completion(
            model=f"openai/{model}",
            api_base=f"{url}/v1",
            api_key="none",
            messages=[{"role": "user", "content": "word " * 3000}],
            num_retries=0,
            stream=stream,
        )
    except Exception as error:
        print(type(error).__qualname__)
