"""What the exercises on forward kernels share: launch, tolerance, truth, inputs, and what a kernel is watched for."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

from fa_tutorial import hardware, tiles
from fa_tutorial.algorithm import all_tiles, causal_tiles
from fa_tutorial.exercises import harness_kernel
from fa_tutorial.exercises.harness import case
from fa_tutorial.exercises.harness_kernel import In, Launch, Out
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.running import Wrong

TILE = (16, 16, 16)  # BLOCK_M, BLOCK_N, BLOCK_D


def strides_of(shape, layout="bhsd", pad=0):
    """Strides of a (B, H, S, D) tensor whose dimensions lie in memory as `layout` says; pad: unused elements after each run of the last."""
    strides, step = {}, 1
    for dim in reversed(layout):
        strides[dim] = step
        step, pad = step * max(shape["bhsd".index(dim)], 1) + pad, 0
    return tuple(strides[dim] for dim in "bhsd")


def attention_case(q, k, v, on, otherwise="", *, scale=None, blocks=TILE, layouts=("bhsd",) * 4, pad=0, is_causal=False, **options):
    """A case of q, k and v; layouts: of q, k, v and o, in words as strides_of takes them, or the strides."""
    shapes = zip((q.shape, k.shape, v.shape, q.shape), layouts, strict=True)
    strides = tuple(strides_of(shape, layout, pad) if isinstance(layout, str) else layout for shape, layout in shapes)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return case(q, k, v, blocks, strides, scale, is_causal, on=on, otherwise=otherwise, **options)


def launch(q, k, v, blocks, strides, scale, is_causal, *, has_causal=False, has_lse=False):
    """has_causal: the kernel has the parameter IS_CAUSAL; has_lse: it has lse_ptr, and H_q and H_k in place of H."""
    (B, H, S_q, D), (H_k, S_k) = q.shape, k.shape[1:3]
    tensors = [*(In(x, lies, True) for x, lies in zip((q, k, v), strides, strict=False)), Out(q.shape, q.dtype, strides[3], True)]
    lse, heads = ([Out((B, H, S_q), torch.float32)], (H, H_k)) if has_lse else ([], (H,))
    meta = dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_D"), blocks, strict=True)) | ({"IS_CAUSAL": is_causal} if has_causal else {})
    return Launch((-(-S_q // blocks[0]) * B * H,), (*tensors, *lse, *heads, S_q, S_k, D, scale), meta)


def tolerance(args, part):
    """A sum of products is rounded by a few float32 units of the sum of their absolute values; halves round p and o once.

    Where v is 1, o is the sum of the weights, which is 1: a small number added to l shows.
    """
    q, k, v, _, _, scale, _ = args
    if part == "lse":
        return 1e-6, 1e-5 if q.dtype == torch.float32 else 1e-3
    if not v.numel() or (v.dtype == torch.float32 and bool((v == 1).all())):
        return 0.0, 5e-7
    sums = q.abs().double() @ k.abs().double().mT.repeat_interleave(q.shape[1] // k.shape[1], 1)
    noise = min(4 * torch.finfo(torch.float32).eps * abs(scale) * float(sums.max()), 1e-4)
    rounding = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 2e-5}[q.dtype]
    return 0.0, (rounding + noise) * float(v.double().nan_to_num().abs().max())


def truth(q, k, v, blocks, strides, scale, is_causal):
    """(o, lse). A row that sees no key has o = 0 and lse = −inf; one that sees a key whose v is NaN has o = NaN."""
    group, S_q, S_k = q.shape[1] // k.shape[1], q.shape[2], k.shape[2]
    k, v = (x.double().repeat_interleave(group, 1) for x in (k, v))
    seen = torch.ones(S_q, S_k, dtype=torch.bool).tril(S_k - S_q if is_causal else S_k)
    s = (scale * (q.double() @ k.mT)).masked_fill(~seen, -math.inf)
    p = torch.softmax(s, -1).masked_fill(~seen, 0.0)
    o = (p @ v.nan_to_num()).masked_fill(seen.double() @ v.isnan().double() > 0, math.nan)
    return o, torch.logsumexp(s, -1)


def o_truth(*args):
    return truth(*args)[0]


def by_infinity(kernel: Any) -> Any:
    """The kernel; Wrong where a large number in its text, or one that it takes from outside, stands for −∞."""
    code, names = kernel.fn.__code__, kernel.fn.__globals__
    outside = (names.get(name) for name in code.co_names)
    for number in (*code.co_consts, *(getattr(value, "value", value) for value in outside)):
        if isinstance(number, int | float) and 1e4 <= abs(number) < math.inf:
            raise Wrong(f'−{abs(number):.4g} stands for −∞: write -float("inf"), as the exercise asks: it alone lies below every number')
    return kernel


WIDENED = "a dot gets fp16 tiles widened to float32, which takes it off the tensor cores"
ROUNDED = "one number for each row, m, l, alpha or a sum of p, is fp16: all four stay float32"


def in_half(S_k: int) -> Launch:
    """A launch of one program with fp16 tensors."""
    return launch(*attention_case(*(x.half() for x in draw_qkv(1, 1, 16, S_k, 16)), "").args)


def widened(kernel: Any, launched: Launch | None = None) -> str:
    """Why a right result isn't enough: `dot` gets fp16 tiles as they are, and what holds one number a row is float32. Only the
    interpreter shows it."""
    launched = launched or in_half(16)
    slow = f"{WIDENED}: leave q, k and v as they are, and round p to v's dtype"
    return slow if widens(kernel, launched) else rounds(kernel, launched)


def streams(kernel: Any) -> str:
    """As widened, and each tile of k and v is loaded once."""
    again = harness_kernel.results(kernel, in_half(32), kernel, "", "", once=True)[1].again
    once = f"{again}: load each tile of keys once; m grows with it, and l and acc follow by alpha"
    return widened(kernel) or (once if again[:1] in ("k", "v") else "")


def rounds(kernel: Any, launched: Launch) -> str:
    """ROUNDED where a kernel, launched with fp16 tensors, casts 16 numbers, one a row, to or from fp16."""
    from triton.runtime.interpreter import interpreter_builder as builder

    casts, cast = [], builder.cast_impl

    def noting(x: Any, dtype: Any) -> Any:
        casts.append(x.data.size == 16 and 2 in (x.data.dtype.itemsize, dtype.scalar.primitive_bitwidth // 8))
        return cast(x, dtype)

    if hardware.interpreter_on():
        with mock.patch.object(builder, "cast_impl", noting):
            harness_kernel.results(kernel, launched, kernel, "", "", once=True)
    return ROUNDED if any(casts) else ""


def widens(kernel: Any, launched: Launch) -> bool:
    """Whether a kernel gives `dot` a tile of more than 16 bits, launched with fp16 tensors. Only the interpreter shows it."""
    dtypes = []

    def noting(a: Any, b: Any, acc: Any = None) -> Any:
        dtypes.append(a.dtype)
        return tiles.dot(a, b, acc)

    names = kernel.fn.__globals__
    if hardware.interpreter_on():
        with mock.patch.dict(names, {name: noting for name, value in names.items() if value is tiles.dot}):
            harness_kernel.results(kernel, launched, kernel, "", "", once=True)
    return any(dtype.primitive_bitwidth > 16 for dtype in dtypes)


def counting_tiles(products: int = 2, two_loops: bool = True) -> Callable:
    """An `adapt` that counts a causal kernel's tiles in the interpreter, on inputs with blocks of (32, 16, 64), whose sizes differ.

    Wrong where it multiplies for a tile that its block of rows doesn't see, or, with two loops, masks one that every row sees whole.
    products: how many a tile takes.
    """

    @harness_kernel.launched_by
    def counted(kernel: Any, grid: Any, *args: Any, **meta: Any) -> None:
        (S_q, S_k), block_m, block_n = args[-4:-2], meta["BLOCK_M"], meta["BLOCK_N"]
        if (block_m, block_n, meta["BLOCK_D"]) != (32, 16, 64):
            return kernel[grid](*args, **meta)
        with noted() as (done, compared):
            kernel[grid](*args, **meta)
        bounds = [causal_tiles(i, block_m, block_n, S_q, S_k) if meta["IS_CAUSAL"] else all_tiles(block_n, S_k) for i in range(grid[0])]
        seen, masked = sum(end for _, end in bounds), sum(end - full for full, end in bounds)
        if sum(done) > products * seen * block_m * block_n * meta["BLOCK_D"]:
            causal = "end_n is one past the last key that the block's last row sees, and its last row is at most S_q − 1"
            end = causal if meta["IS_CAUSAL"] else "without a mask the loop ends at S_k"
            raise Wrong(f"tiles are multiplied that no row of their block sees, or that don't exist: {end}")
        if two_loops and (found := compared.count(block_m * block_n)) > masked:
            whole = "the loop without a mask takes all tiles that every row of the block sees whole"
            raise Wrong(f"tiles masked: {found} of {seen}, and {masked} need it: {whole}")

    return counted


@contextlib.contextmanager
def noted() -> Iterator[tuple[list[int], list[int]]]:
    """What the interpreter does meanwhile: each tl.dot's multiply-adds, and the size of each comparison of integers."""
    from triton.runtime.interpreter import interpreter_builder as builder

    products, compared = [], []

    def noting(name: str, method: Callable) -> Callable:
        def run(a: Any, *args: Any, **options: Any) -> Any:
            result = method(a, *args, **options)
            if name == "create_dot":
                products.append(result.data.size * a.data.shape[-1])
            else:
                compared.append(result.data.size)
            return result

        return run

    with contextlib.ExitStack() as stack:
        plain = dataclasses.replace(builder.options, sanitize_overflow=False)  # which compares, too
        stack.enter_context(mock.patch.object(builder, "options", plain))
        for name in ("create_dot", *(name for name in dir(builder) if name.startswith("create_icmp"))):
            stack.enter_context(mock.patch.object(builder, name, noting(name, getattr(builder, name))))
        yield products, compared


