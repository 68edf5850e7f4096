"""Bodies of Ollama's API, and their conversion to a chat request's body. Source: Ollama's API reference.

Options that say how Ollama loads a model are accepted without effect: the server's own settings hold.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, create_model

from ....protocol.errors import RequestError
from ....protocol.sampling import MAX_STOPS, PARAMETERS
from ...api.bodies import Body, ChatOptionsBody, Many, Text, TokenIds, described, example, sampling_fields
from ...api.chat_body import ChatBody
from ...api.chat_messages import MAX_MESSAGES, ContentPart, data_url
from ...api.embeddings import MAX_INPUTS
from ...api.tool_fields import Tool
from ...api.validation import validated

Level = Literal["low", "medium", "high"]
OutputFormat = Literal["", "json"] | dict[str, Any]


def _whole(value: Any) -> Any:
    """Return a number with a point that is whole as an integer: clients in some languages have only such."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]
Off = Annotated[float, Field(ge=1, le=1)]  # of a filter that the sampler does not have
LoadOption = bool | int | float | None
Images = Annotated[Many[Text], described(maxItems=0)]  # in base64; the document leaves them out, as models may


_DRAW = [row.name for row in PARAMETERS.values() if row.stage == "draw" or row.name.startswith("dry_")]
_FIELDS = sampling_fields("openai")
DrawOptions = create_model("DrawOptions", __base__=Body, **{name: _FIELDS[name] for name in _DRAW})


class OllamaOptions(DrawOptions):
    """Sampling options, with Ollama's defaults except `repeat_penalty`, which is off."""

    num_predict: Annotated[Whole, Field(ge=-2, lt=1 << 31)] = -1  # below 1: as many tokens as fit
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.8
    top_k: Annotated[Whole, Field(ge=-1, lt=1 << 31)] = 40  # below 1: all
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.9
    tfs_z: Off | None = None
    seed: Annotated[Whole, Field(ge=-1, lt=1 << 62)] = -1  # -1: drawn
    stop: Annotated[Many[Annotated[Text, described(minLength=1)]], described(maxItems=MAX_STOPS)] = Field(
        default_factory=list
    )
    repeat_penalty: Annotated[float, Field(gt=0, le=2)] = 1.0
    # -1: the penalty covers the whole context; 0: no penalty. Others only without a penalty, as Ollama's default 64.
    repeat_last_n: Annotated[Whole, Field(ge=-1, lt=1 << 31)] = -1
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    mirostat: Literal[0] | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    penalize_newline: Literal[True] | None = None
    num_ctx: Annotated[Whole, Field(ge=1, lt=1 << 31)] | None = None  # the server's limit holds if it is lower
    num_keep: Whole | None = None  # nothing is ever shifted out of the context
    # How Ollama loads a model.
    num_batch: LoadOption = None
    num_gpu: LoadOption = None
    main_gpu: LoadOption = None
    num_thread: LoadOption = None
    numa: LoadOption = None
    low_vram: LoadOption = None
    f16_kv: LoadOption = None
    logits_all: LoadOption = None
    vocab_only: LoadOption = None
    use_mmap: LoadOption = None
    use_mlock: LoadOption = None
    embedding_only: LoadOption = None

    def fields(self) -> dict[str, Any]:
        """Return the fields of a chat body that say the same. Raises RequestError for a penalty of the last tokens."""
        if self.repeat_last_n > 0 and self.repeat_penalty != 1.0:
            raise RequestError(
                f"options.repeat_last_n {self.repeat_last_n}: a penalty covers the whole context (-1), or nothing (0)",
                param="options.repeat_last_n",
            )
        return {
            **{name: getattr(self, name) for name in _DRAW},
            "top_k": self.top_k if self.top_k > 0 else -1,
            "seed": None if self.seed < 0 else self.seed,
            "stop": self.stop,
            "repetition_penalty": self.repeat_penalty if self.repeat_last_n else 1.0,
            "presence_penalty": self.presence_penalty,
            "frequency_penalty": self.frequency_penalty,
        }


class ServedModelBody(Body):
    """Base of bodies that name a model. `name` is its older name."""

    model: Text | None = None
    name: Text | None = None

    @property
    def asked_model(self) -> str | None:
        return self.model or self.name


class AnswerBody(ServedModelBody, ChatOptionsBody):
    """Fields that `/api/chat` and `/api/generate` share."""

    stream: bool = True
    format: OutputFormat | None = None
    options: OllamaOptions = OllamaOptions()
    keep_alive: Text | float | None = None  # the model stays loaded
    think: bool | Level | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0
    # Ollama's defaults are true. Without effect: a prompt that does not fit is an error, and nothing is shifted out.
    truncate: bool | None = None
    shift: bool | None = None

    @property
    def unloads(self) -> bool:
        """Return True if the body asks to unload the model."""
        return self.keep_alive in (0, "0", "0s")

    def chat_body(self, messages: list[dict[str, Any]], tools: list[Tool]) -> ChatBody:
        """Convert to a chat body. Raises RequestError for what a chat body cannot have."""
        options: dict[str, Any] = {}
        if self.think is not None:
            options["enable_thinking"] = self.think is not False
        if isinstance(self.think, str):
            options["reasoning_effort"] = self.think
        is_prefilled = messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]
        values: dict[str, Any] = dict(
            messages=messages,
            tools=tools,
            response_format=self._response_format(),
            stream=self.stream,
            logprobs=self.logprobs or self.top_logprobs > 0,
            top_logprobs=self.top_logprobs,
            chat_template_kwargs=options,
            continue_final_message=is_prefilled,
            **self.options.fields(),
        )
        return validated(ChatBody, values)

    def _response_format(self) -> dict[str, Any] | None:
        if not self.format and self.format != {}:
            return None
        if self.format == "json":
            return {"type": "json_object"}
        return {"type": "json_schema", "json_schema": {"name": "output", "schema": self.format, "strict": True}}


