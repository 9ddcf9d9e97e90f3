"""Exercise 5.8, flash_forward."""

import inspect
import math
import types

import torch

from fa_tutorial import forward
from fa_tutorial.exercises.chapter_5.ex_7 import flash_forward_kernel as kernel
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.running import Wrong, adapting, kind, show
from fa_tutorial.matmul import triton
from fa_tutorial.tiles import Heads, TileConfig, heads, padded_d


def flash_forward(q, k, v, scale, is_causal, tile):
    """(o, lse) of attention. q: (B, H_q, S_q, D); k, v: (B, H_k, S_k, D), any strides."""
    (B, H_q, S_q, D), (H_k, S_k) = q.shape, k.shape[1:3]
    o = torch.empty((B, H_q, S_q, D), dtype=q.dtype, device=q.device)
    lse = torch.empty((B, H_q, S_q), dtype=torch.float32, device=q.device)
    grid = (triton.cdiv(S_q, tile.block_m) * B * H_q,)
    kernel[grid](
        heads(q), heads(k), heads(v), heads(o), lse, H_q, H_k, S_q, S_k, D, scale,
        IS_CAUSAL=is_causal, BLOCK_D=padded_d(D), **tile.launch(),
    )  # fmt: skip
    return o, lse


GRID, LSE = "triton.cdiv(S_q, tile.block_m) * B * H_q", "torch.empty((B, H_q, S_q), dtype=torch.float32, device=q.device)"
O = "torch.empty((B, H_q, S_q, D), dtype=q.dtype, device=q.device)"
MISTAKES = {
    "the ragged last block of rows has no program: round up, triton.cdiv(S_q, tile.block_m)": (GRID, "S_q // tile.block_m * B * H_q"),
    "programs own blocks of query rows, block_m, not block_n": (GRID, GRID.replace("block_m", "block_n")),
    "programs count query heads, B · H_q, not key heads": (GRID, GRID.replace("H_q", "H_k")),
    "lse is rounded to q's dtype: the kernel writes float32": (LSE, LSE.replace("torch.float32", "q.dtype")),
    "lse has a view's strides, and the kernel writes it as a contiguous tensor: empty_like keeps q's strides": (
        LSE, "torch.empty_like(q[..., 0], dtype=torch.float32)"),
    "o is as wide as its tiles: BLOCK_D pads the tile, not the tensor": (O, O.replace("S_q, D", "S_q, padded_d(D)")),
}  # fmt: skip
NAMES = ("kernel", "flash_forward_kernel")
PARTS = (
    "the number of programs",
    "o",
    "lse",
    "(H_q, H_k, S_q, S_k, D, scale)",
    "IS_CAUSAL",
    "(BLOCK_M, BLOCK_N)",
    "BLOCK_D",
    "(num_warps, num_stages)",
    "what is returned",
)


def described(x):
    """A tensor or Heads in words: shape, dtype, and whether it is contiguous and where q is."""
    if not isinstance(x, torch.Tensor | Heads):
        return show(x)
    is_heads, x = isinstance(x, Heads), x.ptr if isinstance(x, Heads) else x
    words = f"{'Heads of ' if is_heads else ''}{tuple(x.shape)}, {str(x.dtype).removeprefix('torch.')}"
    words += "" if is_heads or x.is_contiguous() else ", not contiguous"
    return words + ("" if x.is_meta else ", not on q's device")


def elsewhere(x):
    """A tensor like x on a device that is not the default one, and that holds no numbers."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


class Spy:
    """Stands in the kernel's place: keeps what it is launched with, and runs nothing, for a wrong launch may write anywhere."""

    def __init__(self):
        self.launches = []

    def __getitem__(self, grid):
        def launch(*args, num_warps=None, num_stages=None, **options):
            grid_of = grid(options) if callable(grid) else grid
            if not isinstance(grid_of, tuple | list):
                raise Wrong(f"the grid is {show(grid_of)}; Triton takes a tuple, with a comma where it has one axis: ({show(grid_of)},)")
            given = inspect.signature(forward.flash_forward_kernel.fn).bind(*args, **options).arguments
            self.launches.append((grid_of, types.SimpleNamespace(**given, compiled=(num_warps, num_stages))))

        return launch


@adapting
def adapt(answer, q, k, v, scale, is_causal, tile):
    """The launcher, run with a Spy for its kernel; what it launches, in PARTS."""
    spy, (q, k, v) = Spy(), map(elsewhere, (q, k, v))
    replaced = {name: spy for name in NAMES if name in answer.__globals__}
    copy = types.FunctionType(answer.__code__, answer.__globals__ | replaced, answer.__name__, answer.__defaults__, answer.__closure__)
    result = copy(q, k, v, scale, is_causal, tile)
    if len(spy.launches) != 1:
        raise Wrong(f"your kernel is launched {len(spy.launches)} times, want once: kernel[grid](…)")
    [(grid, given)] = spy.launches
    if math.prod(grid[1:]) != 1:
        raise Wrong(f"the grid is {grid}; your kernel asks tl.program_id(0) alone, so it has one axis")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(passed := getattr(given, name), Heads) or passed.ptr is not x or tuple(passed.strides) != x.stride():
            raise Wrong(f"{name} is not launched as heads({name}): that passes its strides, so a view needs no copy")
    numbers = given.H_q, given.H_k, given.S_q, given.S_k, given.D, given.scale
    blocks = given.IS_CAUSAL, (given.BLOCK_M, given.BLOCK_N), given.BLOCK_D, given.compiled
    o = given.o.ptr if isinstance(given.o, Heads) else given.o
    names = {id(o): "o", id(given.lse_ptr): "lse"}
    is_tuple = isinstance(result, tuple | list)
    returned = f"({', '.join(names.get(id(x), 'another tensor') for x in result)})" if is_tuple else kind(result)
    return grid[0], described(given.o), described(given.lse_ptr), numbers, *blocks, returned


