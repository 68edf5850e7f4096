"""Writes what llama-server answers about the model that ships: `python -P write_answers.py` with the wheel
`xllamacpp==2026.10.11549`, which holds the server."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import httpx
import xllamacpp

from ramiform.tests.frontend.http.llama_cpp.models import write_model

OUT = Path(__file__).with_name("answers.json")
GREEDY = {"temperature": 0, "n_predict": 12}
STORY = "Once upon a time"
LAZY = {"grammar": 'root ::= "Topic:" " " [a-c]{3} "!"', "grammar_lazy": True, "return_tokens": True}
TRIGGERS = [{"type": 2, "value": "Top[ij]c"}, {"type": 3, "value": r"[\s\S]*?(Top[ij]c)[\s\S]*"}]
REQUESTS: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/completion", {"prompt": STORY, **GREEDY, "return_tokens": True}),
    ("POST", "/completion", {"prompt": STORY, **GREEDY, "n_probs": 3}),
    ("POST", "/completions", {"prompt": [STORY, "The dog"], **GREEDY}),
    ("POST", "/completion", {"prompt": [10, "The dog", 12], **GREEDY, "return_tokens": True}),
    ("POST", "/completion", {"prompt": {"prompt_string": STORY}, **GREEDY, "stop": ["a", "e"]}),
    ("POST", "/completion", {"prompt": STORY, "temperature": 0, "n_predict": 8, "grammar": 'root ::= [a-c]+ "!"'}),
    ("POST", "/completion", {"prompt": STORY, **GREEDY, "logit_bias": [[74, 20.0]], "return_tokens": True}),
    ("POST", "/completion", {"prompt": STORY, **GREEDY, "stream": True}),
    ("POST", "/infill", {"input_prefix": "a", "input_suffix": "b"}),
    ("POST", "/v1/chat/completions/input_tokens", {"messages": [{"role": "user", "content": STORY}]}),
    ("POST", "/rerank", {"query": "a", "documents": ["b"]}),
    ("GET", "/props", {}),
    ("GET", "/slots", {}),
    *(
        (
            "POST",
            "/completion",
            {"prompt": STORY, **GREEDY, **LAZY, "grammar_triggers": [{"type": kind, "value": value}]},
        )
        for kind, value in TRIGGERS
    ),
]
_AROUND = {"input_prefix": "The dog went", "input_suffix": "and was happy.", **GREEDY}
INFILLS: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "/infill", _AROUND),
    ("POST", "/infill", {**_AROUND, "prompt": " to", "input_extra": [{"text": "A cat.", "filename": "a.txt"}]}),
    ("POST", "/infill", {**_AROUND, "input_prefix": "<|fim_middle|> a", "input_extra": [{"text": "B"}]}),
]


def main(path: Path, *, fills_in: bool) -> list[dict[str, Any]]:
    params = xllamacpp.CommonParams()
    params.model.path = str(write_model(path, fills_in=fills_in))
    params.n_ctx, params.n_batch, params.n_parallel, params.warmup = (
        512,
        128,
        1,
        False,
    )  # a small batch leaves extras room
    params.cpuparams.n_threads = 1
    server = xllamacpp.Server(params)
    rows = []
    with httpx.Client(base_url=server.listening_address, timeout=120) as client:
        for method, route, body in INFILLS if fills_in else REQUESTS:
            answer = client.request(method, route, json=body if method == "POST" else None)
            value: Any = answer.text if body.get("stream") else answer.json()
            rows.append({"method": method, "route": route, "body": body, "status": answer.status_code, "answer": value})
    return rows


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        found = {kind: main(Path(folder) / f"{kind}.gguf", fills_in=kind == "infill") for kind in ("plain", "infill")}
        OUT.write_text(json.dumps(found, indent=1, ensure_ascii=False).replace(folder, "") + "\n", "utf-8")
