"""`/v1/conversations` through the official client, whose types judge the answers."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from openai.types.conversations import Conversation, ConversationItemList

from .prompts import TOOLS

SAID: list[Any] = [{"role": "user", "content": "My name is Ada."}, {"role": "assistant", "content": "Hello, Ada!"}]
CALL: list[Any] = [
    {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": '{"city": "Paris"}'},
    {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
    {"type": "reasoning", "summary": []},
]


def texts(items: Any) -> list[str]:
    return [item.content[0].text for item in items]


def test_a_conversation_is_made_changed_and_deleted(client: OpenAI, http: httpx.Client) -> None:
    made = client.conversations.create(items=SAID, metadata={"topic": "names"})
    shown = http.get(f"/v1/conversations/{made.id}").json()
    assert Conversation.model_validate(shown) == made
    assert (made.object, made.metadata) == ("conversation", {"topic": "names"})
    assert client.conversations.update(made.id, metadata={"a": "b"}).metadata == {"a": "b"}
    assert client.conversations.retrieve(made.id).metadata == {"a": "b"}
    gone = client.conversations.delete(made.id)
    assert (gone.deleted, gone.object, gone.id) == (True, "conversation.deleted", made.id)
    for ask in (client.conversations.retrieve, client.conversations.delete, client.conversations.items.list):
        with pytest.raises(NotFoundError):
            list(ask(made.id))
    assert client.conversations.create().metadata == {}


def test_items_are_added_listed_and_removed(client: OpenAI, http: httpx.Client) -> None:
    name = client.conversations.create(items=SAID).id
    added = client.conversations.items.create(name, items=CALL)
    assert [item.type for item in added.data] == [item["type"] for item in CALL]
    path = f"/v1/conversations/{name}/items"
    listed = ConversationItemList.model_validate(http.get(path, params={"order": "asc"}).json())
    assert [item.type for item in listed.data] == ["message", "message", *(item["type"] for item in CALL)]
    assert texts(listed.data[:2]) == ["My name is Ada.", "Hello, Ada!"]
    newest_first = [item.id for item in client.conversations.items.list(name, limit=2)]  # in three pages
    assert newest_first == [item.id for item in listed.data][::-1]
    one = client.conversations.items.retrieve(listed.data[0].id, conversation_id=name)
    assert texts([one]) == ["My name is Ada."]
    assert client.conversations.items.delete(one.id, conversation_id=name).id == name
    with pytest.raises(NotFoundError):
        client.conversations.items.retrieve(one.id, conversation_id=name)
    with pytest.raises(NotFoundError):
        client.conversations.items.delete(one.id, conversation_id=name)
    assert len(client.conversations.items.list(name).data) == 4
    copied = client.conversations.items.create(name, items=[{"type": "item_reference", "id": listed.data[1].id}])
    assert texts(copied.data) == ["Hello, Ada!"]
    assert copied.data[0].id != listed.data[1].id
    empty = client.conversations.create().id
    ConversationItemList.model_validate(http.get(f"/v1/conversations/{empty}/items").json())


def test_responses_read_and_extend_a_conversation(client: OpenAI, model: str) -> None:
    ask: dict[str, Any] = {"model": model, "temperature": 0}
    name = client.conversations.create(items=SAID).id
    answer = client.responses.create(input="What is my name?", conversation=name, **ask)
    by_hand = client.responses.create(input=[*SAID, {"role": "user", "content": "What is my name?"}], **ask)
    assert "Ada" in answer.output_text
    assert (answer.output_text, answer.usage.input_tokens) == (by_hand.output_text, by_hand.usage.input_tokens)
    assert answer.conversation is not None
    assert answer.conversation.id == name
    said = ["My name is Ada.", "Hello, Ada!", "What is my name?", answer.output_text]
    assert texts(client.conversations.items.list(name, order="asc")) == said
    streamed = client.responses.create(input="Thanks!", conversation={"id": name}, stream=True, **ask)
    last = list(streamed)[-1].response
    assert texts(client.conversations.items.list(name, order="asc")) == [*said, "Thanks!", last.output_text]
    with pytest.raises(BadRequestError, match="belongs to a conversation"):
        client.responses.create(input="a", previous_response_id=answer.id, **ask)
    with pytest.raises(NotFoundError):
        client.responses.create(input="a", conversation="conv_none", **ask)


def test_a_call_and_its_result_are_parts_of_a_conversation(client: OpenAI, model: str) -> None:
    tools: list[Any] = [{"type": "function", **each["function"]} for each in TOOLS]
    ask: dict[str, Any] = {"model": model, "temperature": 0, "tools": tools}
    name = client.conversations.create().id
    [call] = client.responses.create(input="What is the weather in Paris?", conversation=name, **ask).output
    result: Any = {
        "type": "function_call_output",
        "call_id": call.call_id,
        "output": '{"weather": "sunny", "temperature": 21}',
    }
    assert "sunny" in client.responses.create(input=[result], conversation=name, **ask).output_text
    kinds = [item.type for item in client.conversations.items.list(name, order="asc")]
    assert kinds == ["message", "function_call", "function_call_output", "message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {"a" * 65: ""}}, "metadata"),
        ({"items": SAID * 11}, "items"),
        ({"items": [{"type": "telepathy"}]}, "items[0]"),
        ({"items": [{"type": "item_reference", "id": "x"}]}, "input[0].id"),
        ({"name": "x"}, "name"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_is_refused_by_name(http: httpx.Client, body: dict[str, Any], param: str) -> None:
    response = http.post("/v1/conversations", json=body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith(param)
