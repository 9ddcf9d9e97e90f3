import math

import torch
import torch.nn.functional as F

from fa_tutorial.exercises.forward_cases import strides_of
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.harness_kernel import In, Launch, Out
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.matmul import tl, triton


@triton.jit
def load_tile_kernel(x, out_ptr, H, S, D, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):
    """out[pid] = the tile of program pid, 0 beyond S and D. x: Heads (B, H, S, D).

    out: (programs, BLOCK_M, BLOCK_D), contiguous. Grid: (ceil(S / BLOCK_M) · B · H,), by (5.1).
    """
    pid = tl.program_id(0).to(tl.int64)  # and so b, h, offs_m: offsets may pass 2³¹
    row_blocks = tl.cdiv(S, BLOCK_M)
    start_m, batch_head = pid % row_blocks * BLOCK_M, pid // row_blocks
    b, h = batch_head // H, batch_head % H
    offs_m, offs_d = start_m + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    head = x.ptr + b * x.strides[0] + h * x.strides[1]
    ptrs = head + offs_m[:, None] * x.strides[2] + offs_d[None, :] * x.strides[3]
    mask = (offs_m[:, None] < S) & (offs_d[None, :] < D)
    tile = tl.load(ptrs, mask=mask, other=0.0)  # [BLOCK_M, BLOCK_D]
    rows = pid * BLOCK_M + tl.arange(0, BLOCK_M)  # rows of out
    tl.store(out_ptr + rows[:, None] * BLOCK_D + offs_d[None, :], tile)


PLACE = "element (i, j) of program pid's tile goes to (pid · BLOCK_M + i) · BLOCK_D + j of out"
NUMBER = "pid is (b · H + h) · row_blocks + row_block"
HEAD = "head h of batch entry b starts b · x.strides[0] + h · x.strides[1] after x.ptr"
RULE = "element (s, d) of a head is at s · x.strides[2] + d · x.strides[3]"
OVER = "rows from S on belong to the next head, or to nobody, and columns from D on to the next row: load 0 there, by a mask and other=0.0"
STORE = "tl.store(out_ptr + rows[:, None] * BLOCK_D + offs_d[None, :], tile"
MISTAKES = {
    "the tile is loaded transposed: rows go with x.strides[2], columns with x.strides[3]": [("x.strides[2]", "x.strides[-1]"), (
        "x.strides[3]", "x.strides[2]")],
    "every program loads its head's first rows: offs_m starts at row_block · BLOCK_M": ("offs_m, offs_d = start_m + ", "offs_m, offs_d = "),
    "the number of row blocks is rounded down, so the ragged last one is missing: tl.cdiv(S, BLOCK_M)": ("tl.cdiv(S, BLOCK_M)", "S // BLOCK_M"),
    "a row of out is D long here: tiles of out have BLOCK_D columns": ("rows[:, None] * BLOCK_D", "rows[:, None] * D"),
    f"every program stores to the same place: {PLACE}": ("rows = pid * BLOCK_M + ", "rows = "),
    f"program pid stores at row pid of out, not at row pid · BLOCK_M: {PLACE}": ("rows = pid * BLOCK_M", "rows = pid"),
    "batch and head are exchanged: pid // row_blocks is b · H + h, so // H gives b and % H gives h": ("b, h = batch", "h, b = batch"),
    f"x is read as if it were contiguous: {RULE}, and a view's heads and rows may be anywhere": [
        ("x.strides[0]", "H * S * D"), ("x.strides[1]", "S * D"), ("x.strides[2]", "D"), ("x.strides[3]", "1")],
    "only the elements of x are stored: store the whole tile, zeros too, for only the load needs a mask": (STORE, STORE + ", mask=mask"),
}  # fmt: skip


def truth(x, strides, blocks):
    (S, D), (block_m, block_d) = x.shape[2:], blocks
    rows = triton.cdiv(S, block_m) * block_m
    return F.pad(x.double(), (0, block_d - D, 0, rows - S)).reshape(-1, block_m, block_d)


def launch(x, strides, blocks):
    B, H, S, D = x.shape
    programs = triton.cdiv(S, blocks[0]) * B * H
    args = In(x, strides, True), Out((programs, *blocks), x.dtype), H, S, D
    return Launch((programs,), args, dict(zip(("BLOCK_M", "BLOCK_D"), blocks, strict=True)))


def inputs():
    def tile(shape, on, otherwise, layout="bhsd", stray=f"an offset is wrong, of x or of out: {RULE}; {PLACE}"):
        x = torch.arange(1.0, 1 + math.prod(shape)).view(shape)
        strides = strides_of(shape, layout) if isinstance(layout, str) else layout
        return case(x, strides, (16, 16), on=on, otherwise=otherwise, stray=stray)

    yield tile((1, 1, 16, 16), "one head, S = D = 16, one tile", "the tile is x itself here")
    rows = "program pid has rows row_block · BLOCK_M to row_block · BLOCK_M + BLOCK_M − 1"
    yield tile((1, 1, 32, 16), "one head, S = 32, two programs", rows)
    yield tile((2, 2, 32, 16), "B = H = 2, S = 32", f"{NUMBER}, with row_blocks = 2 here: {HEAD}")
    yield tile((1, 1, 16, 16), "one head, S = D = 16, column-major", f"x has any strides, and out is contiguous: {RULE}; {PLACE}", "bhds")
    view = "B = H = 2, x a (B, S, H, D) tensor seen as (B, H, S, D)"
    yield tile((2, 2, 16, 16), view, f"a view's heads and batch entries may be anywhere: {HEAD}", "bshd")
    ragged = f"the last tile may be ragged: {OVER}, and store the whole tile"
    yield tile((1, 1, 20, 16), "one head, S = 20, BLOCK_M = 16", ragged, (0, 0, 16, 1), stray=OVER)
    wide = f"a tile of out has BLOCK_D columns, x has D: {PLACE}; {OVER}"
    yield tile((1, 1, 32, 12), "one head, S = 32, D = 12, BLOCK_D = 16", wide, stray=OVER)
    x = (10 * torch.randn(2, 2, 17, 20, generator=generator())).half()
    yield case(x, strides_of(x.shape, "bshd", pad=3), (16, 32), on="float16 x of shape (2, 2, 17, 20), a view", fresh=True)


EXERCISE = Exercise(
    task="Load one tile of one head of a (B, H, S, D) tensor, with zeros past S and past D.",
    hints=(
        "pid = (b · H + h) · row_blocks + row_block. Which two divisions give b, h and row_block back, and how many row blocks does a head "
        "have when S = 100?",
        "Move the pointer to the head first, x.ptr + b * x.strides[0] + h * x.strides[1]. Then add offs_m[:, None] * x.strides[2] + "
        "offs_d[None, :] * x.strides[3]. offs_m counts rows of the head, so it must stay below S.",
        "One mask, on the load alone: (offs_m[:, None] < S) & (offs_d[None, :] < D), other=0.0. out is contiguous and takes the whole "
        "tile.",
    ),
    solution=load_tile_kernel,
    reasoning="The pointer moves to the head first, so offs_m counts rows of this head and offs_m < S stops the tile at its end, whatever "
    "S is. The next kernels rely on the zeros: in a dot they add nothing.",
    inputs=inputs,
    truth=truth,
    rule=f"the tile of program pid holds rows of one head, 0 beyond S and D: {NUMBER}; {HEAD}; {RULE}",
    mistakes=MISTAKES,
    launch=launch,
    tolerance=lambda args, part: (0.0, 0.0),
    seen={"overlap": f"two programs store to the same place: {PLACE}"},
)
