import torch

from fa_tutorial.algorithm import causal_rows
from fa_tutorial.backward import add_to_dkdv
from fa_tutorial.exercises.chapter_7 import shared
from fa_tutorial.exercises.forward_cases import noted
from fa_tutorial.exercises.harness_kernel import launched_by
from fa_tutorial.exercises.running import Wrong
from fa_tutorial.matmul import tl, triton
from fa_tutorial.tiles import load_tile, store_tile


@triton.jit
def dkdv_kernel(
    q, k, v, do, dk, dv, lse_ptr, delta_ptr, H, S_q, S_k, D, scale,
    IS_CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """dk and dv of one block of keys. q, do: Heads (B, H, S_q, D); k, v, dk, dv: Heads (B, H, S_k, D).

    lse_ptr, delta_ptr: (B, H, S_q) float32, contiguous. Grid: (ceil(S_k / BLOCK_N) · B · H,).
    """
    key_blocks = tl.cdiv(S_k, BLOCK_N)
    start_n = tl.program_id(0) % key_blocks * BLOCK_N
    batch_head = tl.program_id(0) // key_blocks
    b, h = batch_head // H, batch_head % H
    row = batch_head * S_q

    k_tile = load_tile(k, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    v_tile = load_tile(v, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    dk_acc = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)
    dv_acc = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)

    first_seeing = start_n + tl.arange(0, BLOCK_N) - (S_k - S_q)  # [BLOCK_N]
    first_m, full_m = 0, 0
    if IS_CAUSAL:
        first_m = tl.maximum(start_n + S_q - S_k, 0) // BLOCK_M * BLOCK_M
        last_key = tl.minimum(start_n + BLOCK_N, S_k) - 1
        full_m = tl.cdiv(tl.maximum(last_key + S_q - S_k, 0), BLOCK_M) * BLOCK_M
    for start_m in range(full_m, S_q, BLOCK_M):
        dk_acc, dv_acc = add_to_dkdv(
            k_tile, v_tile, dk_acc, dv_acc, q, do, lse_ptr + row, delta_ptr + row,
            b, h, start_m, first_seeing, S_q, D, scale, False, BLOCK_M, BLOCK_D,
        )  # fmt: skip
    if IS_CAUSAL:
        for start_m in range(first_m, full_m, BLOCK_M):
            dk_acc, dv_acc = add_to_dkdv(
                k_tile, v_tile, dk_acc, dv_acc, q, do, lse_ptr + row, delta_ptr + row,
                b, h, start_m, first_seeing, S_q, D, scale, True, BLOCK_M, BLOCK_D,
            )  # fmt: skip

    store_tile(dk, dk_acc * scale, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D)
    store_tile(dv, dv_acc, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D)


START, FULL = "tl.maximum(start_n + S_q - S_k, 0) // BLOCK_M * BLOCK_M", "tl.cdiv(tl.maximum(last_key + S_q - S_k, 0), BLOCK_M) * BLOCK_M"
MISTAKES = {
    shared.NO_SCALE: ("dk_acc * scale", "dk_acc"),
    "the ragged last block of queries is left out: the loop goes on while start_m < S_q": (
        "range(full_m, S_q, BLOCK_M)", "range(full_m, S_q // BLOCK_M * BLOCK_M, BLOCK_M)"),
    "the mask is without S_k − S_q: query i sees keys 0 to i + S_k − S_q, so that the last query sees the last key": (" - (S_k - S_q)", ""),
    "the mask is strict: first_seeing holds the first query that sees each key, j − (S_k − S_q)": (" - (S_k - S_q)", " - (S_k - S_q) + 1"),
    "the mask compares with positions in the block of keys: compare positions in the sequence, which begin at start_n": (
        "first_seeing = start_n + ", "first_seeing = "),
    "nothing is hidden: blocks of queries from first_m to full_m see only some of the keys, so they need MASK = True, and first_seeing, the first query that sees each key": (
        "scale, True, ", "scale, False, "),
    "the loop starts with the block of query start_n: add S_q − S_k": (START, "start_n // BLOCK_M * BLOCK_M"),
    "first_m is rounded up: earlier queries of the block that holds query start_n + S_q − S_k are left out, and some see a key": (
        START, "tl.cdiv(tl.maximum(start_n + S_q - S_k, 0), BLOCK_M) * BLOCK_M"),
    "full_m isn't rounded up to a multiple of BLOCK_M, so both loops take some queries": (FULL, "tl.maximum(last_key + S_q - S_k, 0)"),
    "full_m comes from the first key: it takes the last key that is there, because queries from full_m on see all of them": (
        FULL, FULL.replace("last_key", "start_n")),
    "full_m is rounded down, and not every query of its block sees all of the keys: round it up": (
        FULL, "tl.maximum(last_key + S_q - S_k, 0) // BLOCK_M * BLOCK_M"),
    "blocks from full_m on count twice: the loop with the mask ends at full_m": ("range(first_m, full_m", "range(first_m, S_q"),
}  # fmt: skip


@launched_by
def two_loops(kernel, grid, *args, **meta):
    """Counts the masked tiles in the interpreter, on inputs with blocks of (32, 16, 64), whose sizes differ."""
    (S_q, S_k), block_m, block_n = args[9:11], meta["BLOCK_M"], meta["BLOCK_N"]
    if (block_m, block_n, meta["BLOCK_D"]) != (32, 16, 64):
        return kernel[grid](*args, **meta)
    with noted() as (_, compared):
        kernel[grid](*args, **meta)
    bounds = [causal_rows(j, block_m, block_n, S_q, S_k) for j in range(grid[0])]
    masked, found = sum(full - start for start, full in bounds), compared.count(block_m * block_n)
    if found > masked:
        raise Wrong(f"of {sum(-(-S_q // block_m) - start for start, _ in bounds)} tiles {found} are masked, and {masked} need it: "
                    "a block of queries is masked only if one of its queries does not see the last key that is there, "
                    "min(start_n + BLOCK_N, S_k) − 1")  # fmt: skip


@shared.with_fresh((16, 32, 16), causal="unseen", ragged="lengths")
def inputs():
    same = "without IS_CAUSAL this is exercise 7.3, dv = Σ pᵀ do and dk = scale · Σ dsᵀ q: the loop without a mask takes every query, and the loop with it none"
    yield shared.given((1, 1, 32, 16, 16), "no mask, S_q = 32, S_k = 16", same)
    yield shared.several_heads("dk and dv", blocks=(16, 16, 16))  # two blocks of keys: a program's number is no head's
    yield shared.causal(16, 16, "query i sees keys 0 to i: blocks of queries before full_m, a multiple of BLOCK_M, need the mask")
    stray = "start_n + S_q − S_k may be negative, and no loop starts before query 0"
    borders = (
        "here both borders must be 0, and the loop without a mask takes the query: add S_q − S_k to a key's number, but take no less than 0"
    )
    yield shared.causal(1, 17, borders, stray=stray)
    between = "first_m and full_m count queries in whole blocks, by the first key and by the last: each block from first_m on counts once, with the mask before full_m"
    for blocks in ((16, 16, 16), (32, 16, 16), (16, 32, 16)):
        yield shared.causal(48, 48, between, blocks=blocks)
    yield shared.causal(17, 17, B=2, blocks=(16, 32, 16))
    yield shared.causal(16, 64, "query i sees keys 0 to i + S_k − S_q", "lengths", stray=stray)
    yield shared.causal(18, 18, "full_m comes from the last key: keys 16 and 17 are seen from query 17 on", "lengths")
    yield shared.causal(31, 32, "key 16 is first seen by query 16 + S_q − S_k = 15, the last of its block", "lengths")
    yield shared.causal(24, 16, "rows 0 to 7 see no key, and come before full_m: exp(s − lse) is inf until the mask clears it", "unseen")
    tensors = shared.draw(1, 1, 48, 16, 16)
    tensors[0][:, :, :32] = tensors[3][:, :, :32] = torch.nan  # whoever reads them gets NaN
    unseen = "blocks of queries that see none of the keys are not read: start with the block of the first that does"
    yield shared.causal(48, 16, unseen, "unseen", on=", so that rows 0 to 31 see no key, and hold NaN", tensors=tensors)
    for S_q, S_k in ((96, 96), (33, 33), (32, 96)):  # two_loops counts their masked tiles
        on = f"causal, S_q = {S_q}, S_k = {S_k}, BLOCK_M = 32, BLOCK_N = 16"
        yield shared.given((1, 1, S_q, S_k, 64), on, is_causal=True, blocks=(32, 16, 64), edge="loops")


EXERCISE = shared.exercise(
    outputs=("dk", "dv"),
    causal=True,
    task="Make your kernel of 7.3 causal: one loop without a mask, one with it, both calling add_to_dkdv.",
    conditions={
        "lengths": "S_q and S_k may differ: query i sees keys 0 to i + S_k − S_q",
        "unseen": "blocks of queries that see none of your keys are not read; rows that see no key at all have lse = −inf",
        "loops": "only blocks in which a query does not see all of the keys go through the loop with the mask",
        "half": "fp16 and bf16 work as before",
    },
    hints=(
        "Key j is first seen by query j − (S_k − S_q). What does that say about the block's first key, and what about its last?",
        "The first key decides first_m, rounded down to a block, and the last key that is there, tl.minimum(start_n + BLOCK_N, S_k) - 1, "
        "decides full_m, rounded up. Neither is negative. Which loop runs from where to where?",
        "first_m = tl.maximum(start_n + S_q - S_k, 0) // BLOCK_M * BLOCK_M, and full_m = tl.cdiv(tl.maximum(last_key + S_q - S_k, 0), BLOCK_M) "
        "* BLOCK_M. The loop without a mask runs over range(full_m, S_q, BLOCK_M), the one with it over range(first_m, full_m, BLOCK_M).",
    ),
    solution=dkdv_kernel,
    reasoning="A block of queries before first_m sees none of the keys, a block from full_m on sees all of them, so only the few between need "
    "the mask. Where a row sees nothing, its p is exp(s + inf) = inf, and tl.where puts 0 there; such rows never reach the loop without a "
    "mask.",
    more="The package's version, backward.dkdv_kernel, also sums over the query heads of a group, and computes row as int64.",
    inputs=inputs,
    rule="dk and dv are summed over the queries that see a key: query i sees keys 0 to i + S_k − S_q",
    mistakes=MISTAKES,
    adapt=two_loops,
)
