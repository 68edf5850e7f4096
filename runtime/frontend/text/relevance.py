"""Probabilities of labels of a whole text: by a checkpoint's classification head, or by "yes" and "no" after a prompt.

Knows the prompts of rerankers and the file of a head; the core computes heads of encoders. Knows nothing of requests'
bodies.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from ...protocol.config import RerankerName
from ...protocol.core import RequestOptions
from ...protocol.errors import RequestError
from ...protocol.sampling import LogprobParams, SamplingParams
from ...tokenizer.encoder import EncodedTexts
from .embedding import embed
from .encoding import PromptSegment
from .generation import Generator, Prompt

_HEADS = ("score.weight", "classifier.weight")
_NUMPY_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


class PromptForm(NamedTuple):
    """Prompt of a reranker, with the tokens whose probabilities are read after it: of a match, and of none."""

    text: str
    match: str
    mismatch: str
    instruction: str = ""


FORMS = {
    # Source: the model card of Qwen3-Reranker.
    "qwen3": PromptForm(
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
        "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
        "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        "yes",
        "no",
        _INSTRUCTION,
    ),
    # Source: FlagEmbedding's rerankers on language models.
    "bge": PromptForm(
        "A: {query}\nB: {document}\n{instruction}",
        "Yes",
        "No",
        "Given a query A and a passage B, determine whether the passage contains an answer to the query by providing a "
        "prediction of either 'Yes' or 'No'.",
    ),
}


class Labelled(NamedTuple):
    """Logits of labels for one text: of a head, or the log-probabilities of two tokens. `tokens` are its prompt's."""

    logits: list[float]
    tokens: int
    cached: int

    def probabilities(self, *, independent: bool) -> list[float]:
        """Return the labels' probabilities: by softmax, or each by itself."""
        if independent or len(self.logits) == 1:
            return [_sigmoid(value) for value in self.logits]
        largest = max(self.logits)
        values = [math.exp(value - largest) for value in self.logits]
        return [value / math.fsum(values) for value in values]


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value >= 0 else math.exp(value) / (1 + math.exp(value))


@dataclass(frozen=True)
class Head:
    """Classification head of a checkpoint: float32 [labels, hidden size], applied to the last token's final state."""

    weight_LE: NDArray[np.float32] | None  # None: it is an encoder's, which the core computes
    labels: tuple[str, ...]
    independent: bool  # several labels may hold together


