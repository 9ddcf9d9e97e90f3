"""Exercise 5.1, load_tile_kernel."""

import math

import torch

from fa_tutorial.exercises.forward_kernels import strides_of
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.harness_kernel import In, Launch, Out
from fa_tutorial.exercises.inputs import gather, generator, laid_out
from fa_tutorial.exercises.running import UNWRITTEN
from fa_tutorial.matmul import tl, triton


@triton.jit
def load_tile_kernel(x, out_ptr, H, S, D, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):
    """out[pid] = the tile of program pid, 0 beyond S and D. x: Heads (B, H, S, D).

    out: (programs, BLOCK_M, BLOCK_D), contiguous. Grid: (ceil(S / BLOCK_M) · B · H,), by (5.1).
    """
    pid = tl.program_id(0)
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


_PLACE = "element (i, j) of program pid's tile goes to (pid · BLOCK_M + i) · BLOCK_D + j of out"
_HEAD = "head h starts h · x.strides[1] further on, with h = (pid // row_blocks) % H"
_BATCH = "batch entry b starts at b · x.strides[0]"
_RULE = "element (s, d) of a head is at s · x.strides[2] + d · x.strides[3]"
_OVER = "the tile runs over its head's end: rows from S on belong to the next head, or to nobody. The mask needs offs_m < S"
_WHOLE = "store the whole tile, zeros too: only the load needs a mask"
MISTAKES = {
    "transposed": "the tile is transposed: rows go with x.strides[2] and BLOCK_D, columns with x.strides[3] and 1",
    "zeros": "out is 0: is the mask ever true?",
    "first_rows": "every program loads its head's first rows: offs_m starts at row_block · BLOCK_M",
    "not_multiplied": "row_block is not multiplied by BLOCK_M",
    "store_first": f"every program stores to the same place: {_PLACE}",
    "store_by_rows": f"program pid stores at row pid of out, not at row pid · BLOCK_M: {_PLACE}",
    "head_0": f"every program loads head 0: {_HEAD}",
    "pid_rows": "pid itself is taken for the row block: row_block = pid % row_blocks",
    "batch_0": f"every program loads batch entry 0: {_BATCH}, with b = (pid // row_blocks) // H",
    "exchanged": "batch and head are exchanged: pid // row_blocks is b · H + h, so // H gives b and % H gives h",
    "contiguous": f"x is read as if it were contiguous: {_RULE}, and a view's heads and rows may be anywhere",
    "xd_is_one": f"x.strides[3] is not used: {_RULE}",
    "xs_is_xd": f"x.strides[2] is not used: {_RULE}",
    "joined": f"b · H + h is multiplied by x.strides[1]: {_BATCH}",
    "rounded_down": "the number of row blocks is rounded down: it is tl.cdiv(S, BLOCK_M)",
    "over_the_end": _OVER,
    "masked_store": f"the rows past S are not stored: {_WHOLE}",
    "masked_columns": f"the columns past D are not stored: {_WHOLE}",
    "by_D": f"rows of a tile are stored D apart, but they are BLOCK_D apart in out: {_PLACE}",
    "not_zero": "rows past S and columns past D must be 0: load them with other=0.0",
    "no_other": "rows past S and columns past D hold anything: without other=0.0 a load leaves the lanes that its mask hides undefined",
}  # fmt: skip


