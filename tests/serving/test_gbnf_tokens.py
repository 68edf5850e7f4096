"""Grammars with tokens over HTTP. Judge: the ids of the answers."""

from __future__ import annotations

import httpx


def ids_of(http: httpx.Client, **fields: object) -> list[int]:
    body = {"prompt": "The sky is", "max_tokens": 12, "temperature": 0, "return_token_ids": True} | fields
    response = http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    ids: list[int] = response.json()["choices"][0]["token_ids"]
    return ids


def test_an_answer_has_the_tokens_of_its_grammar(http: httpx.Client) -> None:
    greedy = ids_of(http)
    first, second = greedy[:2]
    assert ids_of(http, grammar=f"root ::= <[{second}]> <[{first}]>")[:2] == [second, first]
    other = ids_of(http, grammar=f"root ::= !<[{first}]> ExcludeToken({second})")
    assert other[0] != first
    assert other[1] != second


def test_free_text_ends_in_a_tag(http: httpx.Client) -> None:
    grammar = 'root ::= TagDispatch((" ", word), loop_after_dispatch=false)\nword ::= "zebra"'
    body = {"prompt": "The sky is", "max_tokens": 60, "temperature": 0, "grammar": grammar}
    choice = http.post("/v1/completions", json=body).json()["choices"][0]
    assert choice["text"].endswith(" zebra")
    assert choice["text"].count(" ") == 1


def test_a_token_that_is_not_there_is_refused_with_its_place(http: httpx.Client) -> None:
    response = http.post("/v1/completions", json={"prompt": "a", "grammar": "root ::= <|nothing|>"})
    assert response.status_code == 400
    assert "no token '<|nothing|>', at position 9" in response.json()["error"]["message"]
