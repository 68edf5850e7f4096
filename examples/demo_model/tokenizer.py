"""The model's own byte-level BPE tokenizer and its chat template.

Words that begin with a capital, and digits, never share a token with the space before them: a name and a number are the
same tokens in a sentence, in a JSON string and in brackets, so that a small model can copy them.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from ramiform.examples.demo_model.corpus.case import ASSISTANT, BOS, CALL, CALL_END, END, EOS, PAD, SYSTEM, TOOL, USER
from ramiform.examples.demo_model.corpus.mix import cases

SPECIAL = [BOS, EOS, PAD, SYSTEM, USER, ASSISTANT, TOOL, END]
VISIBLE = [CALL, CALL_END]  # added tokens too, but part of the text: decoding keeps them
PIECES = r"\n|\p{N}| ?[\p{Ll}\p{Lo}\p{Lm}\p{Lt}]+|\p{Lu}+[\p{Ll}]*| ?[^\s\p{L}\p{N}]+|[^\S\n]+"

CHAT_TEMPLATE = """\
{{- bos_token }}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content or '' %}
    {%- set turns = messages[1:] %}
{%- else %}
    {%- set system = '' %}
    {%- set turns = messages %}
{%- endif %}
{%- if system or tools %}
    {{- '<|system|>\\n' + system }}
    {%- if tools %}
        {{- ('\\n\\n' if system else '') + 'Tools:' }}
        {%- for tool in tools %}
            {%- set f = tool.function if tool.function is defined else tool %}
            {{- '\\n{"name": ' + (f.name | tojson) + ', "description": ' + ((f.description or '') | tojson) }}
            {{- ', "parameters": {' }}
            {%- for name, spec in ((f.parameters or {}).properties or {}).items() %}
                {{- (name | tojson) + ': ' + ((spec.type or 'string') | tojson) + ('' if loop.last else ', ') }}
            {%- endfor %}
            {{- '}}' }}
        {%- endfor %}
    {%- endif %}
    {{- '<|end|>\\n' }}
{%- endif %}
{%- for message in turns %}
    {{- '<|' + message.role + '|>\\n' + (message.content or '') }}
    {%- for call in (message.tool_calls or []) %}
        {%- set f = call.function if call.function is defined else call %}
        {{- '\\n' if message.content or not loop.first else '' }}
        {{- '<tool_call>\\n{"name": ' + (f.name | tojson) + ', "arguments": ' }}
        {{- f.arguments if f.arguments is string else (f.arguments | tojson) }}
        {{- '}\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>\\n' }}
{%- endif %}"""


def train_tokenizer(vocab_size: int, seed: int, num_documents: int = 40_000) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=SPECIAL + VISIBLE,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    texts = (case.prompt + case.answer for case in itertools.islice(cases(seed), num_documents))
    tokenizer.train_from_iterator((_without_marks(text) for text in texts), trainer)
    tokenizer = _visible(tokenizer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, out: Path, context: int) -> None:
    tokenizer.save(str(out / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        "padding_side": "left",
        "chat_template": CHAT_TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def _without_marks(text: str) -> str:
    for mark in SPECIAL + VISIBLE:
        text = text.replace(mark, "\n")
    return text


def _visible(tokenizer: Tokenizer) -> Tokenizer:
    """Make added tokens non-special: `skip_special_tokens` would hide tool calls otherwise."""
    state = json.loads(tokenizer.to_str())
    for token in state["added_tokens"]:
        token["special"] = token["content"] not in VISIBLE
    return Tokenizer.from_str(json.dumps(state))
