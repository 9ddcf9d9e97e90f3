import torch
from edits import edit

from fa_tutorial import algorithm


def converted(first: str, names: str, result: str = "") -> tuple:
    """The changes to a body that begins with `first`: the tensors `names` become float64, or float32 if the `result` is converted back."""
    to = "float" if result else "double"
    inner = (first, f"    dtype, ({names}) = {names[0]}.dtype, (x.{to}() for x in ({names}))\n{first}")
    return (inner, (f"return {result}", f"return tuple(x.to(dtype) for x in ({result}))")) if result else (inner,)


def softmax_by_autograd(p, dp):
    with torch.enable_grad():
        s = torch.log(p).requires_grad_()
        torch.softmax(s, -1).backward(dp)
        return s.grad


def softmax_of_pytorch(p, dp):
    return torch._softmax_backward_data(dp, p, -1, p.dtype)


def delta_from_p(q, k, v, o, lse, do):
    p = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, dim=-1)
    return (p * (do @ v.mT)).sum(dim=-1)


def attention_by_autograd(q, k, v, p, do, scale):
    with torch.enable_grad():
        q, k, v = leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        hidden = (p == 0) & ~(p == 0).all(-1, keepdim=True)
        (torch.softmax((scale * q @ k.mT).masked_fill(hidden, -torch.inf), -1) @ v).backward(do)
        return tuple(x.grad for x in leaves)


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


PRODUCT = "do.to(lse.dtype) * o.to(lse.dtype)"


