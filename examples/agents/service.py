"""A web service whose requests are programs: all users share one runtime, and their common prompt is computed once.

    ramiform run examples/agents/service.py [PORT]
    curl -d '{"text": "Ada Brown is 36 years old and lives in London."}' -H 'content-type: application/json' \
        http://127.0.0.1:8000/people

Async programs need no thread each. A user who hangs up ends the program, and what it generates, at once.
"""

import sys

import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field

import ramiform
from ramiform import BusyError, ProgramState, gen, select

app = FastAPI(title="People")


class Text(BaseModel):
    """What a user sends."""

    text: str = Field(max_length=1000)


class Person(BaseModel):
    """What a user gets: the model writes nothing else."""

    name: str
    age: int = Field(ge=0, le=130)
    city: str


@ramiform.function
async def read_person(s: ProgramState, text: str) -> Person:
    s += f"Text: {text}\nFields: name, age, city\nJSON:" + gen("person", max_tokens=60, schema=Person)
    person: Person = await s.get("person")
    return person


@ramiform.function
async def judge(s: ProgramState, claim: str) -> bool:
    s += f"Statement: {claim}\nTrue:" + select("verdict", [" yes", " no"])
    return bool(await s.get("verdict") == " yes")


@app.post("/people")
async def people(body: Text) -> Person:
    """Return the person that the text tells of."""
    try:
        state = await read_person.arun(body.text, temperature=0, timeout=30)
    except BusyError as error:
        raise HTTPException(503, str(error)) from None
    person: Person = state.ret_value
    return person


@app.post("/claims")
async def claims(body: Text) -> dict[str, bool]:
    """Return whether the claim is true."""
    state = await judge.arun(body.text)
    return {"true": state.ret_value}


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    print(f"POST /people and /claims at http://127.0.0.1:{port}, until Ctrl-C", flush=True)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