def twin(x, strides, blocks, mistake=None):
    (B, H, S, D), (block_m, block_d) = x.shape, blocks
    xb, xh, xs, xd = {"contiguous": strides_of(x.shape), "xd_is_one": (*strides[:3], 1), "xs_is_xd": (*strides[:2], strides[3], strides[3]),
                      "transposed": (*strides[:2], strides[3], strides[2])}.get(mistake, strides)  # fmt: skip
    memory = laid_out(x, strides)
    row_blocks = triton.cdiv(S, block_m)
    out = torch.full((row_blocks * B * H * block_m * block_d,), UNWRITTEN, dtype=torch.float64)
    for pid in range(row_blocks * B * H):
        divided = max(S // block_m, 1) if mistake == "rounded_down" else row_blocks
        row_block, batch_head = pid % divided, pid // divided
        b, h = batch_head // H, batch_head % H
        b, h = {"exchanged": (h, b), "head_0": (b, 0), "batch_0": (0, h), "joined": (0, batch_head)}.get(mistake, (b, h))
        row_block = {"first_rows": 0, "pid_rows": pid}.get(mistake, row_block)
        offs_m = (row_block * (1 if mistake == "not_multiplied" else block_m) + torch.arange(block_m))[:, None]
        offs_d = torch.arange(block_d)[None, :]
        end = {"over_the_end": (B * H - batch_head) * S, "zeros": 0}.get(mistake, S)
        mask = (offs_m < end) & (offs_d < D)
        other = {"not_zero": 1.0, "no_other": math.nan}.get(mistake, 0.0)
        tile = gather(memory, b * xb + h * xh + offs_m * xs + offs_d * xd, mask, other)
        stored = {"masked_store": offs_m < S, "masked_columns": offs_d < D}.get(mistake, torch.tensor(True)).expand(tile.shape)
        start = {"store_first": 0, "store_by_rows": pid}.get(mistake, pid * block_m)
        places = (start + torch.arange(block_m))[:, None] * (D if mistake == "by_D" else block_d) + offs_d
        out[places[stored]] = tile[stored]
    return out.view(-1, block_m, block_d)


def launch(x, strides, blocks):
    B, H, S, D = x.shape
    programs = triton.cdiv(S, blocks[0]) * B * H
    args = In(x, strides, True), Out((programs, *blocks), x.dtype), H, S, D
    return Launch((programs,), args, dict(zip(("BLOCK_M", "BLOCK_D"), blocks, strict=True)))


def inputs():
    def tile(shape, on, otherwise="", layout="bhsd", blocks=(16, 16), **options):
        x = torch.arange(1.0, 1 + math.prod(shape)).view(shape)
        return case(x, strides_of(shape, layout) if isinstance(layout, str) else layout, blocks, on=on, otherwise=otherwise, **options)

    yield tile((1, 1, 16, 16), "one head, S = D = 16, one tile", "the tile is x itself here", stray=f"a stride is not used: {_RULE}")
    yield tile((1, 1, 32, 16), "one head, S = 32, two programs", "program pid has rows row_block · BLOCK_M to row_block · BLOCK_M + BLOCK_M − 1",
               stray=f"an offset is wrong, of x or of out: {_PLACE}")  # fmt: skip
    yield tile((2, 2, 16, 16), "B = H = 2, S = 16", f"pid // row_blocks is b · H + h: {_HEAD}; {_BATCH}")
    yield tile((1, 2, 32, 16), "two heads, S = 32", "pid is (b · H + h) · row_blocks + row_block")
    yield tile((1, 1, 16, 16), "one head, S = D = 16, column-major", _RULE, "bhds", stray=f"a stride is not used: {_RULE}")
    view = "x a (B, S, H, D) tensor seen as (B, H, S, D)"
    yield tile((1, 2, 16, 16), f"two heads, {view}", "a view's heads may be anywhere: h · x.strides[1]", "bshd")
    yield tile((2, 1, 16, 16), f"two batch entries of one head, {view}", f"a view's batch entries may be anywhere: {_BATCH}", "bshd")
    ragged = "the last tile may be ragged"
    yield tile((1, 1, 20, 16), "one head, S = 20, BLOCK_M = 16", ragged, (0, 0, 16, 1), stray=_OVER)
    yield tile((1, 2, 20, 16), "two heads, S = 20, BLOCK_M = 16", ragged, stray=_OVER)
    yield tile((1, 1, 16, 12), "one head, S = 16, D = 12, BLOCK_D = 16", "a tile has BLOCK_D columns, x has D",
               stray="columns past D are loaded, which belong to the next row: the mask needs offs_d < D")  # fmt: skip
    draw = generator()
    fresh = [((1, 1, 1, 1), torch.float32, (16, 16)), ((2, 3, 33, 20), torch.float16, (32, 32)), ((2, 2, 31, 7), torch.bfloat16, (16, 16))]
    for shape, dtype, blocks in fresh:
        for layout in ("bshd", "bhds"):
            x = (10 * torch.randn(shape, generator=draw)).to(dtype)
            name = str(dtype).removeprefix("torch.")
            yield case(x, strides_of(shape, layout, pad=3), blocks, on=f"{name} x of shape {shape}, a view", fresh=True)


EXERCISE = Exercise(
    id="5.1",
    task="Load one tile of one head of a (B, H, S, D) tensor, with zeros past S and past D.",
    hints=(
        "pid = (b · H + h) · row_blocks + row_block. Which two divisions give b, h and row_block back, and how many row blocks does a head have when S = 100?",
        "Move the pointer to the head first, x.ptr + b * x.strides[0] + h * x.strides[1]. Then add offs_m[:, None] * x.strides[2] + "
        "offs_d[None, :] * x.strides[3]. offs_m counts rows of the head, so it must stay below S.",
        "One mask, on the load alone: (offs_m[:, None] < S) & (offs_d[None, :] < D), other=0.0. out is contiguous and takes the whole tile.",
    ),
    solution=load_tile_kernel,
    reasoning="The pointer moves to the head first, so offs_m counts rows of this head and offs_m < S stops the tile at its end, whatever S is. "
    "The next kernels rely on the zeros: in a dot they add nothing.",
    more="The package's version, tiles.load_tile, computes offsets in int64, because a tensor may have more than 2³¹ elements.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    launch=launch,
    tolerance=lambda args, part: (0.0, 0.0),
    overlap=f"two programs store to the same place: {_PLACE}",
)
