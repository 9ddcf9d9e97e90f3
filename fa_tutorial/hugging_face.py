"""Chapter 11: flash_decode inside a model of Hugging Face's transformers (version 5), by the library's attention
interface. transformers is optional."""

from __future__ import annotations

import torch

from fa_tutorial.attention import flash_attention
from fa_tutorial.decode import flash_decode

# What some models ask of their attention and flash_decode doesn't do.
REFUSED = ("softcap", "s_aux", "sinks", "position_bias", "indices", "block_indices", "cu_seq_lens_q", "cache")


def register(name: str) -> None:
    """Make model.set_attn_implementation(name) run `attention`, and have the library hand it a mask wherever one is
    needed."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    def mask(q_length, kv_length, allow_is_causal_skip=True, **options):
        """None where the causal mask alone gives the right result, otherwise the mask, which `attention` refuses.

        sdpa_mask also leaves it out for a prompt in a longer, preallocated cache, because PyTorch's causal mask is
        aligned top left and ours isn't.
        """
        skip = allow_is_causal_skip and q_length in (1, kv_length)
        return sdpa_mask(q_length=q_length, kv_length=kv_length, allow_is_causal_skip=skip, **options)

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask)


def attention(module, query, key, value, attention_mask, scaling=None, *,
              dropout=0.0, sliding_window=None, is_causal=None, **options):  # fmt: skip
    """What AttentionInterface calls. key is the whole cache: sequences of one length, without padding.

    query: (B, H_q, S_q, D); key, value: (B, H_k, S_k, D), the new tokens' among them. is_causal:
    module's unless given. Returns ((B, S_q, H_q, D), None): no weights are kept. Raises ValueError for a
    mask, for dropout, for a sliding window shorter than the keys, and for the options in REFUSED.
    """
    if dropout:
        raise ValueError(f"flash_decode has no dropout, got {dropout}: call model.eval()")
    if sliding_window is not None and sliding_window < key.shape[2]:
        raise ValueError(f"flash_decode has no window, got {sliding_window=}, {key.shape[2]} keys")
    for name in REFUSED:
        if options.get(name) is not None:
            raise ValueError(f"flash_decode has no {name}, got {options[name]}")
    if attention_mask is not None:
        shape = tuple(attention_mask.shape)
        raise ValueError(f"flash_decode takes no mask, got {shape}: give it sequences without padding")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    if not is_causal or query.shape[2] == key.shape[2]:  # the prompt: as many queries as keys
        o = flash_attention(query, key, value, is_causal=is_causal, scale=scaling)
    else:
        lengths = torch.full((len(query),), key.shape[2], dtype=torch.int32, device=query.device)
        o = flash_decode(query, key, value, lengths, scale=scaling)
    return o.transpose(1, 2), None