class RelevanceModel:
    """Asks the served model for logits of labels: of texts, or of a query with a document."""

    def __init__(self, generator: Generator, reranker: RerankerName) -> None:
        """`reranker` names the prompt of a query and a document; "auto" goes by the model's name."""
        self._generator = generator
        self._setting = reranker

    @cached_property
    def head(self) -> Head | None:
        """The checkpoint's head; None without one. Call when the model is loaded."""
        info = self._generator.core.require_info()
        if info.encoder == "head":
            return Head(None, info.labels, info.independent_labels)
        return read_head(Path(info.path)) if info.is_classifier else None

    @cached_property
    def form(self) -> PromptForm | None:
        """The prompt of a query and a document; None: the model is not known to be a reranker of that kind.

        Raises RequestError for an encoder that was given a prompt.
        """
        if (info := self._generator.core.require_info()).encoder is not None:
            if self._setting not in ("auto", "none"):
                raise RequestError(
                    f"--reranker {self._setting} is a prompt of language models, and {info.architecture} is an "
                    "encoder, whose tokenizer joins pairs of texts: start the server without it",
                    param="model",
                )
            return None
        if self._setting != "auto":
            return FORMS.get(self._setting)
        name = f"{info.name} {info.path}".lower()
        if "rerank" not in name:
            return None
        return FORMS["qwen3"] if "qwen3" in name else FORMS["bge"] if "bge" in name else None

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the labels of `classify`. Raises RequestError for a model that has none."""
        if self.head is not None:
            return self.head.labels
        if self.form is not None:
            return self.form.match, self.form.mismatch
        raise RequestError(
            "this model has no classification head, and is no reranker: serve a checkpoint of a class "
            "...ForSequenceClassification, or name the prompt of a reranker with --reranker",
            param="model",
            code="not_supported",
        )

    @property
    def independent(self) -> bool:
        """True if several labels may hold together."""
        return self.head is not None and self.head.independent

    def check_pairs(self) -> None:
        """Raise RequestError unless the model gives a query and a document one score."""
        if self.form is None and len(self.labels) != 1:
            raise RequestError(
                f"this model has {len(self.labels)} labels, and a score of a pair needs one: see /classify",
                param="model",
                code="not_supported",
            )

    async def pair(self, query: str, document: str, instruction: str | None, param: str) -> EncodedTexts:
        """Return the token ids of a query with a document. What a client wrote names no special tokens."""
        encoder, form = self._generator.encoder, self.form
        if form is None:
            if instruction is not None:
                raise RequestError("this model's prompt has no instruction", param="instruction")
            if self._generator.core.require_info().encoder is not None:
                return await encoder.encode_marked(query, document, trusted=False, param=param)
            first = await encoder.encode_async([PromptSegment(query, trusted=False)], at_start=True, param=param)
            rest = await encoder.encode_async([PromptSegment(document, trusted=False)], at_start=False, param=param)
            return EncodedTexts([*first, *rest], [])
        values = {"query": query, "document": document, "instruction": instruction or form.instruction}
        segments = []
        for index, part in enumerate(_parts(form.text)):
            is_text = index % 2 == 0
            segments.append(PromptSegment(part if is_text else values[part], trusted=is_text))
        return EncodedTexts(await encoder.encode_async(segments, at_start=True, param=param), [])

    async def logits(self, texts: Sequence[EncodedTexts], options: RequestOptions) -> list[Labelled]:
        """Return the labels' logits after each text. Raises RamiformError."""
        prompts, core = [text.ids for text in texts], self._generator.core
        if (head := self.head) is None:
            return await self._token_logits(prompts, options)
        if head.weight_LE is None:
            found = await embed(core, prompts, "head", options, [text.types for text in texts])
            return [Labelled(each.values.tolist(), each.prompt_tokens, 0) for each in found]
        found = await embed(core, prompts, "last", options)
        states_PE = np.array([each.values for each in found], np.float32)
        logits_PL = (states_PE @ head.weight_LE.T).tolist()
        return [Labelled(logits, each.prompt_tokens, 0) for logits, each in zip(logits_PL, found, strict=True)]

    async def _token_logits(self, prompts: Sequence[list[int]], options: RequestOptions) -> list[Labelled]:
        asked = LogprobParams(of=self._label_tokens)
        sampling = SamplingParams(max_new_tokens=1, temperature=0.0, seed=0)
        found = []
        with ExitStack() as stack:
            samples = [
                stack.enter_context(
                    self._generator.start(
                        Prompt(
                            tokens=tokens, sampling=sampling, options=msgspec.structs.replace(options, logprobs=asked)
                        )
                    )
                )[0]
                for tokens in prompts
            ]
            for sample in samples:
                sequence = (await sample.result()).sequence
                assert sample.logprobs is not None
                found.append(Labelled(list(sample.logprobs[0].of), sequence.prompt_tokens, sequence.cached_tokens))
        return found

    @cached_property
    def _label_tokens(self) -> tuple[int, ...]:
        tokens = []
        for label in self.labels:
            ids = self._generator.tokenizer.encode(label, parse_special=False, continues=True)
            if len(ids) != 1:
                raise RequestError(f"{label!r} is no token of this model: it is no such reranker", param="model")
            tokens.append(ids[0])
        return tuple(tokens)


def _parts(text: str) -> list[str]:
    """Split a prompt's form into texts and, between them, names."""
    parts: list[str] = []
    for part in text.split("{"):
        name, closed, rest = part.partition("}")
        parts += [name, rest] if closed else [part]
    return parts


def read_head(folder: Path) -> Head:
    """Read the classification head of the checkpoint in a directory. Raises RequestError if it stores none."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="numpy") as tensors:  # it checks the header, which is read below
            name = next((name for name in _HEADS if name in tensors.keys()), None)  # noqa: SIM118  # it is no mapping
        if name is not None:
            weight_LE = _read_float32(file, name)
            return Head(weight_LE, _label_names(config, len(weight_LE)), _is_independent(config))
    raise RequestError(f"{folder} stores no tensor {' or '.join(_HEADS)}", param="model")


def _read_float32(file: Path, name: str) -> NDArray[np.float32]:
    """Read a tensor, bfloat16 too, which safetensors gives to torch only."""
    with file.open("rb") as stored:
        size = int.from_bytes(stored.read(8), "little")
        entry = json.loads(stored.read(size))[name]
        start, end = entry["data_offsets"]
        stored.seek(8 + size + start)
        data, dtype = stored.read(end - start), entry["dtype"]
    if dtype == "BF16":
        numbers = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    elif dtype in _NUMPY_TYPES:
        numbers = np.frombuffer(data, _NUMPY_TYPES[dtype]).astype(np.float32)
    else:
        raise RequestError(f"a classification head of {dtype} is not supported", param="model")
    return numbers.reshape(entry["shape"])


def _label_names(config: dict[str, object], count: int) -> tuple[str, ...]:
    names = config.get("id2label")
    known = names if isinstance(names, dict) else {}
    return tuple(str(known.get(str(index), f"LABEL_{index}")) for index in range(count))


def _is_independent(config: dict[str, object]) -> bool:
    return config.get("problem_type") == "multi_label_classification"
