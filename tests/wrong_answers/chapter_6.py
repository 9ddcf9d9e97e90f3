import torch
from edits import edit

from fa_tutorial import algorithm


def softmax_by_autograd(p, dp):
    with torch.enable_grad():
        s = torch.log(p).requires_grad_()
        torch.softmax(s, -1).backward(dp)
        return s.grad


def delta_from_p(q, k, v, o, lse, do):
    p = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1)
    return (p * (do @ v.mT)).sum(dim=-1)


def dkdv_that_owns_queries(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale):
    S_q, S_k = q.shape[2], k.shape[2]
    dk, dv = torch.zeros(k.shape, dtype=lse.dtype), torch.zeros(v.shape, dtype=lse.dtype)
    for i in range(0, S_q, block_m):
        rows = slice(i, min(i + block_m, S_q))
        full, end = algorithm.causal_tiles(i // block_m, block_m, block_n, S_q, S_k) if is_causal else algorithm.all_tiles(block_n, S_k)
        for j in range(end):
            keys = slice(j * block_n, min((j + 1) * block_n, S_k))
            p, ds = algorithm.p_and_ds(q, k, v, do, lse, delta, rows, keys, is_causal and j >= full, scale)
            dv[:, :, keys] += p.mT @ do[:, :, rows].to(p.dtype)
            dk[:, :, keys] += scale * ds.mT @ q[:, :, rows].to(p.dtype)
    return dk.to(k.dtype), dv.to(v.dtype)


def dq_that_owns_keys(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale):
    S_q, S_k = q.shape[2], k.shape[2]
    dq = torch.zeros(q.shape, dtype=lse.dtype)
    for j in range(-(-S_k // block_n)):
        keys = slice(j * block_n, min((j + 1) * block_n, S_k))
        start, full = algorithm.causal_rows(j, block_m, block_n, S_q, S_k) if is_causal else (0, 0)
        for row_block in range(start, -(-S_q // block_m)):
            rows = slice(row_block * block_m, min((row_block + 1) * block_m, S_q))
            _, ds = algorithm.p_and_ds(q, k, v, do, lse, delta, rows, keys, row_block < full, scale)
            dq[:, :, rows] += scale * ds @ k[:, :, keys].to(ds.dtype)
    return dq.to(q.dtype)


JACOBIAN = "((torch.diag_embed(p) - p[..., :, None] * p[..., None, :]) @ dp[..., None])[..., 0]"
SIZES = "    S_q, S_k = q.shape[2], k.shape[2]\n"
UNTILED = "block_m, block_n = S_q, max(1, S_k)\n"
P_AND_DS = "my_p_and_ds(q, k, v, do, lse, delta, rows, keys, row_block < full, scale)\n"
EXP = "torch.exp(s - lse[:, :, rows, None])"
NAN, COARSE = "one edge is left: a NaN in an input comes out as NaN", "one edge is left: float64 goes in"

WRONG_ANSWERS = (
    ("6.1", softmax_by_autograd, "autograd computes these gradients"),
    edit("6.1", "by Jacobian", ("p * (dp - delta)", JACOBIAN), told="a tensor of 108 elements is built, from inputs of 36: one sum for each row is enough"),
    *(edit(number, "NaN made 0", (old, f"torch.nan_to_num({old})"), told=NAN) for number, old in (
        ("6.1", "p * (dp - delta)"), ("6.2", "p * (dp - (p * dp).sum(dim=-1, keepdim=True))"), ("6.3", "(do.to(lse.dtype) * o.to(lse.dtype)).sum(dim=-1)"))),
    edit("6.1", "in float32", ("    delta = ", "    dtype, p, dp = p.dtype, p.float(), dp.float()\n    delta = "),
         ("p * (dp - delta)", "(p * (dp - delta)).to(dtype)"), told=COARSE),
    ("6.3", delta_from_p, "a tensor of 63 elements is built, from inputs of 18: one sum for each row is enough"),
    *(edit("6.4", f"{hidden} for −inf", ("S_q, -math.inf", f"S_q, {hidden}"), told="stands for −∞: a score may be as small, and a row that sees no key")
      for hidden in ("-1e6", "torch.finfo(dtype).min")),
    edit("6.4", "−1e9 added", ("s.masked_fill(j > i + S_k - S_q, -math.inf)", "s - 1e9 * (j > i + S_k - S_q)"),
         told="scores, and so lse, may be any finite numbers, so no finite one hides a pair"),
    edit("6.4", "exp divided by exp", (EXP, "torch.exp(s) / torch.exp(lse[:, :, rows, None])"), told="exp(s) overflows: subtract lse before exp"),
    edit("6.4", "p in float16", ("    return p, ", "    return p.to(q.dtype), "), told="one edge is left: p comes in float16, and it is float32 for inputs in float16"),
    edit("6.4", "NaN made 0", (EXP, f"{EXP}.nan_to_num()"), told=NAN),
    edit("6.4", "a tile of the whole matrix", ("q[:, :, rows].to", "q.to"), ("k[:, :, keys].to", "k.to"), ("    if mask:", "    s = s[:, :, rows, keys]\n    if mask:"),
         told="a tensor of the whole size, 4 × 4, is built: compute this tile alone"),
    ("6.5", dkdv_that_owns_queries, "your loop comes back to keys that it has left"),
    edit("6.5", "a product in float16", ("p.transpose(-1, -2) @ do[:, :, rows].to(p.dtype)", "p.to(do.dtype).transpose(-1, -2) @ do[:, :, rows]"),
         told="one edge is left: dv: float16 has no 2,735"),
    *(edit(number, "its product in float16", (old, new), told=f"one edge is left: {name}: float16 has no 2,735") for number, name, old, new in (
        ("6.5", "dk", "ds.transpose(-1, -2) @ q[:, :, rows].to(ds.dtype)", "(ds.to(q.dtype).mT @ q[:, :, rows]).to(ds.dtype)"),
        ("6.6", "dq", "ds @ k[:, :, keys].to(ds.dtype)", "(ds.to(k.dtype) @ k[:, :, keys]).to(ds.dtype)"))),
    edit("6.5", "sums in float16", ("torch.zeros(v.shape, dtype=lse.dtype)", "torch.zeros_like(v)"), told="float16 has no 2,735 and no 1.5 · 2,732: multiply in float32, by scale too, and add up in float32"),
    edit("6.5", "untiled", (SIZES, f"{SIZES}    {UNTILED}"), told="all scores are computed at once"),
    edit("6.5", "whole mask", (SIZES, f"{SIZES}    if is_causal:\n        torch.ones(S_q, S_k, dtype=torch.bool).tril(S_k - S_q)\n"),
         told="a tensor of the whole size, 13 × 17, is built"),
    edit("6.5", "visits hidden tiles", ("max(0, j - S_k + S_q) // block_m", "0"), told="more than four products for each tile that is seen: begin the loop over queries"),
    edit("6.5", "p and ds from two calls", (f"            p, ds = {P_AND_DS}", f"            {P_AND_DS}            p, ds = {P_AND_DS}"),
         told="take p and ds of a tile from one call"),
    edit("6.5", "masks every tile", ("row_block < full", "is_causal"),
         told="one edge is left: the result is right, but tiles are masked whose queries see all of the keys"),
    edit("6.5", "masks a short last tile that is seen whole", ("keys.stop - 1 - S_k", "j + block_n - 1 - S_k"),
         told="mask only blocks before full, which the last key that exists decides"),
    edit("6.5", "returns the sums", ("dk.to(k.dtype), dv.to(v.dtype)", "dk, dv"), told="one edge is left: dk comes in float32, and k in float16"),
    ("6.6", dq_that_owns_keys, "your loop comes back to queries that it has left"),
    *(edit(number, "scaled after rounding", ("scale * ds", "ds"), (f"{name}.to(", f"scale * {name}.to("), told="scale before you convert")
      for number, name in (("6.5", "dk"), ("6.6", "dq"))),
    *(edit(number, "scaled in float16", (f"scale * {ds} @ {x}.to(ds.dtype)", f"{ds} @ (scale * {x}).to(ds.dtype)"), told=f"one edge is left: {name}: float16 has no 2,735 and no 1.5 · 2,732")
      for number, name, ds, x in (("6.5", "dk", "ds.transpose(-1, -2)", "q[:, :, rows]"), ("6.6", "dq", "ds", "k[:, :, keys]"))),
    *(edit("6.4", f"{name} without its last dimension", (f"{name}[:, :, rows, None]", f"{name}[:, :, rows]"), told="each query has one lse and one delta")
      for name in ("lse", "delta")),
    edit("6.5", "the first rows of do", ("do[:, :, rows]", "do[:, :, : rows.stop - rows.start]"), told="each with its own rows of do and q"),
    edit("6.5", "ds not transposed", ("ds.transpose(-1, -2)", "ds"), told="one tile without a mask: dv = pᵀ do"),
    edit("6.5", "start a block late", ("range(start, ", "range(start + is_causal, "), told="so a tile with such a pair counts"),
    edit("6.6", "masks every tile", ("key_block >= full", "is_causal"), told="mask only blocks from full on"),
    edit("6.6", "visits hidden tiles", ("range(end)", "range(math.ceil(S_k / block_n))"),
         told="one edge is left: the result is right, but it takes more than three products for each tile that is seen"),
    edit("6.6", "blocks exchanged", (SIZES, f"{SIZES}    block_m, block_n = block_n, block_m\n"), told="block_m and block_n are exchanged"),
    edit("6.6", "keeps ds", (SIZES, f"{SIZES}    tiles = []\n"), ("            dq[", "            tiles.append(ds)\n            dq["), told="one edge is left: tiles are kept"),
)  # fmt: skip
