"""A web service whose requests are programs: all users share one runtime, and their common prompt is computed once.

    ramiform run examples/agents/service.py [PORT]
    curl http://127.0.0.1:8000/people --json '{"text": "Ada Brown is 36 years old and lives in London."}'

`POST /stories` tells of a story while it is written. Async programs need no thread each. A user who hangs up ends the
program, and what it generates, at once.
"""

import asyncio
import sys
from collections.abc import Coroutine

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

import ramiform
from ramiform import BusyError, ProgramState, gen

app = FastAPI(title="People")


class Text(BaseModel):
    text: str = Field(max_length=1000)


class Person(BaseModel):
    """What a user gets: the model writes nothing else."""

    name: str
    age: int = Field(ge=0, le=130)
    city: str


@ramiform.function
async def read_person(s: ProgramState, text: str) -> Person:
    s += f"Text: {text}\nFields: name, age, city\nJSON:" + gen("person", max_tokens=60, schema=Person)
    return await s.get("person")  # type: ignore[no-any-return]


@ramiform.function
async def tell_story(s: ProgramState, beginning: str) -> None:
    s += beginning + gen("story", max_tokens=800, ignore_eos=True)


async def unless_gone(request: Request, run: Coroutine[None, None, ProgramState]) -> ProgramState:
    """Await the run; cancel it if the user hangs up, which web servers do not do by themselves."""
    program, gone = asyncio.ensure_future(run), asyncio.ensure_future(request.receive())  # the body has been read
    gone.add_done_callback(lambda _: program.cancel())
    try:
        return await program
    except asyncio.CancelledError:
        raise HTTPException(499, "the user has hung up") from None
    finally:
        gone.cancel()


@app.post("/people")
async def people(body: Text, request: Request) -> Person:
    """Return the person that the text tells of."""
    try:
        state = await unless_gone(request, read_person.arun(body.text, temperature=0, timeout=30))
    except BusyError as error:
        raise HTTPException(503, str(error)) from None
    return state.ret_value  # type: ignore[no-any-return]


@app.post("/stories")
async def stories(body: Text) -> StreamingResponse:
    """Stream what the program does, its text as it is written: server-sent events."""
    story = await tell_story.arun(body.text, stream=True)
    return StreamingResponse(story.server_sent_events(), media_type="text/event-stream")


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    print(f"POST /people and /stories at http://127.0.0.1:{port}, until Ctrl-C", flush=True)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
