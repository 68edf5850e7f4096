"""Times what the server does with an image of one megapixel beside transformers' image processor: digests, copies,
messages and places. Prints medians in milliseconds.

python -P bench/serving/picture_requests.py [--pixels 1000] [--rounds 9]
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from PIL import Image
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from ramiform.runtime.frontend.text.pictures import _digest
from ramiform.runtime.protocol.core import Generate
from ramiform.runtime.protocol.sampling import SamplingParams
from ramiform.runtime.tokenizer.child_frames import write_frame
from ramiform.runtime.tokenizer.image_processors import PictureProcessor, placed_pictures
from ramiform.runtime.tokenizer.picture_process import PictureAnswer, PictureLimits, PictureRequest, opened_image

SIDES = {"image_size": 512, "patch_size": 16}  # SmolVLM2's tiles


class Clock:
    """Adds up the seconds of named steps, by round."""

    def __init__(self) -> None:
        self.rounds: defaultdict[str, list[float]] = defaultdict(list)

    def time(self, name: str, work: Any) -> Any:
        began = time.perf_counter()
        result = work()
        self.rounds[name].append(time.perf_counter() - began)
        return result


def through_a_pipe(data: bytes) -> bytes:
    """Send a frame as a child does, and read it as its pool does."""
    source, sink = os.pipe()
    with os.fdopen(sink, "wb") as stream:
        writer = threading.Thread(target=write_frame, args=(stream, data))
        writer.start()
        size = int.from_bytes(os.read(source, 4), "big")
        got = bytearray()
        while len(got) < size:
            got += os.read(source, size - len(got))
        writer.join()
    os.close(source)
    return bytes(got)


def run_round(clock: Clock, processor: PictureProcessor, text: str) -> None:
    data = text.encode()
    limits = PictureLimits(1 << 30, 1 << 30)
    clock.time("own: digest of the file", lambda: _digest(data, b""))
    asked = clock.time("own: request", lambda: msgspec.msgpack.encode(PictureRequest(data, True, b"")))
    clock.time("own: request", lambda: through_a_pipe(asked))
    image = clock.time("Pillow: decode", lambda: opened_image(base64.b64decode(data), limits))
    began = time.perf_counter()
    prepared = processor.prepare(image)
    clock.rounds["own: pixels and their digest"].append(
        time.perf_counter() - began - clock.rounds["transformers: image processor"][-1]
    )
    answer = clock.time("own: answer", lambda: msgspec.msgpack.encode(PictureAnswer(prepared)))
    piped = clock.time("own: answer", lambda: through_a_pipe(answer))
    got = clock.time("own: answer", lambda: msgspec.msgpack.decode(piped, type=PictureAnswer)).prepared
    tokens = [1, *[7] * got.num_features, 2]
    pictures = clock.time("own: places", lambda: placed_pictures([got], tokens, 7))
    made = Generate(rid="a", tokens=tokens, sampling=SamplingParams(max_new_tokens=1), pictures=pictures)
    sent = clock.time("own: message to the core", lambda: msgspec.msgpack.encode(made))
    clock.time("own: message to the core", lambda: msgspec.msgpack.decode(sent, type=Generate))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pixels", type=int, default=1000, help="side of the image")
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    noise = np.random.default_rng(0).integers(0, 256, (arguments.pixels // 8, arguments.pixels // 8, 3), np.uint8)
    file = BytesIO()
    Image.fromarray(noise).resize((arguments.pixels, arguments.pixels)).save(file, "JPEG", quality=90)
    with tempfile.TemporaryDirectory() as folder:
        own = SmolVLMImageProcessorPil(size={"longest_edge": 2048}, max_image_size={"longest_edge": 512})
        own.save_pretrained(folder)
        (Path(folder) / "config.json").write_text(json.dumps({"vision_config": SIDES, "scale_factor": 4}))
        processor = PictureProcessor(Path(folder), "SmolVLMForConditionalGeneration")
    clock = Clock()
    processor.own = TimedProcessor(clock, processor.own)
    for _ in range(arguments.rounds):
        run_round(clock, processor, base64.b64encode(file.getvalue()).decode())
    total = 0.0
    for name, seconds in clock.rounds.items():
        per_round = len(seconds) // arguments.rounds
        sums = [sum(seconds[index * per_round : (index + 1) * per_round]) for index in range(arguments.rounds)]
        median = 1e3 * statistics.median(sums)
        total += median if name.startswith("own") else 0.0
        print(f"{name:32} {median:8.1f} ms")
    print(f"{'own work in all':32} {total:8.1f} ms; file of {len(file.getvalue())} bytes")


class TimedProcessor:
    """An image processor whose calls are timed."""

    def __init__(self, clock: Clock, own: Any) -> None:
        self._clock, self._own = clock, own

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self._clock.time("transformers: image processor", lambda: self._own(*given, **named))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


if __name__ == "__main__":
    main()