def dq_with_bounds_of_keys(q, k, v, do, lse, delta, block_m, block_n, is_causal, scale):
    S_q, S_k = q.shape[2], k.shape[2]
    dq = torch.zeros(q.shape, dtype=lse.dtype)
    for i in range(-(-S_q // block_m)):
        rows = slice(i * block_m, min((i + 1) * block_m, S_q))
        for j in range(-(-S_k // block_n)):
            start, full = algorithm.causal_rows(j, block_m, block_n, S_q, S_k) if is_causal else (0, 0)
            if i >= start:
                keys = slice(j * block_n, min((j + 1) * block_n, S_k))
                _, ds = algorithm.p_and_ds(q, k, v, do, lse, delta, rows, keys, i < full, scale)
                dq[:, :, rows] += scale * ds @ k[:, :, keys].to(ds.dtype)
    return dq.to(q.dtype)


JACOBIAN = "((torch.diag_embed(p) - p[..., :, None] * p[..., None, :]) @ dp[..., None])[..., 0]"
SIZES = "    S_q, S_k = q.shape[2], k.shape[2]\n"
START = "max(0, j - S_k + S_q) // block_m"
UNTILED = "block_m, block_n = S_q, max(1, S_k)\n"

WRONG_ANSWERS = (
    ("6.2", attention_by_autograd, "autograd computes these gradients"),
    edit("6.1", "by Jacobian", ("p * (dp - delta)", JACOBIAN), told="a tensor of 108 elements is built, from inputs of 36: one sum for each row is enough"),
    edit("6.1", "all rows by all rows", ("(p * dp).sum(dim=-1, keepdim=True)", "(p @ dp.mT).diagonal(dim1=-2, dim2=-1)[..., None]"),
         told="a tensor of 256 elements is built, from inputs of 48: one sum for each row is enough"),
    ("6.1", softmax_by_autograd, "autograd computes these gradients"),
    ("6.1", softmax_of_pytorch, "autograd computes these gradients"),
    edit("6.1", "divided by the sum of p", ("(p * dp).sum(dim=-1, keepdim=True)", "(p * dp).sum(dim=-1, keepdim=True) / p.sum(dim=-1, keepdim=True)"),
         told="one edge is left: a row that sees nothing has p = 0, and gets ds = 0"),
    *(edit(number, "NaN made 0", (old, f"torch.nan_to_num({old})"), told="one edge is left: a NaN in an input comes out as NaN")
      for number, old in (("6.1", "p * (dp - delta)"), ("6.2", "p * (dp - (p * dp).sum(dim=-1, keepdim=True))"), ("6.3", f"({PRODUCT}).sum(dim=-1)"))),
    *(edit(number, f"NaN in {name} made 0", (first, f"    {name} = {name}.nan_to_num()\n{first}"), told="a NaN in an input comes out as NaN")
      for number, name, first in (("6.1", "p", "    delta = "), ("6.2", "p", "    dv = p"), ("6.3", "o", "    return (do"))),
    edit("6.1", "in float32", ("    delta = ", "    dtype, p, dp = p.dtype, p.float(), dp.float()\n    delta = "),
         ("p * (dp - delta)", "(p * (dp - delta)).to(dtype)"), told="one edge is left: float64 goes in"),
    edit("6.1", "in float64", *converted("    delta = ", "p, dp"), told="ds comes in float64, and s in float32"),
    *(edit("6.2", f"returns {names}", ("return dq, dk, dv", f"return {names}"), told="o = p v and s = scale · q kᵀ take (6.3), and p = softmax(s) takes (6.5)")
      for names in ("dk, dq, dv", "dk, dv, dq")),
    edit("6.2", "columns' sum", ("dim=-1", "dim=-2"), told="o = p v and s = scale · q kᵀ take (6.3), and p = softmax(s) takes (6.5)"),
    edit("6.2", "scaled twice", ("dq = scale", "dq = scale**2"), told="dq and dk have the factor scale once"),
    edit("6.4", "no scale", ("scale * (q", "(q"), told="s = scale · q kᵀ, lse is log Σ exp(s) of the whole row"),
    edit("6.2", "in float64", *converted("    dv = ", "q, k, v, p, do"), told="dq comes in float64, and q in float32"),
    edit("6.2", "in float32", *converted("    dv = ", "q, k, v, p, do", "dq, dk, dv"), told="one edge is left: float64 goes in"),
    ("6.3", delta_from_p, "a tensor of 63 elements is built, from inputs of 18: one sum for each row is enough"),
    edit("6.3", "all rows by all rows", (f"({PRODUCT}).sum(dim=-1)", "(do.to(lse.dtype) @ o.to(lse.dtype).mT).diagonal(dim1=-2, dim2=-1)"),
         told="a tensor of 49 elements is built, from inputs of 18: one sum for each row is enough"),
    edit("6.3", "in float64", (PRODUCT, "do.double() * o"), told="delta comes in float64, and it is float32 for inputs in float32"),
    edit("6.3", "in float32", (PRODUCT, "do.float() * o.float()"), told="one edge is left: float64 in gives float64's accuracy out"),
    edit("6.4", "in float64", ("lse.dtype", "torch.float64"), told="p comes in float64, and it is float32 for inputs in float32"),
    edit("6.4", "in float32", ("lse.dtype", "torch.float32"), told="one edge is left: float64 goes in"),
    *(edit("6.4", f"{hidden} for −inf", ("S_q, -math.inf", f"S_q, {hidden}"), told="stands for −∞: a score may be as small, and a row that sees no key")
      for hidden in ("-1e6", "-1e30", "torch.finfo(dtype).min")),
    edit("6.4", "−1e9 added", ("s.masked_fill(j > i + S_k - S_q, -math.inf)", "s - 1e9 * (j > i + S_k - S_q)"),
         told="scores may be any finite numbers: a hidden pair is hidden by −inf"),
    edit("6.4", "exp divided by exp", ("torch.exp(s - lse[:, :, rows, None])", "torch.exp(s) / torch.exp(lse[:, :, rows, None])"),
         told="exp(s) overflows or underflows: subtract lse before exp"),
    edit("6.4", "p in float16", ("    return p, ", "    return p.to(q.dtype), "), told="one edge is left: p comes in float16, and it is float32 for inputs in float16"),
    edit("6.4", "NaN made 0", ("rows, None])\n    dp", "rows, None]).nan_to_num()\n    dp"),
         told="one edge is left: q begins with NaN: a NaN in an input comes out as NaN: whatever turns NaN into 0 hides it"),
    edit("6.4", "NaN in lse made 0", ("lse == -math.inf, math.inf, lse", "lse > -math.inf, lse, math.inf"), told="lse begins with NaN"),
    edit("6.4", "a tile of the whole matrix", ("q[:, :, rows].to", "q.to"), ("k[:, :, keys].to", "k.to"), ("    if mask:", "    s = s[:, :, rows, keys]\n    if mask:"),
         told="a tensor of the whole size, 4 × 6, is built: compute this tile alone"),
    edit("6.4", "a tile of the whole mask", ("[rows, None], torch.arange(S_k)[keys]", "[:, None], torch.arange(S_k)"),
         ("(j > i + S_k - S_q, ", "((j > i + S_k - S_q)[rows, keys], "), told="one edge is left: a tensor of the whole size, 11 × 14, is built"),
    ("6.5", dkdv_that_owns_queries, "your loop comes back to keys that it has left"),
    ("6.6", dq_with_bounds_of_keys, "the result is right, but causal_rows bounds the queries of a block of keys"),
    ("6.6", dq_that_owns_keys, "your loop comes back to queries that it has left"),
    edit("6.5", "NaN made 0", ("            dv[", "            p = p.nan_to_num()\n            dv["), told="a NaN in an input comes out as NaN"),
    *(edit(number, f"NaN in {name} made 0", (SIZES, f"{SIZES}    {name} = {name}.nan_to_num()\n"), told="a NaN in an input comes out as NaN")
      for number, name in (("6.5", "delta"), ("6.5", "do"), ("6.6", "delta"))),
    edit("6.5", "a product in float16", ("p.transpose(-1, -2) @ do[:, :, rows].to(p.dtype)", ("p.to(do.dtype).transpose(-1, -2) @ do[:, "
                                                                                             ":, rows]")),
         told="one edge is left: dv: 2,049 − 2,048 is 1, and float16 has no 2,049"),
    edit("6.5", "untiled", (SIZES, f"{SIZES}    {UNTILED}"), told="all scores are computed at once"),
    edit("6.5", "untiled if causal", (SIZES, f"{SIZES}    if is_causal:\n        {UNTILED}"),
         told="all scores are computed at once: a product takes parts of shape (14, 11)"),
    edit("6.5", "all queries at once", (SIZES, f"{SIZES}    block_m = S_q\n"), told="all queries are taken at once"),
    edit("6.5", "whole mask", (SIZES, f"{SIZES}    if is_causal:\n        torch.ones(S_q, S_k, dtype=torch.bool).tril(S_k - S_q)\n"),
         told="a tensor of the whole size, 11 × 14, is built"),
    edit("6.6", "masks every tile", ("key_block >= full", "is_causal"),
         told="one edge is left: the result is right, but tiles are masked whose queries see all of the keys: mask only blocks from full on"),
    edit("6.5", "start aligned top left, every tile masked", ("max(0, j - S_k + S_q) //", "j //"), ("row_block < full", "is_causal"),
         told="query i sees keys 0 … i + S_k − S_q, so query 0 sees two"),
    edit("6.5", "delta of the tile", ("do, lse, delta, rows", "do, lse, 0 * delta, rows"),
         ("            dv[", "            ds = ds - p * ds.sum(dim=-1, keepdim=True)\n            dv["), told="a tile's p and ds take lse and delta of the whole row"),
    edit("6.5", "visits hidden tiles", (START, "0"), told="more than four products for each tile that is seen: begin the loop over queries"),
    edit("6.5", "p and ds from two calls", ("            p, ds = ", "            my_p_and_ds(q, k, v, do, lse, delta, rows, keys, row_block < full, scale)\n            p, ds = "),
         told="take p and ds of a tile from one call"),
    edit("6.5", "masks every tile", ("row_block < full", "is_causal"),
         told="one edge is left: the result is right, but tiles are masked whose queries see all of the keys"),
    edit("6.5", "masks a short last tile that is seen whole", ("keys.stop - 1 - S_k", "j + block_n - 1 - S_k"),
         told="mask only blocks before full, which the last key that exists decides"),
    edit("6.6", "bounds aligned top left", ("range(end)", "range(min(end, math.ceil(rows.stop / block_n)) if is_causal else end)"),
         told="query i sees keys 0 … i + S_k − S_q, so query 0 sees two"),
    edit("6.5", "in float64", *converted(SIZES, "q, k, v, do, lse, delta"), told="dk comes in float64, and k in float32"),
    edit("6.5", "returns the sums", ("dk.to(k.dtype), dv.to(v.dtype)", "dk, dv"),
         told="one edge is left: dk comes in float32, and k in float16"),
    *(edit(number, "scaled after rounding", ("scale * ds", "ds"), (f"{name}.to(", f"scale * {name}.to("), told="scale before you convert")
      for number, name in (("6.5", "dk"), ("6.6", "dq"))),
    edit("6.6", "returns the sum", ("dq.to(q.dtype)", "dq"), told="dq comes in float32, and q in float16"),
    edit("6.6", "visits hidden tiles", ("range(end)", "range(math.ceil(S_k / block_n))"),
         told="one edge is left: the result is right, but it takes more than three products for each tile that is seen"),
    edit("6.6", "all keys at once", (SIZES, f"{SIZES}    block_n = max(1, S_k)\n"), told="all keys of a block of rows are taken at once"),
    edit("6.6", "blocks exchanged", (SIZES, f"{SIZES}    block_m, block_n = block_n, block_m\n"), told="block_m and block_n are exchanged"),
    edit("6.1", "0 wherever p is 0", ("p * (dp - delta)", "torch.where(p == 0, torch.zeros_like(p), p * (dp - delta))"),
         told="one edge is left: a NaN in an input comes out as NaN"),
    edit("6.2", "scale from D", ("    dv = p", "    scale = 1 / q.shape[-1] ** 0.5\n    dv = p"), told="scaled by 1/√D: use the scale that is given"),
    edit("6.3", "p without the scale", (f"({PRODUCT}).sum(dim=-1)", "torch.einsum('bhij,bhij->bhi', (q @ k.mT - lse[..., None]).exp(), do @ v.mT)"),
         told="p is recomputed without the scale, which isn't given"),
    edit("6.5", "start of the last key", (START, "max(0, min(j + block_n, S_k) - 1 - (S_k - S_q)) // block_m"),
         told="start comes from the last key: the first one decides"),
    edit("6.5", "start in blocks of keys", (START, "max(0, j + S_q - S_k) // block_n"), told="start is divided by block_n"),
    edit("6.5", "float32 sums of float64", ("lse.dtype", "torch.float32", 2), (".to(p.dtype)", ".float()"), (".to(ds.dtype)", ".float()"),
         told="convert only fp16 and bf16 to float32"),
    edit("6.6", "the bounds of 6.5", ("full = end =", "first, full, end = 0, 0,"), ("full, end = algorithm.causal_tiles", "first, full = algorithm.causal_rows"),
         ("range(end)", "range(first, end)"), ("key_block >= full", "key_block < full"), told="these are the bounds of 6.5"),
    edit("6.6", "masks before full", ("key_block >= full", "not key_block >= full"), told="the mask is on before full"),
    edit("6.6", "keeps ds", (SIZES, f"{SIZES}    tiles = []\n"), ("            dq[", "            tiles.append(ds)\n            dq["),
         told="one edge is left: tiles are kept"),
)  # fmt: skip
