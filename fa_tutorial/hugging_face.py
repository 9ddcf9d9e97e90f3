"""Chapter 11: flash_decode inside a model of Hugging Face's transformers, by the library's attention interface. transformers is optional."""

from __future__ import annotations

import torch

from fa_tutorial.attention import flash_attention
from fa_tutorial.decode import flash_decode


def attention(module, query, key, value, attention_mask, scaling=None, **options):
    """The signature that AttentionInterface.register asks for. The cache's keys are all of key: sequences of one length, without padding.

    query: (B, H_q, S_q, D); key, value: (B, H_k, S_k, D), the new tokens' among them. Returns ((B, S_q, H_q, D), None): no weights are kept.
    Raises ValueError where a mask says that some tokens are padding.
    """
    if attention_mask is not None:
        raise ValueError("flash_decode takes no attention mask: give the model sequences of one length, without padding")
    if query.shape[2] == key.shape[2]:  # the prompt: as many queries as keys
        o = flash_attention(query, key, value, is_causal=True, scale=scaling)
    else:
        lengths = torch.full((len(query),), key.shape[2], dtype=torch.int32, device=query.device)
        o = flash_decode(query, key, value, lengths, scale=scaling)
    return o.transpose(1, 2), None
