"""Models of Hugging Face's transformers, small and with random weights, give with this attention the logits, gradients and tokens
that they give with the library's eager one. Skipped without transformers."""

import pytest
import torch
from buffers import DEVICE

from fa_tutorial import hugging_face

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

TOKENS, NEW = 13, 6
SIZES = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPS = SIZES | {"num_key_value_heads": 2, "head_dim": 16}
WINDOWS = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
SOFT_CAPS = {"attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 16}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
MODELS = {
    "Llama": GROUPS,
    "Qwen3": GROUPS,
    "Mistral": GROUPS | {"sliding_window": 5},
    "Gemma2": GROUPS | WINDOWS | SOFT_CAPS,
    "Gemma3Text": GROUPS | WINDOWS | {"query_pre_attn_scalar": 16},
    "GptOss": GROUPS | WINDOWS | EXPERTS,
    "GPT2": {"vocab_size": 64, "n_embd": 64, "n_layer": 2, "n_head": 4},
}
HEADS = {"Gemma3Text": "Gemma3ForCausalLM", "GPT2": "GPT2LMHeadModel"}
each_model = pytest.mark.parametrize("name", MODELS)
PADDED = {"none": (0, 0), "left": (4, 0), "right": (0, 4)}  # of the first of two sequences
each_padding = pytest.mark.parametrize("padding", PADDED.values(), ids=PADDED)


@pytest.fixture(autouse=True)
def registered():
    torch.manual_seed(0)
    hugging_face.register("fa_tutorial")


def model_of(name: str, head: str | None = None, **options):
    """With large weights, so that attention matters, and dropout off unless it is asked for."""
    config = getattr(transformers, f"{name}Config")(**MODELS.get(name, SIZES) | options)
    model = getattr(transformers, head or HEADS.get(name, f"{name}ForCausalLM"))(config).eval().to(DEVICE)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.mul_(4)
    return model


def inputs(padding=(0, 0)) -> dict[str, torch.Tensor]:
    before, after = padding
    mask = torch.ones(2, TOKENS, dtype=torch.int64, device=DEVICE)
    mask[0, :before], mask[0, TOKENS - after :] = 0, 0
    return {"input_ids": torch.randint(64, (2, TOKENS)).to(DEVICE), "attention_mask": mask}


def both(model, run) -> list:
    """run(model) with the library's attention, and with this one."""
    found = []
    for attention in ("eager", "fa_tutorial"):
        model.set_attn_implementation(attention)
        found.append(run(model))
    return found


@each_padding
@each_model
def test_logits_and_gradients(name, padding):
    model, given = model_of(name), inputs(padding)
    seen = given["attention_mask"].bool()

    def run(model):
        model.zero_grad()
        logits = model(**given).logits[seen]
        logits.logsumexp(-1).sum().backward()
        return [logits, *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)]

    wanted, found = both(model, run)
    assert len(wanted) == len(found) > 10
    for x, y in zip(wanted, found, strict=True):
        torch.testing.assert_close(y, x, rtol=1e-3, atol=1e-3 * float(x.detach().abs().max()))


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("padding", [(0, 0), (4, 0)], ids=["none", "left"])
@each_model
def test_generated_tokens(name, padding, cache):
    model, given = model_of(name), inputs(padding)
    wanted, found = both(
        model, lambda model: model.generate(**given, max_new_tokens=NEW, do_sample=False, pad_token_id=0, eos_token_id=None,
                                            cache_implementation=cache, disable_compile=True)
    )  # fmt: skip
    assert wanted.shape == (2, TOKENS + NEW) and torch.equal(found, wanted)


@each_padding
def test_a_model_whose_tokens_see_all_others(padding):
    model, given = model_of("Bert", "BertModel"), inputs(padding)
    with torch.no_grad():
        wanted, found = both(model, lambda model: model(**given).last_hidden_state[given["attention_mask"].bool()])
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)


def test_dropout_in_training_differs_each_time_and_is_right_in_the_mean():
    model, given = model_of("Llama", attention_dropout=0.3), inputs()
    model.set_attn_implementation("fa_tutorial")
    layer = model.model.layers[0].self_attn
    states = torch.randn(2, TOKENS, 64, device=DEVICE)
    positions = model.model.rotary_emb(states, torch.arange(TOKENS, device=DEVICE)[None])
    want = layer.eval()(states, positions, None)[0]
    layer.train()
    runs = torch.stack([layer(states, positions, None)[0] for _ in range(100)])
    assert not torch.equal(runs[0], runs[1])
    standard_error = runs.std(0) / 10
    assert float(((runs.mean(0) - want).abs() / (standard_error + 1e-3)).mean()) < 1.2
    assert torch.isfinite(model.train()(**given).logits).all()


def test_what_it_does_not_have_is_named_with_the_layer_that_asks():
    attention = model_of("Llama").model.layers[0].self_attn
    x = torch.zeros(1, 4, 3, 16, device=DEVICE)
    with pytest.raises(ValueError, match=r"no position_bias, which LlamaAttention asks for.*eager"):
        hugging_face.attention(attention, x, x, x, None, position_bias=x)
