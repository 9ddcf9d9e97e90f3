"""Chapter 11: attention in a model of Hugging Face's transformers (version 5), by the library's attention interface.
transformers is optional."""

from __future__ import annotations

import sys

import torch

from fa_tutorial.attention import flash_attention
from fa_tutorial.decode import flash_decode

# What some models ask of their attention, and this one doesn't do.
REFUSED = ("position_bias", "indices", "block_indices", "cu_seq_lens_q", "cache")


def register(name: str) -> None:
    """Make model.set_attn_implementation(name) run `attention`, and have the library hand it a mask of booleans
    wherever the causal mask isn't enough."""
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask
    except ModuleNotFoundError as error:
        how = f"{sys.executable} -m pip install 'transformers==5.*'"
        raise ImportError(f"hugging_face.register needs transformers: {how}") from error

    def mask(q_length, kv_length, allow_is_causal_skip=True, **options):
        """sdpa_mask, which leaves the mask out where the causal one gives the right result. It also does for a prompt
        in a longer, preallocated cache, because PyTorch's causal mask is aligned top left: ours isn't."""
        skip = allow_is_causal_skip and q_length in (1, kv_length)
        return sdpa_mask(q_length=q_length, kv_length=kv_length, allow_is_causal_skip=skip, **options)

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, mask)


def attention(module, query, key, value, attention_mask, scaling=None, *, dropout=0.0,
              sliding_window=None, softcap=None, s_aux=None, is_causal=None, **options):  # fmt: skip
    """What AttentionInterface calls.

    query: (B, H_q, S_q, D); key, value: (B, H_k, S_k, D), the new tokens' among them.
    attention_mask: None, or booleans or numbers (B, 1, S_q, S_k), which hold the causal mask, the
    window and the padding. sliding_window: keys that a query sees, its own among them. s_aux: (H_q,),
    the sinks. is_causal: module's unless given. Returns ((B, S_q, H_q, D), None): no weights are kept.
    A row of padding, which sees nothing, gets 0. ValueError for the options in REFUSED.
    """
    for name in REFUSED:
        if options.get(name) is not None:
            raise ValueError(
                f"this attention has no {name}, which {type(module).__name__} asks for: "
                "model.set_attn_implementation('eager') has it"
            )
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    given = {"scale": scaling, "softcap": softcap, "sinks": s_aux}
    learns = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad)
    is_plain = attention_mask is None or attention_mask.dtype == torch.bool
    if query.shape[2] == 1 and is_causal and is_plain and not learns:  # generation
        o = newest(query, key, value, attention_mask, **given)
    elif attention_mask is not None:
        o = flash_attention(query, key, value, attn_mask=attention_mask, dropout_p=dropout, **given)
    else:
        given |= {"dropout_p": dropout, "is_causal": is_causal}
        if sliding_window is not None and sliding_window < key.shape[2]:
            given["window"] = (sliding_window - 1, -1)
        o = flash_attention(query, key, value, **given)
    return o.transpose(1, 2), None


def newest(query, key, value, attention_mask, **given) -> torch.Tensor:
    """flash_decode for one new token of each sequence. Of a mask's keys only those from the first that is seen to the
    last are read, so a window and a preallocated cache cost what is seen of them. Nothing waits for the GPU."""
    B, S_k = len(key), key.shape[2]
    lengths = torch.full((B,), S_k, dtype=torch.int32, device=key.device)
    if attention_mask is None:
        return flash_decode(query, key, value, lengths, **given)
    seen = attention_mask[:, 0, -1].expand(B, S_k).to(torch.int32)  # [B, S_k]
    any_seen = seen.amax(1)
    first = seen.argmax(1).to(torch.int32)
    lengths = (lengths - seen.flip(1).argmax(1).to(torch.int32)) * any_seen
    # The token's own key is the last that is seen, so flash_decode's causal mask hides nothing more.
    return flash_decode(query, key, value, lengths, attn_mask=attention_mask, cache_leftpad=first, **given)
