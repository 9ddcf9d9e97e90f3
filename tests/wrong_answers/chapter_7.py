import torch
from edits import edit

from fa_tutorial import reference
from fa_tutorial.exercises.chapter_7.ex_8 import FlashAttention
from fa_tutorial.exercises.forward_cases import WIDENED


class Module(torch.nn.Module):
    def forward(self, q, k, v, is_causal, scale):
        return reference.naive_attention(q, k, v, is_causal, scale)


TOO_WIDE = f"the result is right, but {WIDENED}"
LSE_MASKED = "lse_ptr + batch_head * S_q + offs_m, mask=offs_m < S_q"
ADD = "tl.atomic_add(places, dq_part, "
LOAD_ADD_STORE = ADD.replace("atomic_add", "store").replace(
    "dq_part", "dq_part + tl.load(places, mask=(offs_m[:, None] < S_q) & (offs_d[None, :] < D), other=0.0)"
)
ROWS = "offs_m[:, None] < S_q"
EXP = "tl.exp(s_t - lse[None, :])"
MASKED_P = f"tl.where(here[:, None], {EXP}, 0.0)"
DK_ZEROS = "dk_acc = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)"
P = "tl.where(seen, tl.exp(s - lse[:, None]), 0.0)"
END = "end_n = tl.minimum(start_m + BLOCK_M, S_q) + S_k - S_q"
STORES = """    store_tile(dk, dk_acc * scale, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D)
    store_tile(dv, dv_acc, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D)"""
HEAD = "dq.ptr + b.to(tl.int64) * dq.strides[0] + h.to(tl.int64) * dq.strides[1]"
PLACES = "offs_m.to(tl.int64)[:, None] * dq.strides[2] + offs_d[None, :] * dq.strides[3]"
SAVE = "ctx.save_for_backward(q, k, v, o, lse)"
RUN_AGAIN = "q, k, v = ctx.saved_tensors\n        o, lse = forward.flash_forward(q, k, v, ctx.is_causal, ctx.scale)"
SEVEN = (
    "dot((tl.where(here[None, :], tl.exp(scale * dot(q_tile, tl.trans(k_tile)) - lse[:, None]), 0.0)"
    " * (dot(do_tile, tl.trans(v_tile)) - delta[:, None])).to(q_tile.dtype), k_tile)"
)

