"""Texts to train a draft head on: a model's own greedy answers to the kinds of request of `trained.py`.

    python -P bench/speculation/training_texts.py MODEL.gguf texts.jsonl [--count 320]
    ramiform train-draft MODEL.gguf --data texts.jsonl --tokens-per-step 1024 --max-length 512

Chats, edits of code, JSON under a schema and forced tool calls, as prompts and completions of `train-draft`. No
question, function, schema, tool or person is one of `trained.py`. A file that is there already is continued.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

import ramiform
from ramiform.bench.speculation.trained import strict_object

NAMES = "Maya Reed,Leon Fox,Iris Wood,Hugo Stein,Vera Lund,Paul Kerr,Zoe Marsh,Ivan Petrov,Lucy Chan,Omar Haddad".split(
    ","
)
TOWNS = "Vienna,Athens,Dublin,Kyoto,Lima,Porto,Bergen,Nairobi,Toronto,Krakow".split(",")
JOBS = "nurse,teacher,driver,painter,farmer,lawyer,cook,pilot,plumber,writer".split(",")
PASTIMES = "sing,ski,cook,climb,dance,sail,run,draw,hike,play chess".split(",")
TOPICS = (
    "rain,volcanoes,photosynthesis,gravity,magnets,vaccines,inflation,recursion,compilers,sleep,bees,glaciers,tides,rust,"
    "yeast,batteries,dictionaries in Python,decorators in Python,hash tables,binary search,git branches,HTTP,databases,"
    "regular expressions,stoicism,haiku,jazz,chess openings,running shoes,house plants,job interviews,meetings,budgets"
).split(",")
FORMS = [
    "Explain {} in three sentences.",
    "Give me four facts about {}.",
    "Write a short paragraph about {}.",
    "What should a beginner know about {}?",
    "Write a short e-mail to a friend about {}.",
]
FUNCTIONS = [
    """def {0}_count(words):
    counts = {{}}
    for word in words:
        counts[word] = counts.get(word, 0) + 1
    return counts
""",
    """def {0}_largest(values):
    best = values[0]
    for value in values[1:]:
        if value > best:
            best = value
    return best
""",
    """def {0}_read(path):
    lines = []
    with open(path) as file:
        for line in file:
            lines.append(line.strip())
    return lines
""",
    """class {0}Stack:
    def __init__(self):
        self.items = []

    def pop(self):
        if not self.items:
            raise IndexError("empty")
        return self.items.pop()
""",
    """def {0}_area(width, height):
    if width < 0 or height < 0:
        raise ValueError("negative size")
    return width * height
""",
]
EDITS = [
    "add comments",
    "add type hints",
    "add a docstring",
    "make the names shorter",
    "add a check of the arguments",
    "print the result too",
]
_TEXT, _COUNT, _FLAG = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
_TEXTS = {"type": "array", "items": _TEXT, "maxItems": 3}
FIELDS: dict[str, Any] = {
    "surname": _TEXT,
    "first_name": _TEXT,
    "place": _TEXT,
    "job": _TEXT,
    "years_old": _COUNT,
    "hobby": _TEXT,
    "skills": _TEXTS,
    "is_retired": _FLAG,
    "country": _TEXT,
    "description": _TEXT,
    "level": {"enum": ["low", "medium", "high"]},
    "address": strict_object(street=_TEXT, town=_TEXT),
    "remark": _TEXT,
    "score": {"type": "number"},
}
TOOLS = "register_patient,make_invoice,plan_trip,reserve_room,open_ticket,write_note,add_contact,post_job".split(",")


def bodies(seed: int) -> Iterator[dict[str, Any]]:
    """Draw requests without end, of each kind in turn."""
    draw = random.Random(seed)
    while True:
        name, town, job, pastime = (draw.choice(list(each)) for each in (NAMES, TOWNS, JOBS, PASTIMES))
        story = f"{name} is {draw.randint(18, 80)} years old, works as a {job} in {town} and likes to {pastime}."
        chosen = {field: FIELDS[field] for field in draw.sample(list(FIELDS), draw.randint(2, 5))}
        code = draw.choice(FUNCTIONS).format(name.split()[0].lower())
        schema = {"name": "answer", "strict": True, "schema": strict_object(**chosen)}
        tool = draw.choice(TOOLS)
        function = {"name": tool, "description": tool.replace("_", " "), "parameters": strict_object(**chosen)}
        for text, more in (
            (draw.choice(FORMS).format(draw.choice(TOPICS)), {}),
            (f"```python\n{code}```\nPlease {draw.choice(EDITS)}.", {}),
            (
                f"Describe the person as JSON. {story}",
                {"response_format": {"type": "json_schema", "json_schema": schema}},
            ),
            (
                f"{story} Call {tool} for this person.",
                {"tools": [{"type": "function", "function": function}], "tool_choice": "required"},
            ),
        ):
            yield {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 128, **more}


def main(
    model: str,
    out: Path,
    count: Annotated[int, typer.Option(help="Number of texts.")] = 320,
    batch: Annotated[int, typer.Option(help="Requests at once.")] = 16,
    seed: int = 0,
) -> None:
    """Write the texts, each when its batch is answered."""
    written = len(out.read_text(encoding="utf-8").splitlines()) if out.exists() else 0
    with (
        ramiform.Runtime(model, port=0, speculative="off") as runtime,
        httpx.Client(base_url=str(runtime.url), timeout=None) as client,
        out.open("a", encoding="utf-8") as file,
        ThreadPoolExecutor(batch) as pool,
    ):
        name = client.get("/get_server_info").json()["name"]

        def line(body: dict[str, Any]) -> str:
            asked = {"model": name, "return_token_ids": True, **body}
            answer = client.post("/v1/chat/completions", json=asked).raise_for_status().json()
            lists = [answer["prompt_token_ids"], answer["choices"][0]["token_ids"]]
            texts = client.post("/detokenize", json={"tokens": lists, "skip_special_tokens": False}).json()["text"]
            kind = "tool" if "tools" in body else "JSON" if "response_format" in body else "free"
            return json.dumps({"prompt": texts[0], "completion": texts[1], "set": kind})

        for start in range(written, count, batch):
            file.writelines(text + "\n" for text in pool.map(line, islice(bodies(seed), start, start + batch)))
            file.flush()


if __name__ == "__main__":
    typer.run(main)
