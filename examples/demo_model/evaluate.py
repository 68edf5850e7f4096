"""Accuracy of the model by skill, on held-out cases: names, numbers and wordings that training never used.

    python examples/demo_model/evaluate.py runtime/shipped_model

Greedy decoding with `transformers`; an answer counts when it equals the expected text. In ReAct cases the two tools
really run, and every action must be the expected one.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import re
from collections import defaultdict
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # the machine may be shared; spinning threads would starve others

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer, LlamaForCausalLM

from ramiform.examples.demo_model.corpus.case import END, EOS, Case
from ramiform.examples.demo_model.corpus.mix import SKILLS, cases, cases_of
from ramiform.examples.demo_model.corpus.trace import calculate
from ramiform.examples.demo_model.corpus.world import lookup

ACTION = re.compile(r"Action \d+: (?:(lookup|finish)\[(.*)\]|(calculate)\((.*)\))$")


class Greedy:
    """Greedy decoding of many prompts at once."""

    def __init__(self, path: Path, batch_size: int) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self.model = LlamaForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.batch_size = batch_size
        self.ends = self.tokenizer.convert_tokens_to_ids([EOS, END])
        self.newline = self.tokenizer.encode("\n", add_special_tokens=False)[0]

    @torch.inference_mode()
    def __call__(self, prompts: list[str], one_line: bool, max_tokens: int = 160) -> list[str]:
        """Return one continuation per prompt, without its end marker."""
        ends = [*self.ends, self.newline] if one_line else self.ends
        order = sorted(range(len(prompts)), key=lambda n: len(prompts[n]))
        texts = [""] * len(prompts)
        for start in range(0, len(order), self.batch_size):
            chunk = order[start : start + self.batch_size]
            inputs = self.tokenizer([prompts[n] for n in chunk], return_tensors="pt", padding=True)
            output = self.model.generate(
                input_ids=inputs.input_ids,
                attention_mask=inputs.attention_mask,
                do_sample=False,
                max_new_tokens=max_tokens,
                eos_token_id=ends,
                pad_token_id=self.tokenizer.pad_token_id,
            )
            for n, ids in zip(chunk, output[:, inputs.input_ids.shape[1] :].tolist(), strict=True):
                texts[n] = self.tokenizer.decode(
                    list(itertools.takewhile(lambda i: i not in ends, ids)), skip_special_tokens=True
                )
        return texts

    @torch.inference_mode()
    def perplexity(self, documents: list[str]) -> float:
        """Return the perplexity per token over whole documents."""
        loss, count = 0.0, 0
        for document in documents:
            ids = torch.tensor([self.tokenizer.encode(document, add_special_tokens=False)])
            logits = self.model(input_ids=ids).logits[0, :-1]
            loss += torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
            count += ids.shape[1] - 1
        return math.exp(loss / count)


def right_answers(generate: Greedy, cases: list[Case]) -> list[bool]:
    """Compare each case's answer, generated in one go."""
    right = [False] * len(cases)
    for one_line in (True, False):
        chosen = [n for n, case in enumerate(cases) if (case.stop == "\n" and "\n" not in case.answer) == one_line]
        if chosen:
            answers = generate([cases[n].prompt for n in chosen], one_line)
            for n, answer in zip(chosen, answers, strict=True):
                right[n] = answer.strip() == cases[n].answer.strip()
    return right


def right_traces(generate: Greedy, cases: list[Case], most_lines: int = 12) -> list[bool]:
    """Run the ReAct loop: one line at a time, an observation after each action, until the model finishes."""
    texts, actions, open_cases = [case.prompt for case in cases], [[] for _ in cases], list(range(len(cases)))
    for _ in range(most_lines):
        if not open_cases:
            break
        lines = generate([texts[n] for n in open_cases], one_line=True, max_tokens=64)
        for n, line in zip(list(open_cases), lines, strict=True):
            texts[n] += line + "\n"
            whole = texts[n].splitlines()[-1]
            if (action := ACTION.match(whole)) is None:
                continue
            actions[n].append(whole)
            tool, argument = (action[1] or action[3]), (action[2] if action[1] else action[4])
            if tool == "finish":
                open_cases.remove(n)
            else:
                texts[n] += f"Observation {len(actions[n])}: {observe(tool, argument, cases[n].pages)}\n"
    wanted = [[line for line in case.answer.splitlines() if line.startswith("Action")] for case in cases]
    return [got == want for got, want in zip(actions, wanted, strict=True)]


def observe(tool: str, argument: str, pages: dict[str, str]) -> str:
    if tool == "lookup":
        return pages.get(argument.strip().lower()) or lookup(argument)
    try:
        return str(calculate(argument))
    except ValueError as error:
        return str(error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--cases", type=int, default=200, help="cases per skill")
    parser.add_argument("--skills", nargs="*", choices=list(SKILLS), default=list(SKILLS))
    parser.add_argument("--seed", type=int, default=31)
    parser.add_argument("--batch", type=int, default=40)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--kinds", action="store_true", help="also each skill's kinds")
    parser.add_argument("--show", type=int, default=0, help="print so many wrong answers per skill")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    generate, console = Greedy(options.model, options.batch), Console()
    table = Table("skill", "right", "cases")
    for skill in options.skills:
        chosen = cases_of(skill, options.seed, options.cases)
        right = (right_traces if skill == "react" else right_answers)(generate, chosen)
        table.add_row(skill, f"{100 * sum(right) / len(right):.1f} %", str(len(right)))
        by_kind = defaultdict(list)
        for n, ok in enumerate(right):
            maker = SKILLS[skill][n % len(SKILLS[skill])]
            by_kind[maker.__name__].append(ok)
        if options.kinds and len(by_kind) > 1:
            for kind, oks in by_kind.items():
                table.add_row(f"  {kind}", f"{100 * sum(oks) / len(oks):.1f} %", str(len(oks)))
        for case in [case for case, ok in zip(chosen, right, strict=True) if not ok][: options.show]:
            console.rule(skill)
            print(f"{case.prompt}>>>{case.answer}")
            if skill != "react":
                print(f"got>{generate([case.prompt], case.stop == chr(10) and chr(10) not in case.answer)[0]}")
    console.print(table)
    documents = [case.document for case in itertools.islice(cases(options.seed, held_out=True, wide=True), 500)]
    console.print(f"held-out perplexity per token: {generate.perplexity(documents):.3f}")


if __name__ == "__main__":
    main()
