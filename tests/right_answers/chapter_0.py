"""Right answers to chapter 0 in other words: loops, masks, NumPy, floats that are whole, float32, PyTorch's own attention."""

import numpy as np
import torch
import torch.nn.functional as F


def flops_row_by_row(B, H, S_q, S_k, D, is_causal):
    if not is_causal:
        return B * H * 2 * (2 * S_q * S_k * D)
    hidden = S_q - S_k
    rows = np.arange(S_q, dtype=np.int64)
    return 4 * B * H * D * int(np.clip(rows + 1 - hidden, 0, S_k).sum())


def flops_by_a_sum(batch, heads, queries, keys, dim, causal):
    seen = sum(max(0, row + 1 + keys - queries) for row in range(queries)) if causal else queries * keys
    return 4 * batch * heads * seen * dim


def flops_by_a_mask(B, H, S_q, S_k, D, is_causal):
    pairs = int(torch.ones(S_q, S_k, dtype=torch.bool).tril(S_k - S_q).sum()) if is_causal else S_q * S_k
    return 4 * B * H * pairs * D


def flops_pair_by_pair(B, H, S_q, S_k, D, is_causal):
    pairs = 0
    for i in range(S_q):
        for j in range(S_k):
            if not is_causal or j <= i + S_k - S_q:
                pairs += 1
    return 4 * B * H * pairs * D


def bytes_kernel_by_kernel(B, H, S_q, S_k, D, itemsize):
    scores = S_q * S_k
    first = S_q * D + S_k * D + scores
    second = 2 * scores
    third = scores + S_k * D + S_q * D
    return float(B * H * itemsize * (first + second + third))


def attention_by_einsum(q, k, v, is_causal):
    s = torch.einsum("bhid,bhjd->bhij", q * q.shape[-1] ** -0.5, k)
    if is_causal:
        i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None, :]
        s = torch.where(j <= i + k.shape[2] - q.shape[2], s, torch.tensor(-1e30))
    s = s - s.amax(-1, keepdim=True)
    s.exp_()
    return torch.einsum("bhij,bhjd->bhid", s / s.sum(-1, keepdim=True), v)


def attention_by_pytorch(q, k, v, is_causal):
    mask = torch.ones(q.shape[2], k.shape[2]).tril(k.shape[2] - q.shape[2]).bool() if is_causal else None
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def attention_in_float64(q, k, v, is_causal):
    return attention_by_einsum(q.double(), k.double(), v.double(), is_causal).float()


def roof_by_cases(intensity, peak_flops, bandwidth):
    ridge = peak_flops / bandwidth
    return peak_flops if intensity >= ridge else intensity * bandwidth


def roof_as_tensor(intensity, peak_flops, bandwidth):
    return torch.minimum(torch.tensor(peak_flops, dtype=torch.float64), torch.tensor(intensity * bandwidth, dtype=torch.float64))


def roof_in_float32(intensity, peak_flops, bandwidth):
    return torch.minimum(torch.tensor(float(peak_flops)), torch.tensor(float(intensity)) * torch.tensor(float(bandwidth)))


RIGHT_ANSWERS = (
    ("0.1", flops_row_by_row), ("0.1", flops_by_a_sum), ("0.1", flops_by_a_mask), ("0.1", flops_pair_by_pair),
    ("0.2", bytes_kernel_by_kernel), ("0.3", attention_by_einsum), ("0.3", attention_by_pytorch), ("0.3", attention_in_float64),
    ("0.4", roof_by_cases), ("0.4", roof_as_tensor), ("0.4", roof_in_float32),
)  # fmt: skip
