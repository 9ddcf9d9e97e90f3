"""Right answers to chapter 6 in other words: loops, autograd, exp2, delta from p ∘ dp, one loop over the tiles, transposed tiles."""

import math

import torch

INF = math.inf


# ---------------------------------------------------------------- 6.1


def matmul_by_outer_products(a, b, dc):
    da, db = torch.zeros_like(a), torch.zeros_like(b)
    for n in range(b.shape[-1]):
        da += dc[..., :, n, None] * b[..., None, :, n]
    for m in range(a.shape[-2]):
        db += a[..., m, :, None] * dc[..., m, None, :]
    return [da, db]


def matmul_by_autograd(a, b, dc):
    a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
    return torch.autograd.grad(a @ b, (a, b), dc)


# ---------------------------------------------------------------- 6.2


def softmax_two_terms(p, dp):
    weighed = p * dp
    return weighed - p * weighed.sum(dim=-1, keepdim=True)


def softmax_row_by_row(p, dp):
    rows = [row * (grad - torch.dot(row, grad)) for row, grad in zip(p.reshape(-1, p.shape[-1]), dp.reshape(-1, p.shape[-1]), strict=True)]
    return torch.stack(rows).view(p.shape)


# ---------------------------------------------------------------- 6.3


def _wide(x):
    return x.to(torch.promote_types(x.dtype, torch.float32))


def p_in_base_2(q, k, lse, scale, is_causal):
    log2_e = math.log2(math.e)
    s = torch.einsum("bhid,bhjd->bhij", _wide(q), _wide(k)) * (scale * log2_e)
    p = torch.exp2(s - (lse * log2_e).unsqueeze(-1))
    if is_causal:
        hidden = torch.ones(s.shape[-2:], dtype=torch.bool).triu(k.shape[2] - q.shape[2] + 1)
        p = p.masked_fill(hidden, 0.0)
    return p


def p_row_by_row(q, k, lse, scale, is_causal):
    S_q, S_k = q.shape[2], k.shape[2]
    p = torch.zeros(*q.shape[:3], S_k, dtype=lse.dtype)
    for i in range(S_q):
        n = max(0, min(S_k, i + 1 + S_k - S_q)) if is_causal else S_k
        s = (_wide(q[:, :, i, None]) * _wide(k[:, :, :n])).sum(-1) * scale
        p[:, :, i, :n] = torch.exp(s - lse[:, :, i, None])
    return p


def p_where_seen(q, k, lse, scale, is_causal):
    s = (_wide(q) * scale) @ _wide(k).transpose(2, 3)
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    seen = (j <= i + k.shape[2] - q.shape[2]) if is_causal else torch.ones(s.shape[2:], dtype=torch.bool)
    exponent = torch.where(seen & torch.isfinite(lse)[..., None], s - lse.unsqueeze(-1), -INF)
    return exponent.exp()


# ---------------------------------------------------------------- 6.4


def backward_with_delta_from_p(q, k, v, o, do, lse, scale, is_causal):
    q, k, v, do = (_wide(x) for x in (q, k, v, do))
    p = p_where_seen(q, k, lse, scale, is_causal)
    ds = softmax_two_terms(p, do @ v.mT) * scale
    return ds @ k, ds.mT @ q, p.mT @ do


def backward_row_by_row(q, k, v, o, do, lse, scale, is_causal):
    q, k, v, o, do = (_wide(x) for x in (q, k, v, o, do))
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for i in range(q.shape[2]):
        n = max(0, min(k.shape[2], i + 1 + k.shape[2] - q.shape[2])) if is_causal else k.shape[2]
        p = torch.exp(scale * (k[:, :, :n] @ q[:, :, i, :, None]) - lse[:, :, i, None, None])  # a column: (n, 1)
        dp = v[:, :, :n] @ do[:, :, i, :, None]
        ds = p * (dp - (o[:, :, i] * do[:, :, i]).sum(-1)[..., None, None])
        dq[:, :, i] = scale * (ds * k[:, :, :n]).sum(2)
        dk[:, :, :n] += scale * ds * q[:, :, i, None]
        dv[:, :, :n] += p * do[:, :, i, None]
    return dq, dk, dv


