"""Tokenizers, chat templates and streaming detokenisation."""

from .chat_template import ChatTemplate
from .detokenize import Cut, Detokenizer, cut
from .errors import TokenizerError
from .interface import Tokenizer
from .load import load_tokenizer

__all__ = ["ChatTemplate", "Cut", "Detokenizer", "Tokenizer", "TokenizerError", "cut", "load_tokenizer"]
