"""A grown model computes the small model's logits, and its new parts train from the first step on."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")  # hence the imports below them

from ramiform.examples.demo_model.corpus.mix import SHARES  # noqa: E402
from ramiform.examples.demo_model.grow import grow_head, grown  # noqa: E402
from ramiform.examples.demo_model.tokenizer import train_tokenizer  # noqa: E402
from ramiform.examples.demo_model.train import Recipe, Stage, Trainer  # noqa: E402
from ramiform.runtime.models.load import load_model  # noqa: E402
from ramiform.runtime.speculation.eagle.load import load_head  # noqa: E402
from ramiform.tools.train_draft.attention import TrainingTimeTestAttention  # noqa: E402

SHAPE = {
    "vocab_size": 512,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "tie_word_embeddings": True,
}


def small() -> transformers.LlamaForCausalLM:
    torch.manual_seed(1)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE, initializer_range=0.3)).eval()


@pytest.mark.parametrize(("layers", "mlp"), [(2, 48), (2, 80), (6, 48), (4, 49)])
def test_a_grown_model_has_the_same_logits(layers: int, mlp: int) -> None:
    model = small()
    ids = torch.randint(0, 512, (2, 40))
    before = model(input_ids=ids).logits
    larger = grown(model, layers, mlp, seed=3).eval()
    assert (larger.config.num_hidden_layers, larger.config.intermediate_size) == (layers, mlp)
    torch.testing.assert_close(larger(input_ids=ids).logits, before, rtol=1e-4, atol=1e-4)
    assert before.std() > 0.5  # logits that say something


@pytest.mark.slow
def test_the_shipped_model_grows_to_thirty_million_parameters_with_the_same_logits(shipped) -> None:
    model = transformers.LlamaForCausalLM.from_pretrained(shipped, dtype=torch.float32).eval()
    larger = grown(model, 24, 1344, seed=3).eval()
    assert 29.5e6 < larger.num_parameters() < 30.5e6
    ids = torch.randint(8, 2048, (1, 24))
    torch.testing.assert_close(larger(input_ids=ids).logits, model(input_ids=ids).logits, rtol=1e-3, atol=1e-3)


def test_all_that_is_new_takes_part_after_two_steps_of_training() -> None:
    """Matrices that begin at zero change in the first step, those that are read through them in the second."""
    recipe = Recipe(
        stages=(Stage(8, SHARES, row=64, prompt_weight=1.0, lr=0.5),), tokens_per_step=128, vocab_size=512, warmup=1
    )
    larger = grown(small(), 4, 64, seed=3)
    before = {name: tensor.clone() for name, tensor in larger.named_parameters()}
    tokenizer = train_tokenizer(512, recipe.seed, num_documents=300)
    trainer = Trainer(recipe, tokenizer, bf16=False, compiled=False, model=larger)
    for _ in range(2):
        trainer.train_step()
    for name, tensor in larger.named_parameters():
        assert not torch.equal(tensor, before[name]), name
    new_layer = larger.model.layers[1]
    assert new_layer.self_attn.o_proj.weight.abs().max() > 0
    assert larger.model.layers[0].mlp.down_proj.weight[:, 48:].abs().max() > 0


def test_a_grown_head_drafts_the_same_for_the_same_target(shipped, tmp_path) -> None:
    grow_head(shipped / "draft", tmp_path, 700, seed=3)
    model = load_model(shipped, device=torch.device("cpu"), dtype=torch.float32)
    ids_N, features_NE = torch.randint(8, 2048, (20,)), torch.randn(20, 256)
    read = []
    for path in (shipped / "draft", tmp_path):
        head = load_head(path, model)
        read.append(
            head.forward(
                ids_N, features_NE, torch.arange(20), TrainingTimeTestAttention(1, head.config.num_kv_heads, head.scale)
            ).read_NE
        )
    torch.testing.assert_close(read[1], read[0], rtol=1e-3, atol=1e-3)
    assert read[0].std() > 0.1


@pytest.mark.parametrize(("layers", "mlp"), [(3, 48), (0, 48), (2, 47)])
def test_smaller_shapes_are_refused(layers: int, mlp: int) -> None:
    with pytest.raises(ValueError, match=f"{layers} layers of {mlp} do not grow from 2 of 48"):
        grown(small(), layers, mlp, seed=0)
