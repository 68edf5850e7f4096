"""Writes EAGLE-3 heads with the library `speculators`: `python write_speculators.py OUT [NAME ...]`."""

from __future__ import annotations

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors.torch import save_file
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from tiny_models import SIZES, keep
from transformers import LlamaConfig

KINDS = {"eagle3": {}, "eagle3_norm_before_residual": {"norm_before_residual": True}}
DRAFT_VOCAB, HIDDEN = 20, 16


def write(name: str, out: Path) -> None:
    layer = {**SIZES, "hidden_size": HIDDEN, "intermediate_size": 32, "num_attention_heads": 2, "head_dim": 8}
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=LlamaConfig(**layer),
        draft_vocab_size=DRAFT_VOCAB,
        eagle_aux_hidden_state_layer_ids=[1, 2, 3],
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=3)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
        **KINDS[name],
    )
    torch.manual_seed(7)
    model = Eagle3DraftModel(config).float()
    chosen = torch.arange(SIZES["vocab_size"])[torch.randperm(SIZES["vocab_size"])[:DRAFT_VOCAB].sort().values]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(
                torch.randn_like(parameter) * (0.3 if parameter.dim() > 1 else 0.1) + (parameter.dim() == 1)
            )
        model.d2t.copy_(chosen - torch.arange(DRAFT_VOCAB))
        model.t2d.copy_(torch.zeros(SIZES["vocab_size"], dtype=torch.bool).index_fill(0, chosen, True))
    ids, captured = torch.arange(6)[None] * 3 + 2, torch.randn(1, 6, 3 * HIDDEN)
    places = torch.arange(6)[None]
    mask = torch.full((6, 6), float("-inf")).triu(1)[None, None]
    with torch.inference_mode():
        hidden = torch.cat((model.embed_tokens(ids), model.fc(captured)), dim=-1)
        model.layers[0].self_attn.config._attn_implementation = "eager"
        rotary = model.rotary_emb(hidden, places)
        estimate = model.layers[0](hidden, attention_mask=mask, position_ids=places, position_embeddings=rotary)
        estimate = estimate[0] if isinstance(estimate, tuple) else estimate
        logits = model.lm_head(model.norm(estimate))
    with tempfile.TemporaryDirectory() as scratch:
        model.save_pretrained(scratch)
        (Path(scratch) / "extra").mkdir()
        judge = {"ids": ids[0], "captured": captured[0], "estimate": estimate[0], "logits": logits[0]}
        save_file({key: value.contiguous().clone() for key, value in judge.items()}, Path(scratch) / "run.safetensors")
        keep(f"speculators-{name}", Path(scratch), {}, out, tool=f"speculators {version('speculators')}")


if __name__ == "__main__":
    for name in sys.argv[2:] or KINDS:
        write(name, Path(sys.argv[1]))