WRONG_ANSWERS = (
    edit("7.1", "row blocks rounded down", ("tl.cdiv(S_q, BLOCK_M)", "S_q // BLOCK_M"), told="count tl.cdiv(S_q, BLOCK_M) row blocks to a head"),
    edit("7.1", "no mask for the store", (", mask=offs_m < S_q", ""), told="mask the store by offs_m < S_q"),
    edit("7.1", "products in fp16", ("o_tile.to(tl.float32) * do_tile.to(tl.float32)", "(o_tile * do_tile).to(tl.float32)"),
         told="products and sums are float32: fp16 ends at 65504"),
    edit("7.2", "exp divided by exp", (EXP, "tl.exp(s_t) / tl.exp(lse)[None, :]"), told="exp(s − lse) is at most 1: compute it in one step"),
    edit("7.2", "scores in fp16", ("tl.exp(s_t", "tl.exp(s_t.to(q_tile.dtype).to(tl.float32)"), told="s, dp, delta stay float32"),
    *(edit(number, "ds from the rounded p", (p, f"{p}.to(do_tile.dtype)"), told="ds is computed from the p that isn't rounded")
      for number, p in (("7.2", EXP), ("7.3", EXP), ("7.5", P), ("7.6", MASKED_P))),
    *(edit(number, f"{of} scaled and rounded for its gradient", (old, old.replace(f"{of}_tile", f"(scale * {of}_tile).to({of}_tile.dtype)")),
           (f"{scaled} * scale", scaled), told="multiplied as they are, and scale multiplies float32 numbers only")
      for number, of, old, scaled in (("7.2", "q", " q_tile)  #", "dk_acc"), ("7.5", "k", "k_tile, acc)", "acc"))),
    *(edit(number, "ds scaled in fp16", (f"{ds}.to({of}_tile.dtype)", f"({ds}.to({of}_tile.dtype) * scale).to({of}_tile.dtype)"),
           (f"{scaled} * scale", scaled), told="scale multiplies float32 numbers only", gpu=None)
      for number, ds, of, scaled in (("7.2", "ds_t", "q", "dk_acc"), ("7.3", "ds_t", "q", "dk_acc"), ("7.5", "ds", "k", "acc"))),
    edit("7.6", "k scaled and rounded for dq", ("scale * dot(tl.trans(ds_t), k_tile)", "dot(tl.trans(ds_t), (scale * k_tile).to(k_tile.dtype))"),
         told="multiplied as they are, and scale multiplies float32 numbers only"),
    edit("7.5", "k scaled and rounded", ("scale * dot(q_tile, tl.trans(k_tile))", "dot(q_tile, tl.trans((scale * k_tile).to(q_tile.dtype)))"),
         told="scale multiplies float32 numbers only"),
    *(edit(number, f"{name} rounded before it is scaled", (f"{acc} * scale, b", f"{acc}.to({name}.ptr.dtype.element_ty) * scale, b"),
           told="scaled in float32, and then rounded once") for number, name, acc in (("7.2", "dk", "dk_acc"), ("7.5", "dq", "acc"))),
    edit("7.2", "tl.dot for dk's product", ("dk_acc = dot(", "dk_acc = tl.dot("), told="all in float32's digits", gpu=None),
    *(edit(number, "k scaled and rounded for s", ("scale * dot(k_tile,", "dot((scale * k_tile).to(k_tile.dtype),"),
           told="scale multiplies float32 numbers only") for number in ("7.2", "7.3")),
    edit("7.2", "dp − delta rounded", ("(dp_t - delta[None, :])", "(dp_t - delta[None, :]).to(q_tile.dtype).to(tl.float32)"),
         told="and from a float32 dp − delta"),
    edit("7.3", "exp divided by exp", (EXP, "tl.exp(s_t) / tl.exp(lse)[None, :]"), told="exp(s − lse) takes one step"),
    edit("7.2", "a softmax of the tile", (f"p_t = {EXP}", "e = tl.exp(s_t)\n    p_t = e / tl.sum(e, axis=0)[None, :]"),
         told="a row has keys in other tiles, and lse counts them all"),
    edit("7.2", "do widened", ("dot(p_t.to(do_tile.dtype), do_tile)", "dot(p_t, do_tile.to(tl.float32))"), told=TOO_WIDE, gpu=None),
    edit("7.3", "dk_acc is None before the loop", (DK_ZEROS, "dk_acc = None"), told="Loop carried variable dk_acc is not a triton value"),
    edit("7.3", "stored in every step", (STORES, STORES.replace("    store", "        store")),
         told="the result is right, but dk is stored more than once", gpu=None),
    edit("7.3", "queries not masked", ("offs_m < S_q", "offs_m < S_q + BLOCK_M", 2),
         told="no row past S_q is read or written", gpu="past S_q, in the last block, lse and delta are loaded as 0"),
    edit("7.3", "no other", (f"{LSE_MASKED}, other=0.0", LSE_MASKED), told="what a masked load gives without other, may be anything", gpu=None),
    edit("7.3", "sum of dk in fp16", ("q_tile, dk_acc)", "q_tile, dk_acc).to(q_tile.dtype).to(tl.float32)"), told="the sums over blocks are kept in float32"),
    *(edit(number, f"{new} where {old} belongs", (text, text.replace(old, new)), told="start_m counts by BLOCK_M, start_n by BLOCK_N")
      for number, text, old, new in (("7.3", "range(0, S_q, BLOCK_M)", "BLOCK_M", "BLOCK_N"), ("7.5", "range(0, end_n, BLOCK_N)", "BLOCK_N", "BLOCK_M"),
                                     ("7.7", "range(first_m, full_m, BLOCK_M)", "BLOCK_M", "BLOCK_N"))),
    *(edit("7.4", f"{name} not clamped", (f"tl.maximum({first} + S_q - S_k, 0)", f"({first} + S_q - S_k)"),
           told="no loop starts before query 0", gpu=gpu)
      for name, first, gpu in (("start", "start_n", "takes the query"), ("full_m", "last_key", "i + S_k − S_q"))),
    edit("7.4", "IS_CAUSAL ignored", ("if IS_CAUSAL:\n        first", "if True:\n        first"), ("if IS_CAUSAL:\n        for", "if True:\n        for"),
         told="the loop without a mask takes every query, and the loop with it none"),
    *(edit(number, "dv scaled", ("dv_acc, b", "dv_acc * scale, b"), told=told) for number, told in (("7.4", "dv = Σ pᵀ do"), ("7.6", "dv = pᵀ do"))),
    edit("7.4", "one loop only where causal", ("range(full_m, S_q, BLOCK_M)", "range(S_q if IS_CAUSAL else 0, S_q, BLOCK_M)"),
         told="and the loop without a mask takes the query"),
    edit("7.4", "a block with a mask at least", ("tl.maximum(last_key + S_q - S_k, 0)", "tl.maximum(last_key + S_q - S_k, 1)"),
         told="a block of queries is masked only if one of its queries does not see the last key", gpu=None),
    edit("7.4", "last key not clipped", ("tl.minimum(start_n + BLOCK_N, S_k) - 1", "start_n + BLOCK_N - 1"),
         told="of 5 tiles 3 are masked, and 2 need it", gpu=None),
    edit("7.4", "no batch where causal", ("        first_m = ", "        row = h * S_q\n        first_m = "),
         told="both loops take b and h as before, and rows of lse and delta from batch_head · S_q on: causal, B = 2"),
    edit("7.4", "full one query early", ("last_key + S_q", "last_key - 1 + S_q"), told="keys 16 and 17 are seen from query 17 on"),
    edit("7.5", "multiplied by the mask", (P, "tl.exp(s - lse[:, None]) * seen.to(tl.float32)"), told="inf · 0 is NaN, so choose with tl.where"),
    edit("7.5", "keys past S_k not masked", ("offs_n[None, :] < S_k", "offs_n[None, :] >= 0"), told="a key past S_k has p = 0"),
    edit("7.5", "keys past S_k not masked, NaN made 0", ("offs_n[None, :] < S_k", "offs_n[None, :] >= 0"),
         ("    store_tile(dq", "    acc = tl.where(acc == acc, acc, 0.0)\n    store_tile(dq"), told="a key past S_k has p = 0"),
    edit("7.5", "keys past S_k not masked, p bounded", ("offs_n[None, :] < S_k", "offs_n[None, :] >= 0"),
         ("tl.exp(s - lse[:, None])", "tl.exp(tl.minimum(s - lse[:, None], 0.0))"), told="may pass fp16's 65,504"),
    edit("7.6", "p bounded by 1", (MASKED_P, "tl.minimum(tl.exp(s_t - lse[None, :]), 1.0)"), told="may pass fp16's 65,504"),
    edit("7.6", "infinite ds made 0", (MASKED_P, EXP), ("(p_t * (dp_t - delta[None, :])).to", "(p_t * (dp_t - delta[None, :]))\n        ds_t = tl.where(ds_t - ds_t == 0, ds_t, 0.0).to"),
         told="may pass fp16's 65,504", gpu="dq = scale · ds k"),
    edit("7.6", "every batch's heads apart by the heads' stride", (HEAD, "dq.ptr + batch_head.to(tl.int64) * dq.strides[1]"),
         told="dq has four strides of its own"),
    edit("7.5", "a block that sees nothing returns", ("    for start_n", "    if end_n <= 0:\n        return\n    for start_n"),
         told="rows that see no key have dq = 0"),
    edit("7.5", "-1e30 in place of −∞", (f"{LSE_MASKED}, other=0.0)  # [BLOCK_M]\n    delta",
         f'{LSE_MASKED}, other=0.0)\n    lse = tl.where(lse == -float("inf"), 0.0, lse)\n    delta'),
         (P, "tl.exp(tl.where(seen, s, -1e30) - lse[:, None])"), told="any finite number in place of −∞ may be larger"),
    edit("7.5", "k and v of the query head", ("load_tile(k, b, h_k", "load_tile(k, b, h"), ("load_tile(v, b, h_k", "load_tile(v, b, h"),
         told="k and v have H_k heads, and query head h reads", gpu=None),
    edit("7.5", "end one key short", (END, f"{END} - 1"), told="the row sees key 16, alone in the second tile"),
    edit("7.5", "end_n past the last row", ("tl.minimum(start_m + BLOCK_M, S_q)", "(start_m + BLOCK_M)"),
         told="tiles are multiplied that no row of their block sees", gpu=None),
    edit("7.5", "all tiles read", (END, "pass"), told="tiles are multiplied that no row of their block sees", gpu=None),
    edit("7.5", "k widened", ("dot(ds.to(k_tile.dtype), k_tile,", "dot(ds, k_tile.to(tl.float32),"), told=TOO_WIDE, gpu=None),
    edit("7.6", "loaded, added and stored", (ADD, LOAD_ADD_STORE), (', sem="relaxed"', ""), told="several programs store to the same elements of dq", gpu="dq"),
    edit("7.6", "dq by the strides of q", (HEAD, HEAD.replace("dq.strides", "q.strides")), (PLACES, PLACES.replace("dq.strides", "q.strides")),
         told="dq has four strides of its own"),
    edit("7.6", "rows past S_q added", (f"({ROWS}) & ", ""), told="as the atomic add does", gpu=None),
    edit("7.7", "rows of query head h_k", ("GROUP + h) * S_q", "GROUP + h_k) * S_q"), told="each with its own q, do, lse and delta"),
    edit("7.7", "a program for each query head", ("batch_head // H_k, batch_head % H_k", "batch_head // (H_k * GROUP), batch_head % (H_k * GROUP)"),
         told="b and h_k come from H_k, the rows of lse and delta from H_q", gpu="dk"),
    edit("7.7", "sum of dk rounded after each query head", ("        h = h_k", "        dk_acc = dk_acc.to(dk.ptr.dtype.element_ty).to(tl.float32)\n        h = h_k"),
         told="the sums over the group are kept in float32"),
    edit("7.7", "dk rounded before it is scaled", ("dk_acc * scale, b", "dk_acc.to(dk.ptr.dtype.element_ty) * scale, b"), told="until dk is scaled"),
    edit("7.6", "s and dp computed again for dq", ("dot(tl.trans(ds_t), k_tile)", SEVEN), told="a step takes 7 matmuls", gpu=None),
    edit("7.7", "sums rounded after each query head", ("        h = h_k", "        dv_acc = dv_acc.to(dv.ptr.dtype.element_ty).to(tl.float32)\n        h = h_k"),
         told="the sums over the group are kept in float32"),
    edit("7.8", "settings shared by all calls", ("ctx.is_causal, ctx.scale = is_causal, scale", "FlashAttention.settings = is_causal, scale"),
         ("ctx.is_causal, ctx.scale)", "*FlashAttention.settings)"), told="by settings of this call, which ctx keeps"),
    edit("7.3", "tl.dot for dk's product", ("dot(ds_t.to(q_tile.dtype)", "tl.dot(ds_t.to(q_tile.dtype)"), told="tl.dot multiplies float32 in TF32", gpu=None),
    edit("7.5", "tl.dot for s", ("scale * dot(", "scale * tl.dot("), told="tl.dot multiplies float32 in TF32", gpu=None),
    edit("7.4", "first_m in blocks", ("// BLOCK_M * BLOCK_M", "// BLOCK_M"), told="first_m and full_m count queries in whole blocks"),
    edit("7.6", "the share added twice", ("dot(tl.trans(ds_t), k_tile)", "2.0 * dot(tl.trans(ds_t), k_tile)"), told="added once"),
    edit("7.8", "matrix saved", (SAVE, f"{SAVE[:-1]}, torch.softmax(q @ k.mT, dim=-1))"), ("lse = ctx.saved", "lse, _ = ctx.saved"),
         told="keep q, k, v, o and lse by it, and no others"),
    edit("7.8", "tensors on ctx", (SAVE, "ctx.tensors = [q, k, v, o, lse]"), ("ctx.saved_tensors", "ctx.tensors"), told="save_for_backward gets no tensor"),
    edit("7.8", "forward run again", (SAVE, "ctx.save_for_backward(q, k, v)"), ("q, k, v, o, lse = ctx.saved_tensors", RUN_AGAIN),
         told="the result is right, but with S_q = S_k = 24 and D = 4, save_for_backward gets"),
    edit("7.8", "lse returned", ("return o\n", "return o, lse\n"), told="forward returns a tuple of 2: o alone is the result"),
    edit("7.8", "do.view", ("o, do, lse", "o, do.view(-1).view(o.shape), lse"), told="do a (B, S, H, D) tensor seen as"),
    edit("7.8", "no dv", ("return dq, dk, dv,", "return dq, dk, None,"), told="dv is None"),
    edit("7.8", "two values missing", ("dv, None, None", "dv"), told="returned an incorrect number of gradients (expected 5, got 3)"),
    edit("7.8", "twice differentiable", ("    @torch.autograd.function.once_differentiable\n", ""), told="a second derivative is silently wrong"),
    ("7.8", Module, "a subclass of torch.autograd.Function is wanted"),
    ("7.8", FlashAttention.apply, "pass the class itself"),
)  # fmt: skip