# ---------------------------------------------------------------- inputs


def draw_qkv(B, H, S_q, S_k, D, *, H_k=0, draw=None):
    """q, k and v of normal values, the same on every call unless a generator is given."""
    draw = draw or torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, generator=draw) for shape in ((B, H, S_q, D), *[(B, H_k or H, S_k, D)] * 2))


ANY_LENGTH = (
    ((1, 1, 1, 1, 1, 1), torch.float32, TILE, 1.0),
    ((1, 2, 2, 17, 33, 20), torch.float16, (32, 32, 32), 3.0),
    ((2, 2, 2, 20, 25, 12), torch.float32, TILE, 3.0),
    ((1, 2, 2, 40, 50, 40), torch.bfloat16, (16, 32, 64), 1.0),
)


def with_fresh(*shapes, pad=1, layouts=("bshd", "bhds", "bhsd", "bshd"), is_causal=False):
    """Decorates the inputs of an exercise, and adds views of fresh numbers.

    shapes: (B, H_q, H_k, S_q, S_k, D), dtype, blocks, factor. Those of bf16 are for a GPU: the interpreter's bf16 is wrong.
    """

    def decorate(inputs):
        def both():
            yield from inputs()
            draw, on_gpu = generator(), hardware.device().type == "cuda"
            for (B, H, H_k, S_q, S_k, D), dtype, blocks, factor in shapes:
                if on_gpu or dtype != torch.bfloat16:
                    qkv = ((factor * x).to(dtype) for x in draw_qkv(B, H, S_q, S_k, D, H_k=H_k, draw=draw))
                    on = f"{str(dtype).removeprefix('torch.')}, B = {B}, H_q = {H}, H_k = {H_k}, S_q = {S_q}, S_k = {S_k}, D = {D}, {'causal, ' * is_causal}views"
                    edge = "" if dtype == torch.float32 else "half"
                    options = {"blocks": blocks, "is_causal": is_causal, "pad": pad, "layouts": layouts}
                    yield attention_case(*qkv, on, fresh=True, edge=edge, **options)

        return both

    return decorate
