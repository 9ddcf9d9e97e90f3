"""Models of Hugging Face's transformers give the same logits and tokens as with the library's attention, or refuse. Skipped without
transformers."""

import pytest
import torch
from buffers import DEVICE

from fa_tutorial import hugging_face

transformers = pytest.importorskip("transformers")

SIZES = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPS = SIZES | {"num_key_value_heads": 2}
PADDING = torch.tensor([[0] * 4 + [1] * 5, [1] * 9])


@pytest.fixture(autouse=True)
def registered():
    torch.manual_seed(0)
    hugging_face.register("fa_tutorial")


def model_of(name: str, head="ForCausalLM", sizes=GROUPS, **options):
    """With large weights, so that attention matters."""
    config = getattr(transformers, f"{name}Config")(**sizes, **options)
    model = getattr(transformers, f"{name}{head}")(config).eval().to(DEVICE)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.mul_(4)
    return model


def tokens():
    return torch.randint(64, (2, 9)).to(DEVICE)


def generated(model, prompt, **options):
    return model.generate(prompt, max_new_tokens=4, do_sample=False, pad_token_id=0, eos_token_id=None, **options)


MODELS = {
    "Llama": ("Llama", {}),
    "a window that is long enough": ("Mistral", {"sliding_window": 20, "head_dim": 16}),
}


@pytest.mark.parametrize(("name", "options"), MODELS.values(), ids=MODELS)
def test_a_model_writes_the_same_tokens(name, options):
    model, prompt, written = model_of(name, **options), tokens(), []
    for attention in ("sdpa", "fa_tutorial"):
        model.set_attn_implementation(attention)
        written.append(generated(model, prompt))
    assert torch.equal(*written)


def test_a_model_whose_tokens_see_all_others():
    model, prompt, found = model_of("Bert", "Model", SIZES), tokens(), []
    for attention in ("sdpa", "fa_tutorial"):
        model.set_attn_implementation(attention)
        with torch.no_grad():
            found.append(model(prompt).last_hidden_state)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)


GEMMA = {"head_dim": 16, "attn_logit_softcapping": 5.0, "query_pre_attn_scalar": 16}
REFUSED = {
    "padding": ("Llama", {}, {"attention_mask": PADDING}, ["no mask", "(2, 1, 9, 9)", "padding"]),
    "a window": ("Mistral", {"sliding_window": 3, "head_dim": 16}, {}, ["sliding_window=3", "9 keys"]),
    "a soft cap": ("Gemma2", GEMMA, {}, ["softcap", "5.0"]),
    "sinks": ("GptOss", {"head_dim": 16, "num_local_experts": 2, "num_experts_per_tok": 1}, {}, ["s_aux"]),
}


@pytest.mark.parametrize(("name", "options", "given", "words"), REFUSED.values(), ids=REFUSED)
def test_what_it_cannot_do_is_refused(name, options, given, words):
    model = model_of(name, **options)
    model.set_attn_implementation("fa_tutorial")
    with pytest.raises(ValueError, match=r"flash_decode") as caught:
        model(tokens(), **{name: x.to(DEVICE) for name, x in given.items()})
    assert all(word in str(caught.value) for word in words), caught.value


def test_dropout_is_refused():
    model = model_of("Llama", attention_dropout=0.1).train()
    model.set_attn_implementation("fa_tutorial")
    with pytest.raises(ValueError, match=r"no dropout, got 0.1"):
        model(tokens())


def test_a_prompt_in_a_longer_cache_is_refused():
    """A preallocated cache has more keys than tokens: the mask that hides them is not skipped."""
    model = model_of("Llama")
    model.set_attn_implementation("fa_tutorial")
    with pytest.raises(ValueError, match="no mask"):
        generated(model, tokens(), cache_implementation="static")
