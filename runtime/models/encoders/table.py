"""The encoders that are served, by the class in `architectures`. Imports neither torch nor transformers."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ..config_fields import read_json_object


class EncoderFamily(NamedTuple):
    """A class of transformers, and what it needs besides its name."""

    model_type: str  # of config.json
    gives_states: bool = False  # its output are states of tokens, which are pooled to an embedding; else labels' logits
    counts_from_padding: bool = False  # positions begin behind the id of the padding token
    has_pooler: bool = False  # a layer over the first state, which embeddings do without


ENCODERS = {
    "BertForSequenceClassification": EncoderFamily("bert"),
    "RobertaForSequenceClassification": EncoderFamily("roberta", counts_from_padding=True),
    "XLMRobertaForSequenceClassification": EncoderFamily("xlm-roberta", counts_from_padding=True),
    "CamembertForSequenceClassification": EncoderFamily("camembert", counts_from_padding=True),
    "DistilBertForSequenceClassification": EncoderFamily("distilbert"),
    "ElectraForSequenceClassification": EncoderFamily("electra"),
    "DebertaV2ForSequenceClassification": EncoderFamily("deberta-v2"),
    "ModernBertForSequenceClassification": EncoderFamily("modernbert"),
    "BertModel": EncoderFamily("bert", gives_states=True, has_pooler=True),
    "RobertaModel": EncoderFamily("roberta", gives_states=True, counts_from_padding=True, has_pooler=True),
    "XLMRobertaModel": EncoderFamily("xlm-roberta", gives_states=True, counts_from_padding=True, has_pooler=True),
    "MPNetModel": EncoderFamily("mpnet", gives_states=True, counts_from_padding=True, has_pooler=True),
    "DistilBertModel": EncoderFamily("distilbert", gives_states=True),
    "ModernBertModel": EncoderFamily("modernbert", gives_states=True),
}


def encoder_class(path: Path) -> str | None:
    """Return the class of the encoder in directory `path`; None: the checkpoint is none of the table's.

    Raises CheckpointError for a config.json that is not readable.
    """
    file = path / "config.json"
    if not file.is_file():  # such as a GGUF file
        return None
    names = read_json_object(file).get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    return name if isinstance(name, str) and name in ENCODERS else None
