"""anthropic: message batches from creation to deletion, from `URL MODEL`; prints what they said as JSON."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import anthropic

url, model = sys.argv[1:]
client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
PARAMS: Any = {
    "model": model,
    "max_tokens": 4,
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
}
GREEDY: Any = {"temperature": 0}


def create(names: str, **changes: Any) -> Any:
    requests: Any = [{"custom_id": name, "params": PARAMS | GREEDY | changes} for name in names]
    return client.messages.batches.create(requests=requests)


def ended(name: str) -> Any:
    while (batch := client.messages.batches.retrieve(name)).processing_status != "ended":
        time.sleep(0.05)
    return batch


batch = ended(create("ab").id)
results = {one.custom_id: one.result for one in client.messages.batches.results(batch.id)}
wrong = ended(create("c", top_k=-5).id)
[refused] = client.messages.batches.results(wrong.id)
stopped = ended(client.messages.batches.cancel(create("de").id).id)
listed = [one.id for one in client.messages.batches.list(limit=1)]
deleted = client.messages.batches.delete(batch.id)
try:
    client.messages.batches.retrieve(batch.id)
except anthropic.NotFoundError as error:
    gone = type(error).__name__
print(
    json.dumps(
        {
            "counts": batch.request_counts.to_dict(),
            "texts": {name: result.message.content[0].text for name, result in results.items()},
            "alone": client.messages.create(**PARAMS, extra_body=GREEDY).content[0].text,
            "error": refused.result.error.error.type,
            "stopped": stopped.request_counts.processing,
            "newest": listed[:3] == [stopped.id, wrong.id, batch.id],
            "deleted": deleted.type,
            "gone": gone,
        }
    )
)
