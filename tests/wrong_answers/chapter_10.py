import torch
from edits import edit

from fa_tutorial.exercises.forward_cases import WIDENED
from fa_tutorial.matmul import tl, triton


@triton.jit
def soft_cap_by_growing_exponentials(s, b, h, i, j, aux):
    e = tl.exp(2 * s / aux.c)
    return aux.c * (e - 1) / (e + 1), 4 * e / ((e + 1) * (e + 1))


def window_kinds_by_pairs(left, S, block_m, block_n):
    distance = torch.arange(S) - torch.arange(S)[:, None]
    seen = ((distance <= 0) & (distance >= -left)).view(S // block_m, block_m, S // block_n, block_n)
    pairs = seen.sum(dim=(1, 3))
    return (pairs > 0).int() + (pairs == block_m * block_n).int()


def window_kinds_by_a_loop_over_pairs(left, S, block_m, block_n):
    kinds = torch.zeros(S // block_m, S // block_n, dtype=torch.int64)
    for row, tile in torch.cartesian_prod(*map(torch.arange, kinds.shape)).tolist():
        queries, keys = range(row * block_m, (row + 1) * block_m), range(tile * block_n, (tile + 1) * block_n)
        seen = [-left <= j - i <= 0 for i in queries for j in keys]
        kinds[row, tile] = any(seen) + all(seen)
    return kinds


def packed_tiles_by_the_pairs_of_a_block(cu, block):
    sequence = torch.arange(len(cu) - 1).repeat_interleave(cu.diff().long())
    first, end = [], []
    for start in range(0, len(sequence), block):
        seen = (sequence[start : start + block, None] == sequence).any(dim=0).nonzero()[:, 0]
        first.append(int(seen[0]) // block)
        end.append(int(seen[-1]) // block + 1)
    return torch.tensor(first), torch.tensor(end)


def dropout_gradients_by_autograd(p, p_sink, z, v, do):
    s, sink, v = p.log().requires_grad_(), p_sink.log().requires_grad_(), v.clone().requires_grad_()
    share = torch.softmax(torch.cat([sink[:, None], s], dim=1), dim=1)
    ds, dv, dsink = torch.autograd.grad(((z * share[:, 1:]) @ v * do).sum(), (s, v, sink))
    return ds, dv, dsink.sum()


BOTH = "(distance <= 0) & (distance >= -aux.left)"
SINK_ALONE = "only the sink is new"
TOO_WIDE = f"the result is right, but {WIDENED}"

WRONG_ANSWERS = (
    edit("10.1", "another name", ("-aux.left", "-aux.window"), told="aux has left, shift and c", gpu="stops with"),
    edit("10.1", "no brackets", (BOTH, "distance <= 0 & distance >= -aux.left"), told="or a < b & c < d without brackets", gpu="stops with"),
    edit("10.1", "and", (") & (", ") and ("), told="join masks by &, not by `and`", gpu=None),
    edit("10.1", "numbers", (BOTH, f"tl.where({BOTH}, 1, 0)"), told="a mask mod returns booleans"),
    edit("10.1", "of the first tile alone", ("j - (i + aux.shift)", "tl.arange(0, 16)[None, :] - tl.arange(0, 8)[:, None] - aux.shift"),
         told="a tile may be anywhere, and of any shape"),
    ("10.2", window_kinds_by_pairs, "they come from single pairs: two corners decide a tile"),
    ("10.2", window_kinds_by_a_loop_over_pairs, "they come from single pairs: two corners decide a tile"),
    edit("10.2", "only distances below 0", ("(farthest <= 0)", "(farthest < 0)"), told="pairs at distances 0 and −left are seen"),
    edit("10.2", "a tile at distance −left is left out", ("(nearest >= -left)", "(nearest > -left)"), told="a tile is needed only if its last key lies at most"),
    edit("10.3", "the whole tiles don't rescale", ("v_tile, acc * alpha[:, None])\n    l = ", "v_tile, acc)\n    l = "), told="and multiply acc by alpha"),
    edit("10.3", "t in place of the number for j", ("j = start_n", "j = t * BLOCK_N"), told="a tile starts at its number · BLOCK_N"),
    edit("10.3", "the end of v isn't given", ("load_tile(v, b, h, start_n, S_k", "load_tile(v, b, h, start_n, None"),
         told="there load_tile needs S_k, for k and for v", gpu=None),
    edit("10.3", "across, not across − 1", ("across + across - 1 - t", "across + across - t"), told="and how many whole, at across − 1",
         gpu="share one m, l and acc"),
    edit("10.3", "begins anew", ("    for t in range(whole)", "    l = tl.zeros((BLOCK_M,), dtype=tl.float32)\n    for t in range(whole)"),
         told="with one m, l and acc for both loops"),
    edit("10.3", "one loop, and every tile asks the mask", ("range(mixed)", "range(mixed + whole)"), ("range(whole)", "range(0)"),
         ("+ t) * BLOCK_N", "+ tl.where(t < mixed, t, across - 1 - (t - mixed))) * BLOCK_N"), ("seen = (j", "seen = (t >= mixed) | (j"),
         told="the result is right, but the whole tiles ask MASK_MOD as well"),
    edit("10.3", "an empty list's first entry is visited", ("range(mixed)", "range(tl.maximum(mixed, 1))"), told="may be empty"),
    edit("10.3", "BLOCK_M for BLOCK_N", ("+ t) * BLOCK_N", "+ t) * BLOCK_M"), told="so may BLOCK_M and BLOCK_N"),
    edit("10.3", "no end of the keys", ("(j < S_k) & ", ""), told="where the mask mod shows a key past S_k, j < S_k must hide it"),
    edit("10.3", "MASK_MOD(b, H,", ("MASK_MOD(b, h,", "MASK_MOD(b, H,"), told="MASK_MOD gets the numbers of batch entry, head, query and key"),
    edit("10.3", "a list taken for a run", ("tl.load(index_ptr + row * across + t)", "(tl.load(index_ptr + row * across) + t)"),
         told="in any order"),
    *(edit("10.3", f"the whole tiles taken for a run, {name}", ("tl.load(index_ptr + row * across + across - 1 - t)", run), told="in any order")
      for name, run in {
          "down from the row's end": "(tl.load(index_ptr + row * across + across - 1) - t)",
          "up from the row's end": "(tl.load(index_ptr + row * across + across - 1) + t)",
          "up to the row's end": "(tl.load(index_ptr + row * across + across - whole) + t)",
          "down to the row's end": "(tl.load(index_ptr + row * across + across - whole) - t)",
      }.items()),
    edit("10.3", "count's rows are exchanged", ("mixed, whole = ", "whole, mixed = "), told="which the first row of count counts"),
    edit("10.3", "m begins anew", ("    for t in range(whole)", "    m = tl.full((BLOCK_M,), -float('inf'), dtype=tl.float32)\n    for t in range(whole)"),
         told="share one m, l and acc"),
    edit("10.3", "by program", ("count_ptr + row)", "count_ptr + tl.program_id(0))"), ("row * across + t", "tl.program_id(0) * across + t"),
         told="each block of queries has a row of index, for all heads", gpu="a head's tiles take b and h"),
    edit("10.3", "v widened", ("dot(p.to(v_tile.dtype), v_tile, acc", "dot(p, v_tile.to(tl.float32), acc", 2), told=TOO_WIDE, gpu=None),
    edit("10.3", "k widened in a whole tile", ("    s = scale * dot(q_tile, tl.trans(k_tile))  #", "    s = scale * dot(q_tile.to(tl.float32), tl.trans(k_tile.to(tl.float32)))  #"),
         told=TOO_WIDE, gpu=None),
    edit("10.3", "a whole tile's scores lack the scale", ("    s = scale * dot(", "    s = dot("), told="both loops scale s"),
    edit("10.3", "heads by one number", ("b, h = row * BLOCK_M, batch_head // H, batch_head % H", "b, h = row * BLOCK_M, 0, batch_head"), told="take b and h",
         gpu="every third key"),
    edit("10.3", "MASK_MOD gets one number", ("MASK_MOD(b, h,", "MASK_MOD(0, batch_head,"), told="MASK_MOD gets the numbers of batch entry, head, query and key"),
    ("10.4", soft_cap_by_growing_exponentials, "one edge is left: a score may lie far beyond the cap"),
    edit("10.4", "the derivative alone", ("aux.c * t, ", ""), told="It must return two results", gpu=None),
    edit("10.5", "a row whose tiles hide every key divides by 0", ("    l = tl.where(l == 0, 1.0, l)  # a row that sees no key has acc = 0\n", ""),
         told="one edge is left: a row may see no key"),
    edit("10.5", "l begins with e^sink beside m = −∞", ("tl.zeros((BLOCK_M,), dtype=tl.float32) + tl.load(sink_ptr + h)",
         'tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)'), ("tl.full((BLOCK_M,), 1.0, dtype=tl.float32)",
         "tl.exp(tl.zeros((BLOCK_M,), dtype=tl.float32) + tl.load(sink_ptr + h))"), told="adds one term, e^sink, to o's denominator"),
    edit("10.5", "a sink for each batch entry", ("sink_ptr + h", "sink_ptr + batch_head"), told="one number for each head, whatever the batch entry", gpu=None),
    edit("10.5", "the sink in fp16", ("tl.load(sink_ptr + h)", "tl.load(sink_ptr + h).to(tl.float16).to(tl.float32)"), told="each head has its sink"),
    edit("10.5", "lse past the last query", (", mask=i < S_q)", ")"), told="lse one for each query", gpu=None),
    edit("10.5", "heads by one number", ("b, h = row * BLOCK_M, batch_head // H, batch_head % H", "b, h = row * BLOCK_M, 0, batch_head"),
         ("sink_ptr + h", "sink_ptr + batch_head % H"), told="take b and h", gpu="a window of 20 keys"),
    edit("10.5", "no dropout", ("p = tl.where(KEEP(b, h, i, j, aux), p, 0.0)", "pass"), told=SINK_ALONE),
    edit("10.5", "l counts what is kept", ("            p, m, l, alpha = softmax_step(s, m, l)",
         "            if KEEP is not None:\n                s = tl.where(KEEP(b, h, i, j, aux), s, -float('inf'))\n            p, m, l, alpha = softmax_step(s, m, l)"), told=SINK_ALONE),
    edit("10.5", "no score mod", ("s = SCORE_MOD(s, b, h, i, j, aux)", "pass"), told=SINK_ALONE),
    edit("10.5", "the score after the mask", ("            if SCORE_MOD is not None:\n                s = SCORE_MOD(s, b, h, i, j, aux)\n", ""),
         ("            p, m, l, alpha", "            if SCORE_MOD is not None:\n                s = SCORE_MOD(s, b, h, i, j, aux)\n            p, m, l, alpha"), told=SINK_ALONE),
    edit("10.5", "every tile asks the mask", ("if not WHOLE:", "if True:"), told=SINK_ALONE),
    edit("10.6", "ds alone", ("return p, ds", "return ds"), told="It must return two results", gpu=None),
    edit("10.6", "no b and h", ("SCORE_MOD(s, b, h, i", "SCORE_MOD(s, i"), told="a score mod s before these", gpu="stops with"),
    edit("10.6", "lse as a vector", ("aux) - lse)", "aux) - lse[:, None])"), told="What comes in broadcasts to a tile already", gpu="stops with"),
    edit("10.6", "i and j exchanged", ("SCORE_MOD(s, b, h, i, j", "SCORE_MOD(s, b, h, j, i"), told="p is exp(SCORE_MOD(s, b, h, i, j, aux) − lse)"),
    *(edit("10.6", f"SCORE_GRAD({numbers})", ("SCORE_GRAD(s, b, h, i, j", f"SCORE_GRAD({numbers}"), told="times SCORE_GRAD(s, b, h, i, j, aux)")
      for numbers in ("s, b, h, j, i", "s, h, b, i, j", "s, b, h, 0, 0", "s, 0, h, i, j", "s, b, 0, i, j")),
    edit("10.6", "the derivative at the masked score", ("SCORE_GRAD(s,", "SCORE_GRAD(tl.where(MASK_MOD(b, h, i, j, aux), s, -float('inf')),"),
         told="leave s as it is, because a mod may be undefined at −∞"),
    edit("10.6", "two exponentials", ("tl.exp(SCORE_MOD(s, b, h, i, j, aux) - lse)", "tl.exp(SCORE_MOD(s, b, h, i, j, aux)) * tl.exp(-lse)"),
         told="is computed in one step, so nothing overflows"),
    edit("10.6", "no mask, and only blind rows are 0", ("p = tl.where(MASK_MOD(b, h, i, j, aux), p, 0.0)", "p = tl.where(lse == -float('inf'), 0.0, p)"),
         told="a hidden pair has p = 0"),
    edit("10.7", "a row of index has S / BLOCK_N entries", ("column * down +", "column * key_blocks +"), told="S / BLOCK_M", gpu=None),
    edit("10.7", "a list taken for a run", ("tl.load(index_ptr + column * down + t)", "(tl.load(index_ptr + column * down) + t)"), told="in any order"),
    edit("10.7", "no sum", ("do_tile, dv_acc)", "do_tile)"), told="dk and dv add up over the listed tiles"),
    edit("10.7", "rows of lse by h", ("batch_head * S + i", "h * S + i", 2), told="a head's rows of lse and delta start at batch_head · S"),
    edit("10.7", "a block of keys by program", ("column * BLOCK_N", "tl.program_id(0) * BLOCK_N"), told="the block of keys is program % (S / BLOCK_N)"),
    edit("10.7", "no scale at all", ("scale * dot(k_tile", "dot(k_tile"), ("scale * dk_acc", "dk_acc"), told="in which s = scale · q kᵀ"),
    edit("10.7", "i and j exchanged", ("h, i, j, aux", "h, j, i, aux"), told="i counts queries and j keys"),
    edit("10.7", "do widened", ("dot(p.to(do_tile.dtype), do_tile,", "dot(p, do_tile.to(tl.float32),"), told=TOO_WIDE, gpu=None),
    ("10.8", dropout_gradients_by_autograd, "autograd computes these gradients"),
    edit("10.8", "dsink's delta without z", ("(p_sink * delta)", "(p_sink * (do * (p @ v)).sum(dim=1))"), told="its delta is the row's own, with z"),
    edit("10.8", "the sink in delta", ("(do * o).sum(dim=1)", "(p * dp).sum(dim=1) / (1 - p_sink)"), told="the sink's share is in p already"),
    edit("10.8", "divided by p", ("p * (dp - delta[:, None])", "((p * p) * (dp - delta[:, None])) / p"), told="nothing is divided"),
    edit("10.8", "dsink of shape (1,)", (".sum()", ".sum(dim=0, keepdim=True)"), told="dsink is one number"),
    edit("10.9", "the last block's query past the end", (".clamp(max=total - 1)", ""), told="blocks of 4, the last one of queries 8 and 9: raises IndexError"),
    edit("10.9", "right=True is forgotten for end", ("cu[torch.searchsorted(cu, last, right=True)]", "cu[torch.searchsorted(cu, last)]"),
         told="a query on a border begins the later one"),
    edit("10.9", "right=True is forgotten for first", ("cu[torch.searchsorted(cu, top, right=True) - 1]", "cu[torch.searchsorted(cu, top).clamp(min=1) - 1]"),
         told="first is the tile in which the first query's sequence begins"),
    ("10.9", packed_tiles_by_the_pairs_of_a_block, "a tensor holds the 256 pairs of a tile, or more: two queries decide a block"),
)  # fmt: skip
