"""Our own work for a picture beside transformers' image processor: bytes, digest, messages, ids, inputs of the tower.

    python -P bench/serving/pictures.py [--side 1024] [--repeat 9] [--out FILE]

A picture of random colours goes through `PictureProcessor.prepare`, to the core as a message, and into a row. Medians
of processor time; "transformers" is the call of the image processor inside it, with the published settings of each
model.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import msgspec
import numpy as np
import typer
from PIL import Image
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from ramiform.bench.harness import Out, Repeat, interleaved, report, table
from ramiform.runtime.protocol.core import Generate
from ramiform.runtime.protocol.sampling import SamplingParams
from ramiform.runtime.protocol.wire import encode
from ramiform.runtime.scheduler.rows.pictures import row_pictures, with_ids
from ramiform.runtime.tokenizer.image_processors import PictureProcessor, placed_pictures

TILES = {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}}
MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "Qwen2_5_VL": (Qwen2VLImageProcessorPil(), {}),
    "Gemma3": (Gemma3ImageProcessorPil(size={"height": 896, "width": 896}), {"mm_tokens_per_image": 256}),
    "SmolVLM": (
        SmolVLMImageProcessorPil(**TILES),
        {"vision_config": {"image_size": 512, "patch_size": 16}, "scale_factor": 4},
    ),
}


def processor_of(name: str, folder: Path) -> PictureProcessor:
    """Return the processor of a model's settings, written to `folder`."""
    processor, config = MODELS[name]
    folder.mkdir()
    processor.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))
    return PictureProcessor(folder, f"{name}ForConditionalGeneration")


def play(processor: PictureProcessor, image: Image.Image) -> dict[str, Any]:
    """Return the seconds of each part for one picture, and its sizes."""
    inside: list[float] = []
    whole, clock = processor.own, time.thread_time

    def call(*arguments: Any, **named: Any) -> Any:
        start = clock()
        output = whole(*arguments, **named)
        inside.append(clock() - start)
        return output

    class Timed:
        def __getattr__(self, name: str) -> Any:
            return getattr(whole, name)

        __call__ = staticmethod(call)

    processor.own = Timed()
    start = clock()
    prepared = processor.prepare(image)
    took = clock() - start - inside[0]
    processor.own, tokens, start = whole, [7] * prepared.num_features, clock()
    [picture] = placed_pictures([prepared], tokens, 7)
    data = encode(Generate(rid="r", tokens=tokens, sampling=SamplingParams(), pictures=[picture]))
    message = msgspec.msgpack.decode(data, type=Generate)
    with_ids(tokens, message.pictures)
    row_pictures(message.pictures, 0, len(tokens))
    return {"prepare": took, "to the core": clock() - start, "transformers": inside[0], "bytes": len(picture.pixels),
            "tokens": len(tokens)}  # fmt: skip


def main(
    side: Annotated[int, typer.Option(help="of the picture, in pixels")] = 1024, repeat: Repeat = 9, out: Out = None
) -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8))
    with TemporaryDirectory() as folder:
        ways = {name: processor_of(name, Path(folder) / name) for name in MODELS}
        found = interleaved(repeat, {name: lambda _, own=own: play(own, image) for name, own in ways.items()})  # type: ignore[misc]
    rows = []
    for name, rounds in found.items():
        parts = {part: statistics.median(each[part] for each in rounds) for part in rounds[0]}
        own = statistics.median(each["prepare"] + each["to the core"] for each in rounds)
        rows.append(
            {"model": name, "tokens": int(parts["tokens"]), "MB": round(parts["bytes"] / 1e6, 1)}
            | {f"{part}, ms": round(1e3 * parts[part], 1) for part in ("transformers", "prepare", "to the core")}
            | {"own work, ms": round(1e3 * own, 1)}
        )
    report(f"A picture of {side} x {side}", table(rows), out=out)


if __name__ == "__main__":
    typer.run(main)
