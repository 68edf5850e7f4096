"""Training of Medusa heads on a frozen target (Medusa-1): head i learns the token i + 2 places after each hidden state.

Legend: B texts, T tokens of the longest, n chosen places, E hidden size, V vocabulary.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from ...runtime.models.decoder import Decoder
from ...runtime.speculation.medusa import FILES
from .losses import Losses


def initial_medusa(num_heads: int, target: Decoder) -> dict[str, torch.Tensor]:
    """Return heads of one block, by the names that Medusa's own files have, as float32 on the target's device.

    A block begins as the identity, and a head's logits as the target's: as the paper has it.
    """
    E = target.config.hidden_size
    found: dict[str, torch.Tensor] = {}
    for head in range(num_heads):
        found[f"{head}.0.linear.weight"] = torch.zeros(E, E, device=target.device)
        found[f"{head}.0.linear.bias"] = torch.zeros(E, device=target.device)
        found[f"{head}.1.weight"] = target.parameters.dense_head().detach().float().clone()
    return found


def medusa_losses(
    heads: dict[str, torch.Tensor],
    ids_BT: torch.Tensor,
    weights_BT: torch.Tensor,
    final_BTE: torch.Tensor,
    decay: float,
) -> Losses:
    """Compute the cross-entropy of each head, `decay` to the power of its place; `weights_BT` are the tokens'
    weights."""
    total = torch.zeros((), device=ids_BT.device)
    agreement = []
    for head in range(len(heads) // 3):
        ahead = head + 2
        weights_n = weights_BT[:, ahead:].reshape(-1)
        chosen_n = torch.nonzero(weights_n).flatten()
        if len(chosen_n) == 0:
            break
        hidden_nE = final_BTE[:, :-ahead].reshape(-1, final_BTE.shape[-1])[chosen_n]
        wanted_n = ids_BT[:, ahead:].reshape(-1)[chosen_n]
        block = F.linear(hidden_nE, heads[f"{head}.0.linear.weight"], heads[f"{head}.0.linear.bias"])
        logits_nV = F.linear(hidden_nE + F.silu(block), heads[f"{head}.1.weight"]).float()
        loss_n = F.cross_entropy(logits_nV, wanted_n, reduction="none") * weights_n[chosen_n]
        total = total + decay**head * loss_n.sum() / weights_n.sum()
        agreement.append((logits_nV.argmax(-1) == wanted_n).float().mean().item())
    return Losses(total, agreement)


def save_medusa(heads: dict[str, torch.Tensor], base: str, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write config.json and the heads' file into a folder, which is created; the weights are replaced atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"medusa_num_heads": len(heads) // 3, "medusa_num_layers": 1, "base_model_name_or_path": base}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    part = folder / f"{FILES[0]}.part"
    tensors = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in heads.items()}
    save_file(tensors, part, metadata={"format": "pt"})
    part.replace(folder / FILES[0])
