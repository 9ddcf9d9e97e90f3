"""Chapter 0: an overflow in float32, and an input that is changed."""

import math

import torch


def attention_overflows(q, k, v, is_causal):
    p = torch.exp(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]))
    p = p.tril(k.shape[-2] - q.shape[-2]) if is_causal else p
    return p / p.sum(-1, keepdim=True) @ v


def attention_scales_q_in_place(q, k, v, is_causal):
    q /= math.sqrt(q.shape[-1])
    return torch.softmax(q @ k.transpose(-1, -2), -1) @ v


WRONG_ANSWERS = (
    ("0.3", attention_overflows, "exp overflows"),
    ("0.3", attention_scales_q_in_place, "changes its input q in place"),
)
