"""Times groups of samples of one prompt by vLLM's own class. `group.py` runs it, with the Python that has vLLM.

    PYTHON -P vllm_group.py MODEL GROUP NEW < prompts.json

Prompts are a JSON list of lists of token ids; the first warms up. Prints the seconds of each of the others.
"""

from __future__ import annotations

import json
import os
import sys
import time


def main() -> None:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    from vllm import LLM, SamplingParams

    folder, group, new = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    prompts = json.load(sys.stdin)
    engine = LLM(folder, dtype="bfloat16", max_model_len=max(map(len, prompts)) + new + 64, block_size=32)
    sampling = SamplingParams(n=group, temperature=1.0, max_tokens=new, ignore_eos=True, logprobs=0)
    for number, ids in enumerate(prompts):
        began = time.perf_counter()
        [found] = engine.generate({"prompt_token_ids": ids}, sampling, use_tqdm=False)
        seconds = time.perf_counter() - began
        assert [len(sample.token_ids) for sample in found.outputs] == group * [new]
        if number:
            print(f"seconds {seconds}", flush=True)


if __name__ == "__main__":
    main()
