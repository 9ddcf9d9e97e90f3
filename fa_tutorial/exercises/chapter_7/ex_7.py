from fa_tutorial.backward import add_to_dkdv
from fa_tutorial.exercises.chapter_7 import shared
from fa_tutorial.exercises.chapter_7.shared import grouped
from fa_tutorial.matmul import tl, triton
from fa_tutorial.tiles import load_tile, store_tile


@triton.jit
def grouped_dkdv_kernel(
    q, k, v, do, dk, dv, lse_ptr, delta_ptr, H_k, S_q, S_k, D, scale, IS_CAUSAL: tl.constexpr,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """dk and dv of one block of keys.

    q, do: Heads (B, H_k · GROUP, S_q, D); k, v, dk, dv: Heads (B, H_k, S_k, D).
    lse_ptr, delta_ptr: (B, H_k · GROUP, S_q) float32, contiguous.
    Grid: (ceil(S_k / BLOCK_N) · B · H_k,).
    """
    key_blocks = tl.cdiv(S_k, BLOCK_N)
    start_n = tl.program_id(0) % key_blocks * BLOCK_N
    batch_head = tl.program_id(0) // key_blocks
    b, h_k = batch_head // H_k, batch_head % H_k

    k_tile = load_tile(k, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    v_tile = load_tile(v, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)  # [BLOCK_N, BLOCK_D]
    dk_acc = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)
    dv_acc = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)

    first_seeing = start_n + tl.arange(0, BLOCK_N) - (S_k - S_q)  # [BLOCK_N]
    first_m, full_m = 0, 0
    if IS_CAUSAL:
        first_m = tl.maximum(start_n + S_q - S_k, 0) // BLOCK_M * BLOCK_M
        last_key = tl.minimum(start_n + BLOCK_N, S_k) - 1
        full_m = tl.cdiv(tl.maximum(last_key + S_q - S_k, 0), BLOCK_M) * BLOCK_M
    for member in range(GROUP):
        h = h_k * GROUP + member
        row = (b * H_k * GROUP + h) * S_q
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

    store_tile(dk, dk_acc * scale, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)
    store_tile(dv, dv_acc, b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)


HEAD, ROW, LOOP = "h = h_k * GROUP + member", "row = (b * H_k * GROUP + h) * S_q", "for member in range(GROUP):\n"
OWN = "query heads h_k · GROUP to h_k · GROUP + GROUP − 1 read key head h_k"
PLACE = "row i of query head h of batch b is (b · H_q + h) · S_q + i of lse and delta, H_q = H_k · GROUP"
ZEROS = "        dk_acc = tl.zeros((BLOCK_N, BLOCK_D), dtype=tl.float32)\n"
MISTAKES = {
    f"the group begins at query head h_k: {OWN}": (HEAD, "h = h_k + member"),
    f"the key heads are dealt out in turns: {OWN}": (HEAD, "h = member * H_k + h_k"),
    "both loops take q and do of head h_k: they belong to the query head, h": ("b, h, start_m", "b, h_k, start_m"),
    "only one query head counts: dk and dv are sums over the group": (LOOP, "for member in range(1):\n"),
    "the sums begin anew with every query head: zeros come before the loop over the group": (
        LOOP, f"{LOOP}{ZEROS}{ZEROS.replace('dk_acc', 'dv_acc')}"),
    f"lse and delta are read as if a batch had H_k heads: {PLACE}": (ROW, "row = (b * H_k + h) * S_q"),
    f"lse and delta are the key head's: {PLACE}": (ROW, "row = batch_head * S_q"),
}  # fmt: skip


@shared.with_fresh((16, 32, 16), causal="causal")
def inputs():
    yield shared.given(
        (1, 1, 16, 16, 16), "one head, GROUP = 1", "with GROUP = 1 the rest is exercise 7.4: dv = Σ pᵀ do and dk = scale · Σ dsᵀ q"
    )
    sums = "dk and dv are sums over the query heads of the group, each with its own q, do, lse and delta"
    yield grouped((1, 1, 2, 16, 16, 16), "H_k = 1, GROUP = 2", sums)
    yield grouped((1, 2, 3, 16, 16, 16), "H_k = 2, GROUP = 3", f"{OWN}, and k, v, dk and dv belong to the key head")
    both = "b and h_k come from H_k, the rows of lse and delta from H_q = H_k · GROUP"
    yield grouped((2, 2, 3, 16, 32, 16), "B = 2, H_k = 2, GROUP = 3, S_k = 32, views", both, layouts=("bshd",) * 4)
    words = "causal, B = 2, H_k = 1, GROUP = 2, S_q = 40, S_k = 34"
    loops = "each query head takes both loops, with the borders and the mask of 7.4"
    yield grouped((2, 1, 2, 40, 34, 16), words, loops, is_causal=True, edge="causal")
    yield shared.causal(64, 64, shared.TWO_SIZES, "causal", blocks=(16, 32, 16))
    q, k, v, do = shared.zeros()  # ds = ±1
    v[:, :, 0::2, 0], v[:, :, 1::2, 0], do[..., 0] = 1, -1, 16
    q, do = q.repeat(1, 3, 1, 1), do.repeat(1, 3, 1, 1)
    for head, number in enumerate((2048, 1, -2048)):
        q[:, head, 0, 0], do[:, head, 0, 1] = number, 16 * number
    q[..., 1] = 8192
    on = "fp16, equal scores, scale = 1/16, pᵀ do of the three query heads is 2048, 1 and −2048, and dsᵀ q ±2048, ±1 and ∓2048, and ±131072"
    sums = "the sums over the group are kept in float32, too, until dk is scaled: fp16 has no 2,049, and ends at 65,504"
    yield shared.given(None, on, sums, tensors=(q, k, v, do), scale=2.0**-4, near=0.01, edge="half")


EXERCISE = shared.exercise(
    outputs=("dk", "dv"),
    causal=True,
    grouped=True,
    task="Let each program of your kernel of 7.4 add up dk and dv over all query heads that read its key head.",
    conditions={
        "causal": "causal as in 7.4: query i sees keys 0 to i + S_k − S_q",
        "half": "fp16 and bf16 work as before, and the sums over the group stay float32",
    },
    hints=(
        "There is one program for each block of each key head. Which of its tiles stay while it goes from one query head to the next?",
        "k, v, the accumulators, first_seeing, first_m and full_m stay. A third loop, for member in range(GROUP), goes around the two.",
        "Query heads h_k · GROUP to h_k · GROUP + GROUP − 1 read key head h_k, and their rows of lse and delta start at "
        "(b · H_k · GROUP + h) · S_q.",
    ),
    solution=grouped_dkdv_kernel,
    reasoning="The accumulators do the sum over the group, so dk and dv still have one owner, and no tensor of parts is written. Only the "
    "query side changes from member to member: its h, and its rows of lse and delta.",
    more="The package's version, backward.dkdv_kernel, is this kernel with int64 rows and two hints to the compiler.",
    inputs=inputs,
    rule="dk and dv of a key head are sums over the query heads h_k · GROUP to h_k · GROUP + GROUP − 1",
    mistakes=MISTAKES,
)
