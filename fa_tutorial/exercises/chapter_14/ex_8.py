import math

import torch

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.harness_kernel import In, Launch, Out
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.fp8 import as_e4m3, key_order, key_order_in_triton, to_e4m3
from fa_tutorial.matmul import tl, triton


@triton.jit
def quantise_columns(v_ptr, scale_ptr, y_ptr, S, columns, BLOCK: tl.constexpr, D: tl.constexpr):
    """v in e4m3, as columns in key order, one scale for each BLOCK keys. Grid: (blocks, heads).

    v_ptr: (heads, S, D), fp16 or float32. scale_ptr: (heads, blocks) float32.
    y_ptr: (heads, D, columns) in e4m3, where columns is S rounded up to a multiple of 16.
    All are contiguous.
    """
    block, head, blocks = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(0)
    position = block * BLOCK + tl.arange(0, BLOCK)  # [BLOCK]
    offs_d = tl.arange(0, D)  # [D]
    key = key_order_in_triton(position)  # [BLOCK]
    v_ptrs = v_ptr + (head * S + key[:, None]) * D + offs_d[None, :]  # [BLOCK, D]
    tile = tl.load(v_ptrs, mask=key[:, None] < S, other=0.0).to(tl.float32)
    largest = tl.max(tl.abs(tile))
    scale = tl.where(largest > 0, largest / 448, 1.0)
    tl.store(scale_ptr + head * blocks + block, scale)
    y = as_e4m3(tile / scale)
    y_ptrs = y_ptr + (head * D + offs_d[:, None]) * columns + position[None, :]  # [D, BLOCK]
    tl.store(y_ptrs, tl.trans(y), mask=position[None, :] < columns)


KEY, SCALE = "key_order_in_triton(position)", "tl.where(largest > 0, largest / 448, 1.0)"
MISTAKES = {
    "every program reads the keys of the first block: its positions begin at block · BLOCK": (KEY, "key_order_in_triton(tl.arange(0, BLOCK))"),
    "v stays in natural order: the column at a position is key_order_in_triton(position)": (KEY, "position"),
    ("that is the way back: read the key that belongs at a position, and store it at the position, instead of storing a key at the "
    "position of its number"): [(KEY, "position"), ("    y_ptrs =", "    position = key_order_in_triton(position)\n    y_ptrs =")],
    "the tile is not transposed: y's pointers are [D, BLOCK], and the tile is [BLOCK, D]": ("tl.trans(y)", "y"),
    "the scale is 1 / 448 of the block's largest number, so that this one becomes 448": (SCALE, SCALE.replace(" / 448", "")),
    "v isn't divided by its scale before it's rounded: y · scale must be v": ("tile / scale", "tile"),
    "the store's mask ends at S: the last group of 16 positions holds its keys in another order, so some belong beyond S": (
        "position[None, :] < columns", "position[None, :] < S"),
}  # fmt: skip


def truth(v, block):
    S = v.shape[1]
    rows = torch.nn.functional.pad(v.double(), (0, 0, 0, -S % 16))
    blocks = rows.split(block, dim=1)
    scales = torch.stack([part.abs().amax(dim=(1, 2)) / 448 for part in blocks], dim=1)
    scales = scales.where(scales > 0, 1.0)
    values = torch.cat([to_e4m3(part / scales[:, i, None, None]) for i, part in enumerate(blocks)], dim=1)
    return scales, values[:, key_order(torch.arange(rows.shape[1]))].mT


def launch(v, block):
    heads, S, D = v.shape
    columns, blocks = math.ceil(S / 16) * 16, math.ceil(S / block)
    args = In(v), Out((heads, blocks), torch.float32), Out((heads, D, columns), torch.float8_e4m3fn), S, columns
    return Launch((blocks, heads), args, {"BLOCK": block, "D": D})


