"""The skill of grpo.py by TRL's trainer, whose generation is a program on the runtime.

    pip install trl
    python examples/training/trl_grpo.py [--steps 12] [--seed 1]

TRL computes advantages, gradients and steps with its own code. It asks `rollout_func` for completions, which first
gives the runtime the trainer's weights.
"""

import argparse
from typing import Any

from datasets import Dataset
from grpo import cases, reward, share_right, talk
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

import ramiform
from ramiform.runtime.models.checkpoint import SHIPPED_MODEL


def train(engine: ramiform.Engine, *, steps: int, folder: str, seed: int = 1) -> GRPOTrainer:
    """Train the shipped model, and leave the last weights in the runtime; return the trainer, which has the log."""
    train_cases, _ = cases()
    chats = {" ".join(case["questions"]): case for case in train_cases}

    def send_weights(trainer: GRPOTrainer) -> None:
        engine.update_weights({name: value.detach() for name, value in trainer.model.named_parameters()})

    def rollout_func(prompts: list[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        send_weights(trainer)
        asked = [chats[prompt] for prompt in prompts]  # each as often as a group has
        own_seed = 10_000 * seed + trainer.state.global_step
        return ramiform.rollouts(talk, asked, reward, group=1, backend=engine.runtime, seed=own_seed).for_trl()

    def score(reward: list[float], **columns: Any) -> list[float]:
        return reward

    options = GRPOConfig(
        output_dir=folder,
        per_device_train_batch_size=32,
        num_generations=8,
        max_steps=steps,
        learning_rate=1e-4,
        lr_scheduler_type="constant",
        beta=0.0,
        use_cpu=True,
        bf16=False,  # the default rounds the forward pass, and the runtime here computes in float32
        gradient_checkpointing=False,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        seed=seed,
    )
    trainer = GRPOTrainer(
        AutoModelForCausalLM.from_pretrained(SHIPPED_MODEL, dtype="float32"),
        reward_funcs=score,
        args=options,
        train_dataset=Dataset.from_list([{"prompt": chat} for chat in chats]),
        processing_class=AutoTokenizer.from_pretrained(SHIPPED_MODEL),
        rollout_func=rollout_func,
    )
    trainer.train()
    send_weights(trainer)
    return trainer


def main() -> None:
    parser = argparse.ArgumentParser(description="Teach the shipped model to answer with a name alone, by TRL.")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", default="trl-output", help="of TRL's own files")
    options = parser.parse_args()
    _, held_out = cases()
    with ramiform.Engine(dtype="float32") as engine:
        before = share_right(engine, held_out)
        train(engine, steps=options.steps, folder=options.folder, seed=options.seed)
        print(f"held-out answers right: {before:.0%} -> {share_right(engine, held_out):.0%}")


if __name__ == "__main__":
    main()
