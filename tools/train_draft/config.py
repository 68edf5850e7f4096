"""Configuration of a training run, written beside the head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ...runtime.models.config import ModelConfig
from ...runtime.models.rope.config import RopeConfig
from ...runtime.speculation.eagle.config import HeadConfig, HeadKind, default_layers


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Hyperparameters of a run."""

    kind: HeadKind | Literal["medusa"] = "eagle"
    num_steps: int = 2000
    tokens_per_step: int = 4096
    num_ahead: int = 1  # head passes per token, each fed the one before (EAGLE-3's training-time test)
    decay: float = 0.8  # of the loss per pass
    optimizer: Literal["adamw", "muon"] = "adamw"
    learning_rate: float = 3e-5
    warmup: int = 50  # steps
    feature_loss: float = 1.0
    token_loss: float = 0.1
    noise: float = 0.2  # of features, times 512 / length
    max_length: int = 1024  # tokens of a sequence; longer ones are cut
    seed: int = 0

    @classmethod
    def for_kind(cls, kind: HeadKind | Literal["medusa"], hidden_size: int, **changes: Any) -> TrainConfig:
        """Return the published recipe with `changes`: EAGLE-1 learns features in one pass, EAGLE-3 tokens in seven
        passes, Medusa the texts' tokens.

        The published learning rate is that of a width of 4096; Adam's scales as one over the width (Yang et al.
        2022, Tensor Programs V, table 3).
        """
        rate = 3e-5 * 4096 / hidden_size
        own: dict[str, Any] = {
            "eagle": {},
            "eagle3": {"num_ahead": 7, "feature_loss": 0.0, "token_loss": 1.0, "noise": 0.0},
            "medusa": {"learning_rate": 1e-3, "feature_loss": 0.0, "token_loss": 1.0, "noise": 0.0},
        }[kind]
        return cls(kind=kind, **({"learning_rate": rate} | own | changes))


def head_config(kind: HeadKind, target: ModelConfig, draft_vocab_size: int, probe: tuple[float, ...]) -> HeadConfig:
    """Return the config of a head as wide as its target's layers."""
    return HeadConfig(
        kind=kind,
        hidden_size=target.hidden_size,
        target_hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size,
        num_heads=target.num_heads,
        num_kv_heads=target.num_kv_heads if target.latent is None else target.num_heads,
        head_dim=target.output_dim,
        norm_eps=target.norm_eps,
        # Scaled rotary embeddings are for lengths that no head is trained on.
        rope=RopeConfig(type="default", theta=target.rope.theta, original_context=target.context_length),
        vocab_size=target.vocab_size,
        draft_vocab_size=draft_vocab_size if kind == "eagle3" else target.vocab_size,
        captures=default_layers(target) if kind == "eagle3" else (target.num_layers,),
        target_probe=probe,
    )