class OllamaFunctionCall(Body):
    name: Text
    arguments: dict[str, Any] = Field(default_factory=dict)
    index: int | None = None
    description: Text | None = None


class OllamaToolCall(Body):
    function: OllamaFunctionCall
    id: Text | None = None
    type: Literal["function"] | None = None


class OllamaMessage(Body):
    role: Literal["system", "user", "assistant", "tool"]
    content: Text = ""
    thinking: Text | None = None
    tool_calls: Many[OllamaToolCall] | None = None
    tool_name: Text | None = None
    tool_call_id: Text | None = None
    name: Text | None = None
    images: Images | None = None


class OllamaChatBody(AnswerBody):
    """Body of `/api/chat`. Without messages it asks whether the model is loaded."""

    model_config = example(
        {
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
            "options": {"num_predict": 16, "temperature": 0},
        }
    )
    messages: Annotated[list[OllamaMessage], Field(fail_fast=True, max_length=MAX_MESSAGES)] = Field(
        default_factory=list
    )
    tools: Many[Tool] = Field(default_factory=list)

    def chat(self) -> ChatBody:
        """Convert to a chat body. Raises RequestError naming the message that the model cannot read."""
        messages: list[dict[str, Any]] = []
        unanswered: list[tuple[str, str]] = []  # id and function of the calls that wait for a result
        for index, message in enumerate(self.messages):
            where = f"messages[{index}]"
            content = _with_images(message.content, message.images, f"{where}.images")
            given: dict[str, Any] = {"role": message.role, "content": content}
            if message.name or message.tool_name:
                given["name"] = message.name or message.tool_name
            if message.thinking is not None:
                given["reasoning_content"] = message.thinking
            if message.tool_calls:
                if message.role != "assistant":
                    raise RequestError(f"{where} has tool_calls: only an assistant calls tools", param=where)
                calls = [_call(call, f"call_{index}_{number}") for number, call in enumerate(message.tool_calls)]
                unanswered = [(call["id"], call["function"]["name"]) for call in calls]
                given["tool_calls"] = calls
            if message.role == "tool":
                given["tool_call_id"] = message.tool_call_id or _answered(unanswered, message.tool_name, index)
            messages.append(given)
        return self.chat_body(messages, self.tools)


class OllamaGenerateBody(AnswerBody):
    """Body of `/api/generate`. Without a prompt it asks whether the model is loaded."""

    model_config = example({"prompt": "The capital of France is", "options": {"num_predict": 8, "temperature": 0}})
    prompt: Text = ""
    system: Text = ""
    context: TokenIds = Field(default_factory=list)
    raw: bool = False
    template: Literal[""] | None = None
    suffix: Literal[""] | None = None
    images: Images | None = None

    def chat(self) -> ChatBody:
        """Convert to a chat body of one turn. Raises RequestError for fields that exclude one another."""
        if self.raw and (self.system or self.context):
            given = "system" if self.system else "context"
            raise RequestError(f"a raw prompt has no {given}: put it into the prompt", param=given)
        system = [{"role": "system", "content": self.system}] if self.system else []
        if self.raw and self.images:
            raise RequestError("a raw prompt has no images: leave raw out", param="images")
        content = _with_images(self.prompt, self.images, "images")
        return self.chat_body([*system, {"role": "user", "content": content}], [])


class OllamaEmbedBody(ServedModelBody):
    """Body of `/api/embed`."""

    model_config = example({"input": ["A cat sat on the mat.", "Stocks fell."]})
    input: Text | Annotated[Many[Text], described(minItems=1, maxItems=MAX_INPUTS)]
    truncate: bool = True
    dimensions: Annotated[int, Field(ge=1)] | None = None
    options: OllamaOptions = OllamaOptions()
    keep_alive: Text | float | None = None


class OllamaEmbeddingsBody(ServedModelBody):
    """Body of `/api/embeddings`, the older route."""

    model_config = example({"prompt": "A cat sat on the mat."})
    prompt: Annotated[Text, described(minLength=1)]
    options: OllamaOptions = OllamaOptions()
    keep_alive: Text | float | None = None


class OllamaShowBody(ServedModelBody):
    """Body of `/api/show`."""

    model_config = example({"verbose": False})
    verbose: bool = False


class OllamaPullBody(ServedModelBody):
    """Body of `/api/pull`."""

    model_config = example({"stream": False})
    stream: bool = True
    insecure: bool = False


def _with_images(text: str, images: list[str] | None, where: str) -> str | list[ContentPart]:
    """Return a content with images before its text, as Ollama puts them."""
    if not images:
        return text
    parts = [ContentPart.of_image(data_url(image), f"{where}[{index}]") for index, image in enumerate(images)]
    return [*parts, *([ContentPart(type="text", text=text)] if text else [])]


def _call(call: OllamaToolCall, made_id: str) -> dict[str, Any]:
    arguments = json.dumps(call.function.arguments, ensure_ascii=False)
    return {
        "id": call.id or made_id,
        "type": "function",
        "function": {"name": call.function.name, "arguments": arguments},
    }


def _answered(unanswered: list[tuple[str, str]], name: str | None, index: int) -> str:
    """Take the first call of that name, else the first call at all, from `unanswered`; return its id."""
    if not unanswered:
        return f"call_{index}"
    named = [call for call in unanswered if call[1] == name]
    call = named[0] if named else unanswered[0]
    unanswered.remove(call)
    return call[0]
