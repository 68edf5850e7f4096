"""Answers that show the JSON of a call and are none, for a client that offers `get_weather` and `search`."""

_CALL = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
_PRETTY = '{\n  "name": "get_weather",\n  "arguments": {\n    "city": "Paris"\n  }\n}'

TEXTS = [
    # explanations around it
    f"To ask for the weather, the model writes {_CALL} and waits for the result.",
    f"{_CALL} is the call that I would write.",
    f"{_CALL}\n\nThis calls the tool `get_weather` with the city Paris.",
    f"```json\n{_PRETTY}\n```\n\nThe object has a name and arguments.",
    f"The tool is called like this:\n\n```json\n{_PRETTY}\n```\n\nThen the server answers.",
    f"First I read the documentation. Then I write the call:\n```json\n{_CALL}\n```\nand that is all.",
    f"There are two steps. First, ask for the weather. {_CALL}",
    f"1. Write {_CALL}\n2. Wait.",
    f"- `{_CALL}`\n- `search`",
    f"`{_CALL}`",
    f'"{_CALL}"',
    f"> {_CALL}",
    f"# Calls\n\n```json\n{_CALL}\n```",
    # examples in prose
    f"For example:\n{_CALL}",
    f"Here is an example of a call: {_CALL}",
    f"Here is what a call looks like:\n```json\n{_CALL}\n```",
    f"A call could be written as:\n```json\n{_CALL}\n```",
    f"The format of a call:\n```\n{_CALL}\n```",
    f"You would call the tool so:\n\n{_CALL}",
    f"e.g.\n{_CALL}",
    f"This is the syntax:\n```json\n{_CALL}\n```",
    f"I already called it:\n{_CALL}",
    # code blocks among text
    f"Python first:\n```python\nprint(1)\n```\nThen JSON:\n```json\n{_CALL}\n```",
    f"```python\ncall = {_CALL}\n```",
    f"```json\n{_CALL}\n```\n```python\nprint('done')\n```",
    f"```js\nconst call = {_CALL};\n```",
    f"```json\n{_CALL}\n```\nDone.",
    # JSON that was asked for as the answer
    '{"city": "Paris", "temperature": 20}',
    '{"name": "Paris", "arguments": ["for", "against"]}',
    '{"name": "Ann", "age": 30}',
    '[{"name": "Ann"}, {"name": "Bob"}]',
    '{"name": "get_weather", "description": "Get the weather.", "parameters": {"type": "object", "properties": {}}}',
    '{"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}',
    '{"type": "function", "function": {"name": "get_weather", "description": "d", "parameters": {"city": "Paris"}}}',
    # calls of other tools, and with arguments that do not fit
    '{"name": "get_wheather", "arguments": {"city": "Paris"}}',
    '{"name": "get_weather", "arguments": {"town": "Paris"}}',
    '{"name": "get_weather", "arguments": {"city": 75}}',
    '{"name": "get_weather", "arguments": {}}',
    '{"name": "get_weather", "arguments": {"city": "Paris"}, "result": "rain"}',
    f'[{_CALL}, {{"name": "nobody", "arguments": {{}}}}]',
]
