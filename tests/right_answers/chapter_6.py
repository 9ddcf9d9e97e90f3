import math

import torch

INF = math.inf


def softmax_two_terms(p, dp):
    weighed = p * dp
    return weighed - p * weighed.sum(dim=-1, keepdim=True)


def backward_by_way_of_o(q, k, v, p, do, scale):
    ds = p * (torch.einsum("bhid,bhjd->bhij", do, v) - (do * (p @ v)).sum(-1, keepdim=True)) * scale
    return ds @ k, ds.mT @ q, p.mT @ do


def _wide(x):
    return x.to(torch.promote_types(x.dtype, torch.float32))


def delta_as_dot_products(q, k, v, o, lse, do):
    return torch.einsum("bhid,bhid->bhi", _wide(o), _wide(do))


def tile_in_base_2(q, k, v, do, lse, delta, rows, keys, mask, scale):
    log2_e, shift = math.log2(math.e), keys.start - rows.start - k.shape[2] + q.shape[2]
    q, do, lse, delta = (x[:, :, rows] for x in (q, do, lse, delta))
    s = torch.einsum("bhid,bhjd->bhij", _wide(q), _wide(k[:, :, keys])) * (scale * log2_e)
    p = torch.exp2(s - (lse * log2_e).unsqueeze(-1))
    if mask:
        p = p.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1 - shift), 0.0)
    return p, p * torch.einsum("bhid,bhjd->bhij", _wide(do), _wide(v[:, :, keys])) - p * delta.unsqueeze(-1)


def dkdv_in_tiles_that_are_skipped(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale):
    """Transposed tiles, those above the diagonal skipped; p and ds rounded, as tensor cores want them."""
    dtype, shift = q.dtype, k.shape[2] - q.shape[2]
    q, k, v, do = (_wide(x) for x in (q, k, v, do))
    dk, dv = torch.zeros(k.shape, dtype=k.dtype), torch.zeros(v.shape, dtype=v.dtype)
    for j in range(0, k.shape[2], block_n):
        keys = slice(j, min(j + block_n, k.shape[2]))
        for i in range(max(0, j - shift) // block_m * block_m if is_causal else 0, q.shape[2], block_m):
            rows = (slice(None), slice(None), slice(i, i + block_m))
            s_t = scale * (k[:, :, keys] @ q[rows].mT)
            if is_causal:
                s_t = s_t.masked_fill(~torch.ones(s_t.shape[2:], dtype=torch.bool).triu(j - i - shift), -INF)
            p_t = torch.exp(s_t - lse[rows][:, :, None]).masked_fill(lse[rows][:, :, None] == -INF, 0.0)
            ds_t = p_t * (v[:, :, keys] @ do[rows].mT - delta[rows][:, :, None])
            p_t, ds_t = (x.to(dtype).to(q.dtype) for x in (p_t, ds_t))
            dv[:, :, keys] += p_t @ do[rows]
            dk[:, :, keys] += scale * ds_t @ q[rows]
    return dk.to(dtype), dv.to(dtype)


def dq_one_head_at_a_time(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale):
    (B, H, S_q, _), S_k = q.shape, k.shape[2]
    dq = torch.zeros(q.shape, dtype=lse.dtype)
    for b in range(B):
        for h in range(H):
            q_h, k_h, v_h, do_h = (_wide(x[b, h]) for x in (q, k, v, do))
            for i in range(0, S_q, block_m):
                rows = slice(i, min(i + block_m, S_q))
                for j in range(0, max(0, rows.stop + S_k - S_q) if is_causal else S_k, block_n):
                    keys = slice(j, min(j + block_n, S_k))
                    s = q_h[rows] @ k_h[keys].T * scale
                    if is_causal and keys.stop > rows.start + S_k - S_q + 1:
                        s[torch.arange(keys.start, keys.stop) > torch.arange(rows.start, rows.stop)[:, None] + S_k - S_q] = -1e30
                    p = torch.where(lse[b, h, rows, None] == -INF, 0.0, torch.exp(s - lse[b, h, rows, None]))
                    dq[b, h, rows] += scale * (p * (do_h[rows] @ v_h[keys].T - delta[b, h, rows, None])) @ k_h[keys]
    return dq.to(q.dtype)


RIGHT_ANSWERS = (
    ("6.1", softmax_two_terms),
    ("6.2", backward_by_way_of_o),
    ("6.3", delta_as_dot_products),
    ("6.4", tile_in_base_2),
    ("6.5", dkdv_in_tiles_that_are_skipped),
    ("6.6", dq_one_head_at_a_time),
)
