import math

import torch

from fa_tutorial.exercises.chapter_10.ex_6 import capped, capped_grad, derivative, modified, score_gradients
from fa_tutorial.exercises.chapter_10.jitted_mod import Aux
from fa_tutorial.exercises.chapter_10.masks import LATE, THIRD, is_seen, mod_and_words
from fa_tutorial.exercises.forward_cases import WIDENED, draw_qkv, widens
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.harness_kernel import In, Launch, Out
from fa_tutorial.matmul import tl, triton
from fa_tutorial.tiles import dot, load_tile, store_tile


@triton.jit
def listed_dkdv_kernel(
    q, k, v, do, dk, dv, index_ptr, count_ptr, lse_ptr, delta_ptr, H, S, D, scale, aux,
    STEP: tl.constexpr, MASK_MOD: tl.constexpr, SCORE_MOD: tl.constexpr, SCORE_GRAD: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """dk and dv of a block of keys, over its listed tiles of queries."""
    key_blocks, down = S // BLOCK_N, S // BLOCK_M
    column, batch_head = tl.program_id(0) % key_blocks, tl.program_id(0) // key_blocks
    start_n, b, h = column * BLOCK_N, batch_head // H, batch_head % H
    j = start_n + tl.arange(0, BLOCK_N)[:, None]  # [BLOCK_N, 1]

    k_tile = load_tile(k, b, h, start_n, S, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    v_tile = load_tile(v, b, h, start_n, S, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    dk_acc = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)
    dv_acc = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)
    for t in range(tl.load(count_ptr + column)):
        start_m = tl.load(index_ptr + column * down + t) * BLOCK_M
        i = start_m + tl.arange(0, BLOCK_M)[None, :]  # [1, BLOCK_M]
        lse = tl.load(lse_ptr + batch_head * S + i)  # [1, BLOCK_M]
        delta = tl.load(delta_ptr + batch_head * S + i)  # [1, BLOCK_M]
        q_tile = load_tile(q, b, h, start_m, S, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
        do_tile = load_tile(do, b, h, start_m, S, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
        s = scale * dot(k_tile, tl.trans(q_tile))  # [BLOCK_N, BLOCK_M]
        dp = dot(v_tile, tl.trans(do_tile))  # [BLOCK_N, BLOCK_M]
        p, ds = STEP(s, dp, lse, delta, b, h, i, j, aux, MASK_MOD, SCORE_MOD, SCORE_GRAD)
        dv_acc = dot(p.to(do_tile.dtype), do_tile, dv_acc)
        dk_acc = dot(ds.to(q_tile.dtype), q_tile, dk_acc)
    store_tile(dk, scale * dk_acc, b, h, start_n, S, D, BLOCK_N, BLOCK_D)
    store_tile(dv, dv_acc, b, h, start_n, S, D, BLOCK_N, BLOCK_D)


NUMBER, COUNT = "tl.load(index_ptr + column * down + t)", "range(tl.load(count_ptr + column))"
MISTAKES = {
    "every tile of queries is visited: a column's list and its count say which": [(COUNT, "range(down)"), (NUMBER, "t")],
    "every entry of the row is visited: only the first ones, as many as count says, are meant": (COUNT, "range(down)"),
    "dk and dv are the last tile's alone: add each tile's product to the sum": [("do_tile, dv_acc)", "do_tile)"), ("q_tile, dk_acc)", "q_tile)")],
    "t is taken for the tile's number: it is the place in the list, and index_ptr holds the number": (NUMBER, "t"),
    "start_m counts queries, and index_ptr holds numbers of tiles: multiply by BLOCK_M": (f"{NUMBER} * BLOCK_M", NUMBER),
    "lse and delta are those of the block's keys: each listed tile has queries of its own": ("batch_head * S + i", "batch_head * S + j"),
    "i, lse and delta lie along the wrong axis: the tile's rows are keys, so i is [1, BLOCK_M], and j [BLOCK_N, 1]": [
        ("BLOCK_N)[:, None]", "BLOCK_N)[None, :]"), ("BLOCK_M)[None, :]", "BLOCK_M)[:, None]")],
    "lse and delta lie along the wrong axis: the tile's rows are keys, so both are [1, BLOCK_M]": [
        ("lse_ptr + batch_head * S + i)", "lse_ptr + batch_head * S + tl.trans(i))"), ("delta_ptr + batch_head * S + i)", "delta_ptr + batch_head * S + tl.trans(i))")],
    "p and ds are exchanged: STEP returns p first, which goes into dv, and ds into dk": ("p, ds = STEP", "ds, p = STEP"),
    "dk and dv are stored into each other's place": [("store_tile(dk, scale * dk_acc", "store_tile(dv, scale * dk_acc"), ("store_tile(dv, dv_acc", "store_tile(dk, dv_acc")],
    "s lacks the scale: STEP takes scaled scores, s = scale · k qᵀ": ("scale * dot(k_tile", "dot(k_tile"),
    "dk lacks the scale: s = scale · q k, so dk = scale · dsᵀ q": ("scale * dk_acc", "dk_acc"),
    "dk has the scale twice: one factor is all, in ds, in each sum, or at the end": ("scale * dk_acc", "scale * (scale * dk_acc)"),
    "the tile has queries as rows, and dk and dv add up over queries: make its keys the rows, or transpose p and ds": [
        ("dot(k_tile, tl.trans(q_tile))", "dot(q_tile, tl.trans(k_tile))"), ("dot(v_tile, tl.trans(do_tile))", "dot(do_tile, tl.trans(v_tile))"),
        ("BLOCK_N)[:, None]", "BLOCK_N)[None, :]"), ("BLOCK_M)[None, :]", "BLOCK_M)[:, None]")],
}  # fmt: skip


def launch(q, k, v, do, lse, delta, left, blocks):
    (B, H, S, D), (block_m, block_n) = q.shape, blocks
    seen = is_seen(B, H, S, S, left).any(0).any(0).view(S // block_m, block_m, S // block_n, block_n)
    needed = seen.any(3).any(1).mT
    odd = torch.arange(S // block_m) % 2  # the needed tiles come first, of them the even ones
    index, count = (2 * (~needed).int() + odd).argsort(dim=1, stable=True), needed.sum(dim=1)
    index = torch.where(torch.arange(index.shape[1]) < count[:, None], index, index[:, :1])  # what follows repeats the first
    tensors = *(In(x, as_heads=True) for x in (q, k, v, do)), *(Out(k.shape, k.dtype, as_heads=True) for _ in range(2))
    mods = {"MASK_MOD": mod_and_words(left)[0], "SCORE_MOD": capped, "SCORE_GRAD": capped_grad, "STEP": score_gradients}
    meta = {**mods, "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_D": D}
    return Launch(
        (len(index) * B * H,), (*tensors, In(index.int()), In(count.int()), In(lse), In(delta), H, S, D, 0.25, Aux(left, 0, 2.0)), meta
    )


def truth(q, k, v, do, lse, delta, left, blocks):
    s, do = 0.25 * q.double() @ k.double().mT, do.double().nan_to_num()  # do is NaN where no tile is listed
    p = torch.softmax(modified(s, 2.0, left), dim=-1).nan_to_num()
    ds = p * (do @ v.double().mT - delta.double()[..., None]) * derivative(s, 2.0)
    return 0.25 * ds.mT @ q.double(), p.mT @ do


LISTS = "a block's row of index has its number, program % (S / BLOCK_N), and S / BLOCK_M entries, of which count says how many are meant, in any order"


def inputs():
    def rows(B, H, S, left, otherwise="", *, blocks=(16, 16), unlisted=slice(0), words="", dtype=torch.float32):
        q, k, v = (x.to(dtype) for x in draw_qkv(B, H, S, S, 16))
        do, delta = q.flip(2).clone(), v.float().sum(dim=-1)
        do[:, :, unlisted] = math.nan  # it shows if it is read, because 0 · NaN is NaN
        on = f"B = {B}, H = {H}, S = {S}, tiles of {blocks[0]} queries × {blocks[1]} keys, {mod_and_words(left)[1]}{words}"
        lse = modified(0.25 * q.double() @ k.double().mT, 2.0, left).logsumexp(dim=-1).float()
        return case(q, k, v, do, lse, delta, left, blocks, on=on, otherwise=otherwise, stray=LISTS)

    yield rows(1, 1, 16, 20)
    yield rows(1, 1, 48, 20, f"dk and dv add up over the listed tiles, each with its own i, q, do, lse and delta; {LISTS}")
    yield rows(1, 1, 64, 10, "BLOCK_M and BLOCK_N may differ", blocks=(32, 16))
    place = "the block of keys is program % (S / BLOCK_N), STEP gets the numbers of batch entry and head, and a head's rows of lse and delta start at batch_head · S"
    yield rows(2, 2, 16, THIRD, place)
    yield rows(2, 2, 32, 5, "all heads share the lists")
    yield rows(1, 1, 32, 20, words=", fp16", dtype=torch.float16)
    late = "a tile that isn't listed isn't read, and a block of keys with an empty list has dk = dv = 0"
    yield rows(1, 1, 32, LATE, late, words=", do is NaN in tile 0, which isn't listed", unlisted=slice(16))


def refused(kernel):
    """What is wrong where a dot gets widened tiles, which the result doesn't show."""
    (q, k, v), rows = (x.half() for x in draw_qkv(1, 1, 16, 16, 16)), torch.zeros(1, 1, 16)
    slow = f"{WIDENED}: leave q, k, v and do as they are, and round p and ds to the dtype of the tile that each is multiplied by"
    return slow if widens(kernel, launch(q, k, v, q, rows, rows, 20, (16, 16))) else ""


EXERCISE = Exercise(
    task="Let a program keep a block of keys, and add up dk and dv over its listed tiles of queries.",
    hints=(
        "k and v stay, so they are loaded before the loop. q, do, lse, delta and i come anew with each listed tile.",
        "Chapter 7 made the keys the rows of the tile: s = scale * dot(k_tile, tl.trans(q_tile)). Then i is [1, BLOCK_M] and j [BLOCK_N, 1].",
        "dv adds up dot(p, do_tile), and dk dot(ds, q_tile), times scale at the end, with p and ds cast to the tiles' dtype. The t-th "
        "tile's number stands at index_ptr + column * (S // BLOCK_M) + t, with column = start_n // BLOCK_N.",
    ),
    solution=listed_dkdv_kernel,
    reasoning="The step doesn't ask which way its tile lies, because i, j, lse and delta broadcast. So only the loads and the list change: "
    "what stays is a block of keys, and what comes is a block of queries from its column of the mask.",
    more="The package's dkdv_kernel has two lists here as well, and asks the mask in the mixed tiles alone.",
    inputs=inputs,
    truth=truth,
    rule="dv is the sum of pᵀ do and dk that of scale · dsᵀ q, with p, ds = STEP(s, dp, lse, delta, …), in which s = scale · q kᵀ, i counts queries and j keys",
    mistakes=MISTAKES,
    launch=launch,
    refused=refused,
    parts=("dk", "dv"),
    tolerance=lambda args, part: (2e-5, 3e-4 if args[0].dtype == torch.float32 else 3e-3),
)