# ---------------------------------------------------------------- 6.5


def _tile(q, k, lse, scale, is_causal, i, j, shift):
    """p of the tile whose first row is i and first key j."""
    s = scale * (q @ k.mT)
    hidden = torch.ones(s.shape[2:], dtype=torch.bool).triu(i - j + shift + 1) if is_causal else torch.zeros(s.shape[2:], dtype=torch.bool)
    return torch.exp(s - lse[..., None]).masked_fill(hidden, 0.0)


def flash_in_one_loop(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    dtype, shift = q.dtype, k.shape[2] - q.shape[2]
    q, k, v, o, do = (_wide(x) for x in (q, k, v, o, do))
    delta = (o * do).sum(-1, keepdim=True)
    dq, dk, dv = torch.zeros(q.shape, dtype=q.dtype), [], []
    for j in range(0, k.shape[2], block_n):
        k_tile, v_tile = k[:, :, j : j + block_n], v[:, :, j : j + block_n]
        dk_tile, dv_tile = torch.zeros_like(k_tile), torch.zeros_like(v_tile)
        for i in range(max(0, j - shift) // block_m * block_m if is_causal else 0, q.shape[2], block_m):
            rows = (slice(None), slice(None), slice(i, i + block_m))
            p = _tile(q[rows], k_tile, lse[rows], scale, is_causal, i, j, shift)
            ds = p * (do[rows] @ v_tile.mT - delta[rows])
            p, ds = (x.to(dtype).to(q.dtype) for x in (p, ds))  # as tensor cores want them
            dv_tile += p.mT @ do[rows]
            dk_tile += ds.mT @ q[rows]
            dq[rows] += scale * ds @ k_tile
        dk.append(scale * dk_tile)
        dv.append(dv_tile)
    if not dk:
        return dq.to(dtype), torch.zeros_like(k, dtype=dtype), torch.zeros_like(v, dtype=dtype)
    return dq.to(dtype), torch.cat(dk, dim=2).to(dtype), torch.cat(dv, dim=2).to(dtype)


def flash_one_head_at_a_time(q, k, v, o, do, lse, block_m, block_n, is_causal, scale):
    (B, H, S_q, _), S_k = q.shape, k.shape[2]
    grads = [torch.zeros(x.shape, dtype=torch.promote_types(x.dtype, torch.float32)) for x in (q, k, v)]
    for b in range(B):
        for h in range(H):
            q_h, k_h, v_h, o_h, do_h, lse_h = (_wide(x[b, h]) for x in (q, k, v, o, do, lse))
            dq, dk, dv = (grad[b, h] for grad in grads)
            for i in range(0, S_q, block_m):
                rows = slice(i, min(i + block_m, S_q))
                end = max(0, rows.stop + S_k - S_q) if is_causal else S_k
                for j in range(0, end, block_n):
                    keys = slice(j, min(j + block_n, S_k))
                    s_t = k_h[keys] @ q_h[rows].T * scale
                    if is_causal:
                        seen = torch.arange(keys.start, keys.stop)[:, None] <= torch.arange(rows.start, rows.stop) + S_k - S_q
                        s_t[~seen] = -1e30
                    p_t = torch.where(lse_h[rows] == -INF, 0.0, torch.exp(s_t - lse_h[rows]))
                    ds_t = p_t * (v_h[keys] @ do_h[rows].T - (o_h[rows] * do_h[rows]).sum(1))
                    dq[rows] += scale * ds_t.T @ k_h[keys]
                    dk[keys] += scale * ds_t @ q_h[rows]
                    dv[keys] += p_t @ do_h[rows]
    return tuple(grad.to(q.dtype) for grad in grads)


RIGHT_ANSWERS = (
    ("6.1", matmul_by_outer_products),
    ("6.1", matmul_by_autograd),
    ("6.2", softmax_two_terms),
    ("6.2", softmax_row_by_row),
    ("6.3", p_in_base_2),
    ("6.3", p_row_by_row),
    ("6.3", p_where_seen),
    ("6.4", backward_with_delta_from_p),
    ("6.4", backward_row_by_row),
    ("6.5", flash_in_one_loop),
    ("6.5", flash_one_head_at_a_time),
)