def truth(q, k, v, scale, is_causal, tile):
    (B, H_q, S_q, D), (H_k, S_k) = q.shape, k.shape[1:3]
    o, lse = f"Heads of {tuple(q.shape)}, {str(q.dtype).removeprefix('torch.')}", f"{(B, H_q, S_q)}, float32"
    block_d = next(power for power in (16, 32, 64, 128, 256) if power >= D)
    programs = -(-S_q // tile.block_m) * B * H_q
    blocks, compiled = (tile.block_m, tile.block_n), (tile.num_warps, tile.num_stages)
    return programs, o, lse, (H_q, H_k, S_q, S_k, D, scale), is_causal, blocks, block_d, compiled, "(o, lse)"


def inputs():
    def launcher(B, H_q, H_k, S_q, S_k, D, blocks, otherwise, dtype=torch.float32, is_causal=False, view=False):
        q, k, v = (torch.zeros((B, S, H, D) if view else (B, H, S, D), dtype=dtype) for H, S in ((H_q, S_q), (H_k, S_k), (H_k, S_k)))
        q, k, v = (x.transpose(1, 2) if view else x for x in (q, k, v))
        words = f"{str(dtype).removeprefix('torch.')}, B = {B}, H_q = {H_q}, H_k = {H_k}, S_q = {S_q}, S_k = {S_k}, D = {D}, tile {blocks[0]}x{blocks[1]}"
        on = words + (", causal" if is_causal else "") + (", views of (B, S, H, D) tensors" if view else "")
        return case(q, k, v, 0.3, is_causal, TileConfig(*blocks, 8, 2), on=on, otherwise=otherwise)

    rules = (
        "by (5.1) the grid has a program for each block of BLOCK_M rows, of each query head of each batch entry",
        "o has q's shape, dtype and device, and is launched as heads(o)",
        "lse is (B, H_q, S_q), float32, contiguous and on q's device, and is launched as it is",
        "these are the sizes of q and k, the true D among them, and the caller's scale",
        "the caller says whether the mask is causal: IS_CAUSAL=is_causal",
        "a tile of q or o has tile.block_m rows, one of k or v tile.block_n: **tile.launch() passes both",
        "BLOCK_D is D rounded up to a power of two, because tl.arange takes no other, and at least 16, as tl.dot asks: padded_d(D)",
        "the tile also says how many warps and stages the kernel is compiled with: **tile.launch() passes them, too",
        "return o and lse, in this order, the tensors that the kernel writes",
    )
    told = dict(zip(PARTS, rules, strict=True))
    yield launcher(1, 1, 1, 64, 64, 64, (32, 32), told)
    yield launcher(2, 6, 2, 64, 96, 64, (32, 16), told, is_causal=True)
    yield launcher(2, 2, 1, 50, 70, 64, (32, 16), told)
    yield launcher(1, 2, 2, 32, 32, 40, (32, 16), told, torch.float16)
    yield launcher(1, 2, 2, 32, 32, 5, (32, 16), told)
    yield launcher(2, 6, 3, 40, 20, 64, (16, 32), told, torch.float16, view=True)


EXERCISE = Exercise(
    task="Launch the kernel: allocate o and lse, choose the grid, and pad D.",
    hints=(
        "What must exist before the launch, in which dtype? How many programs does (5.1) number?",
        "grid = (triton.cdiv(S_q, tile.block_m) * B * H_q,). o has q's shape and dtype, and lse is torch.empty((B, H_q, S_q), "
        "dtype=torch.float32, device=q.device).",
        "kernel[grid](heads(q), heads(k), heads(v), heads(o), lse, H_q, H_k, S_q, S_k, D, scale, IS_CAUSAL=is_causal, "
        "BLOCK_D=padded_d(D), **tile.launch()).",
    ),
    solution=flash_forward,
    reasoning="The kernel takes any strides of q, k, v and o, but it writes lse as a contiguous float32 tensor, so lse is made that way. "
    "The true D is an argument, for the masks, and the padded one is BLOCK_D, for the tiles.",
    more="This is forward.flash_forward, except that the package picks the tile by itself.",
    inputs=inputs,
    truth=truth,
    rule="the grid has one program for each block of rows of each query head, and o and lse are what the kernel writes",
    mistakes=MISTAKES,
    parts=PARTS,
    exact=True,
    adapt=lambda answer: adapt(answer) if hasattr(answer, "__code__") else answer,
)