def inputs():
    def of(v, words, otherwise="", block=16, **options):
        heads, S, D = v.shape
        on = f"heads = {heads}, S = {S}, D = {D}, BLOCK = {block}{', ' * bool(words)}{words}"
        return case(v, block, on=on, otherwise=otherwise, **options)

    numbers = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()  # 0 to 448
    draw = torch.Generator().manual_seed(0)

    def exact(S, scale=1.0):
        """Numbers of e4m3 times a power of two, the largest 448 · scale."""
        v = numbers[torch.randint(1, 126, (1, S, 16), generator=draw)] * scale
        v[:, 3::16, 0] = 448 * scale  # S = 20: in key 19, at a position beyond S
        return v

    placed = "row d of y has v[j, d] / scale at the position whose key is j, and all of a block's numbers have one scale"
    yield of(exact(16), "the scale is 1", placed)
    sizes = "the scale is the largest number in size, whatever its sign, over 448: one for all D numbers of the block's keys"
    yield of(-exact(16, 2**-5).clamp(min=1), "all from −14 to −1", {"y": placed, "scale": sizes})
    nearest = "y is v / scale rounded to the nearest number of e4m3 by as_e4m3: in Triton's interpreter .to(tl.float8e4nv) rounds otherwise"
    close = exact(16)
    close[:, 1::16, :] = torch.tensor([0.99, 1.99, 3.97, 15.8] * 4)
    yield of(close, "some numbers just below powers of two", nearest)
    own = "each block of BLOCK keys has a scale of its own, scale[head, block], and each head its own v and y"
    halves = 2.0 ** -torch.arange(4).repeat_interleave(16)[None, :, None]  # of the numbers of four blocks
    yield of((exact(64) * halves).view(2, 32, 16), "two blocks", own)
    yield of(exact(32), "", placed, block=32)
    past = "the last block may have fewer keys: y has `columns` columns all the same, with 0 where there is no key"
    stray = "the last block may have fewer keys: no key from S on is read, and no column from `columns` on is written"
    for S, block in ((20, 16), (40, 32)):
        yield of(exact(S), "", {"y": past, "scale": sizes}, block, edge="ragged", stray=stray)
    yield of(exact(32) * (torch.arange(32) < 16)[:, None], "the second block all 0", edge="zeros")
    draw = generator()
    for heads, S, dtype in ((2, 64, torch.float32), (3, 45, torch.float16)):
        v = torch.randn(heads, S, 16, generator=draw) * torch.logspace(-2, 2, heads * S).view(heads, S, 1)
        yield of(v.to(dtype), "randn, rows of many sizes", block=32, fresh=True, edge="" if S % 32 == 0 else "ragged")


EXERCISE = Exercise(
    task="Write the quantiser of v: e4m3, as columns in key order, with a scale for each block of keys.",
    conditions={"ragged": "S need not be a multiple of BLOCK, nor of 16", "zeros": "a block of zeros has the scale 1"},
    hints=(
        "Which key must be loaded so that it can be stored at a position? Then a thread's place in the tile is the position, and the rows that it loads "
        "are in key order.",
        "largest = tl.max(tl.abs(tile)), without an axis, is one number for the tile: 14.2's scale follows from it. The scale goes to "
        "scale_ptr + head * blocks + block, with blocks = tl.num_programs(0).",
        "y_ptr + (head * D + offs_d[:, None]) * columns + position[None, :] points at a [D, BLOCK] tile of y: store tl.trans(as_e4m3(tile / scale)) there, "
        "with mask=position[None, :] < columns.",
    ),
    solution=quantise_columns,
    reasoning="Loads may go anywhere, so the order of the keys costs nothing there. The load's mask goes by the key, and the store's by the position, because "
    "a ragged group of 16 has its keys, and its zeros, in another order. The head is taken in 64 bits, since v may hold 2³¹ numbers.",
    more="The package's kernel, fp8.quantise_kernel, also takes q and k, which it rotates and stores as rows, and any strides.",
    inputs=inputs,
    truth=truth,
    rule="y · scale is v, rounded to e4m3, in column position key_order_in_triton(position), and a block's scale is its largest number in size / 448",
    mistakes=MISTAKES,
    parts=("scale", "y"),
    launch=launch,
    # y may be the neighbouring number, where v / scale lies halfway but for float32's rounding
    tolerance=lambda args, part: (0.13, 0.0) if part == "y" else (1e-5, 0.0),
)
