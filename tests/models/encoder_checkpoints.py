"""Small random encoders with real tokenizers, as transformers saves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from tokenizers import models, pre_tokenizers, processors, trainers

CORPUS = [
    "What is a panda? The panda is a bear of China, black and white.",
    "Hello there, how are you today? It is late, and the bears sleep.",
    "A query, and documents to order by it: relevance is a number.",
]
SIZES = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 24}


def make_encoder(folder: Path, name: str, **fields: Any) -> Any:
    """Save an encoder of the class `name` and the tokenizer of its family; return transformers' model."""
    model_class = getattr(transformers, name)
    tokenizer = _TOKENIZERS[model_class.config_class.model_type]()
    positions = {"max_position_embeddings": 64}
    kind = model_class.config_class.model_type
    own: dict[str, Any] = {
        "roberta": {"type_vocab_size": 1},
        "xlm-roberta": {"type_vocab_size": 1},
        "camembert": {"type_vocab_size": 1},
        "electra": {"embedding_size": 12},
        "distilbert": {"n_layers": 2, "n_heads": 2, "dim": 16, "hidden_dim": 24},
        "deberta-v2": {"type_vocab_size": 2, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
        "modernbert": {"local_attention": 8},
    }.get(kind, {})
    ids = {"pad_token_id": tokenizer.pad_token_id, "bos_token_id": None, "eos_token_id": None}
    sizes = {} if kind == "distilbert" else SIZES
    config = model_class.config_class(vocab_size=len(tokenizer), **sizes, **positions, **own, **ids, **fields)
    torch.manual_seed(1)
    options = {"add_pooling_layer": False} if kind in ("bert", "roberta", "xlm-roberta", "mpnet") else {}
    model = model_class(config, **(options if name.endswith("Model") else {})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if name.endswith("Model"):
        (folder / "1_Pooling").mkdir()
        pooling = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling), "utf-8")
    return model


def _word_pieces(special: list[str], unknown: str) -> dict[str, int]:
    own = tokenizers.Tokenizer(models.WordPiece(unk_token=unknown))
    own.normalizer = tokenizers.normalizers.BertNormalizer()
    own.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    own.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=150, special_tokens=special))
    vocabulary: dict[str, int] = own.get_vocab()
    return dict(sorted(vocabulary.items(), key=lambda item: item[1]))


_BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def _bert() -> Any:
    return transformers.BertTokenizer(vocab=_word_pieces(_BERT, "[UNK]"))


def _mpnet() -> Any:
    special = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]
    return transformers.MPNetTokenizer(vocab=_word_pieces(special, "[UNK]"))


def _byte_pairs(special: list[str]) -> tokenizers.Tokenizer:
    own = tokenizers.Tokenizer(models.BPE())
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = tokenizers.decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    own.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=330, special_tokens=special, initial_alphabet=alphabet)
    )
    return own


def _roberta() -> Any:
    own = _byte_pairs(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    merges = [tuple(pair) for pair in json.loads(own.to_str())["model"]["merges"]]
    return transformers.RobertaTokenizer(vocab=own.get_vocab(), merges=merges)


def _modern_bert() -> Any:
    own = _byte_pairs(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    marks = [(mark, own.token_to_id(mark)) for mark in ("[CLS]", "[SEP]")]
    own.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=marks
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=own,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "attention_mask"],
    )


def _unigram(special: list[str], unknown: str) -> list[tuple[str, float]]:
    own = tokenizers.Tokenizer(models.Unigram())
    own.pre_tokenizer = pre_tokenizers.Metaspace()
    own.train_from_iterator(CORPUS, trainers.UnigramTrainer(vocab_size=120, special_tokens=special, unk_token=unknown))
    return [(piece, score) for piece, score in json.loads(own.to_str())["model"]["vocab"]]


def _xlm_roberta() -> Any:
    vocabulary = _unigram(["<s>", "<pad>", "</s>", "<unk>"], "<unk>")
    return transformers.XLMRobertaTokenizer(vocab=[*vocabulary, ("<mask>", 0.0)])


def _camembert() -> Any:
    vocabulary = _unigram(["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"], "<unk>")
    return transformers.CamembertTokenizer(vocab=[*vocabulary, ("<s>", 0.0), ("</s>", 0.0), ("<mask>", 0.0)])


def _deberta() -> Any:
    vocabulary = _unigram(["[PAD]", "[UNK]", "[CLS]", "[SEP]"], "[UNK]")
    return transformers.DebertaV2Tokenizer(vocab=[*vocabulary, ("[MASK]", 0.0)])


_TOKENIZERS = {
    "bert": _bert,
    "electra": _bert,
    "distilbert": lambda: transformers.DistilBertTokenizer(vocab=_word_pieces(_BERT, "[UNK]")),
    "mpnet": _mpnet,
    "roberta": _roberta,
    "modernbert": _modern_bert,
    "xlm-roberta": _xlm_roberta,
    "camembert": _camembert,
    "deberta-v2": _deberta,
}
