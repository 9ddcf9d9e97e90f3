import math

import torch
from edits import edit

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


RIGHT_ANSWERS = (
    ("6.1", softmax_two_terms),
    ("6.2", backward_by_way_of_o),
    ("6.3", delta_as_dot_products),
    ("6.4", tile_in_base_2),
    edit("6.4", "p hidden after exp", ("        s = s.masked_fill(j > i + S_k - S_q, -math.inf)\n", ""),
         ("    dp = do", "    if mask:\n        p = p.masked_fill(j > i + S_k - S_q, 0.0)\n    dp = do")),
    ("6.5", dkdv_in_tiles_that_are_skipped),
    edit("6.6", "bounds of the package, a product by einsum",
         ("full = end = math.ceil(S_k / block_n)", "full, end = algorithm.all_tiles(block_n, S_k)"), ("key_block >= full", "is_causal and key_block >= full"),
         ("scale * ds @ k[:, :, keys].to(ds.dtype)", 'scale * torch.einsum("bhij,bhjd->bhid", ds, k[:, :, keys].to(ds.dtype))')),
)  # fmt: skip
