"""A model of Hugging Face's transformers writes the same tokens with flash_decode as with PyTorch's attention. Skipped without transformers."""

import pytest
import torch
from buffers import DEVICE

from fa_tutorial import hugging_face

transformers = pytest.importorskip("transformers")


def test_a_model_writes_the_same_tokens():
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    model = transformers.LlamaForCausalLM(config).eval().to(DEVICE)
    transformers.AttentionInterface.register("fa_tutorial", hugging_face.attention)
    prompt, written = torch.randint(64, (2, 9)).to(DEVICE), []
    for name in ("sdpa", "fa_tutorial"):
        model.set_attn_implementation(name)
        written.append(model.generate(prompt, max_new_tokens=4, do_sample=False, pad_token_id=0, eos_token_id=None))
    assert torch.equal(*written)


def test_a_mask_is_refused():
    x = torch.zeros(1, 1, 1, 16, device=DEVICE)
    with pytest.raises(ValueError, match="without padding"):
        hugging_face.attention(None, x, x, x, torch.ones(1, 1, 1, 1, device=DEVICE))
