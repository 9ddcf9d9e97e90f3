"""Graders, hints and reasoning of chapter 2: strides and offsets, and the first three kernels."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from fa_tutorial import hardware, layout
from fa_tutorial.arguments import dtype_name
from fa_tutorial.exercises.catalogue import Exercise
from fa_tutorial.exercises.grader import (
    OTHERS,
    Buffer,
    Stray,
    Unwritten,
    Wrong,
    expect,
    expect_equal,
    fresh,
    input_buffer,
    output_buffer,
    run,
    run_kernel,
)

PADDED, COLUMN_MAJOR = "padded", "column-major"  # how a matrix lies in memory; None: contiguous


def _refuse_iterator(answer: Any) -> None:
    """Wrong if the strides come as a generator or its like: two of them are never equal, which `run` would take for another mistake."""
    try:
        result = answer((2, 3))
    except Exception:
        return  # run says what is wrong with it
    if isinstance(result, Iterator):
        raise Wrong(f"returns a {type(result).__name__}, want a tuple: brackets around a loop make none, tuple(…) does")


def grade_contiguous_strides(answer) -> None:
    def compare(shape: tuple[int, ...], otherwise: str, suspects: Mapping[str, Any] | None = None, values: bool = True) -> None:
        result = run(answer, shape)
        result = tuple(result) if isinstance(result, list) else result
        expect_equal(result, layout.contiguous_strides(shape), on=f"contiguous_strides({shape})" if values else "a random shape",
                     otherwise=otherwise, suspects=suspects, values=values)  # fmt: skip

    _refuse_iterator(answer)
    rule = "stride[i] is the product of the sizes after i"
    own_size = "a dimension's own size does not count in its stride: only the later sizes do, so the last stride is 1"
    compare((2, 3), rule, {
        "the strides are column-major, the first index running fastest: in a row-major tensor the last one does": (1, 2),
        "the strides are in reverse order: the last one is 1": (1, 3),
        own_size: (6, 3),
        "strides count elements, not bytes": (12, 4),
        "that is the shape: how far must an offset move for one step in each index?": (2, 3),
    })  # fmt: skip
    compare((2, 3, 4), rule, {
        "each stride is the next size alone: take the product of all later sizes": (3, 4, 1),
        "the sizes are added: multiply them": (7, 4, 1),
        "the strides are column-major, the first index running fastest: in a row-major tensor the last one does": (1, 2, 6),
        "the strides are in reverse order: the last one is 1": (1, 4, 12),
    })  # fmt: skip
    compare((5,), "nothing comes after the last dimension, so its stride is 1")
    compare((3, 1, 2), "a size of 1 is a size like any other: it multiplies by 1", {
        "the strides of size 1 are set to 0: that is what expand does, a contiguous tensor has none": (2, 0, 1),
    })  # fmt: skip
    compare((), "a tensor without dimensions has no strides: an empty tuple")
    large = (2, 4_099, 4_099)  # past float32's 2²⁴, in a tensor that PyTorch can still make
    compare(large, "large strides must be exact: stay with Python integers")
    for _ in range(20):
        compare(tuple(random.randint(1, 9) for _ in range(random.randint(1, 6))), OTHERS, values=False)


def grade_flat_offset(answer) -> None:
    def compare(index: tuple, strides: tuple, otherwise: str, suspects: Mapping[str, Any] | None = None, values: bool = True) -> None:
        result = run(answer, index, strides)
        if isinstance(result, torch.Tensor) and result.numel() == 1:
            result = result.item()
        expect_equal(result, layout.flat_offset(index, strides), on=f"flat_offset({index}, {strides})" if values else "a random case",
                     otherwise=otherwise, suspects=suspects, values=values)  # fmt: skip

    rule = "the offset is Σ index[i] · stride[i]"
    compare((1, 2), (10, 3), rule, {
        "the strides are not used: one step in index i moves stride[i] elements": 3,
        "the products are multiplied: add them": 60,
        "1 is added: the first element has offset 0": 17,
        "the strides are taken in reverse order": 23,
        "the last stride is taken for 1: in a view it need not be": 12,
        "the offset is counted in bytes: strides count elements": 64,
        "the last index is left out": 10,
        "the first index is left out": 6,
        "the sizes of the steps are added without the index": 13,
    })  # fmt: skip
    compare((0, 0), (4, 1), "the first element has offset 0")
    compare((1, 2), (1, 3), "the strides may stand in any order: a transposed view has them swapped", {
        "the strides are sorted first: each belongs to its own index": 5,
    })  # fmt: skip
    compare((5, 2), (0, 1), "a stride of 0 counts as 0: an expanded dimension does not move", {
        "a stride of 0 is taken for 1: an expanded dimension does not move": 7,
    })  # fmt: skip
    compare((2, 1, 3), (12, 4, 1), "any number of dimensions: add up all of them", {"only two dimensions are added up": 28})
    compare((), (), "no dimensions: the only element has offset 0")
    compare((70_001, 3), (1_000_003, 1), "large offsets must be exact: stay with Python integers")
    for _ in range(20):
        ndim = random.randint(1, 5)
        index, strides = (tuple(random.randint(0, high) for _ in range(ndim)) for high in (99, 9_999))
        compare(index, strides, OTHERS, values=False)


# ---------------------------------------------------------------- kernels


def _launch(
    kernel: Any,
    grid: tuple[int, ...],
    args: Sequence[Any],
    *,
    on: str,
    otherwise: str,
    written: Mapping[str, torch.Tensor] | None = None,
    **meta: int,
) -> torch.Tensor:
    """The kernel's one output. What run_kernel finds in memory is completed with the input and a diagnosis.

    on: the input, in words. otherwise: the diagnosis in general. written: diagnosis -> where this very mistake writes.
    """
    try:
        return run_kernel(kernel, grid, args, **meta)[0]
    except Unwritten as error:
        if not error.written.any():
            raise Wrong(
                f"nothing is stored: a kernel returns no value, its result goes to memory by tl.store: with {on} it {error}"
            ) from None
        diagnosis = next((name for name, place in (written or {}).items() if torch.equal(place, error.written)), otherwise)
        raise Wrong(f"{diagnosis}: with {on} it {error}") from None
    except Stray as error:
        raise Wrong(f"{otherwise}: with {on} it {error.access}") from None


def _where_written(shape: Sequence[int], *parts: tuple[slice, ...]) -> torch.Tensor:
    """A bool tensor that is True in the parts."""
    place = torch.zeros(tuple(shape), dtype=torch.bool)
    for part in parts:
        place[part] = True
    return place


def _dtypes() -> list[torch.dtype]:
    """fp32 and fp16, and bf16 where it is computed right: the interpreter's bf16 arithmetic is not."""
    return [torch.float32, torch.float16] + ([torch.bfloat16] if hardware.device().type == "cuda" else [])


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def grade_add_kernel(kernel) -> None:
    def compare(x, y, BLOCK: int, otherwise: str, suspects=None, written=None, values=True) -> None:
        n = len(x)
        on = f"n = {n}, BLOCK = {BLOCK}" + ("" if x.dtype == torch.float32 else f", {dtype_name(x.dtype)}")
        out = _launch(kernel, (_ceil_div(n, BLOCK),), [input_buffer("x_ptr", x), input_buffer("y_ptr", y),
                      output_buffer("out_ptr", (n,), x.dtype), n],
                      on=on, otherwise=otherwise, written=written, BLOCK=BLOCK)  # fmt: skip
        # Both inputs are exact in x's dtype, so one rounding of the exact sum is all that may differ.
        rtol = {torch.float32: 1e-6, torch.float16: 2**-10, torch.bfloat16: 2**-7}[x.dtype]
        expect(out, x.double() + y.double(), on=on, otherwise=otherwise, suspects=suspects, rtol=rtol, atol=1e-7, values=values)

    x, y = torch.arange(1.0, 9.0), 10 * torch.arange(1.0, 9.0)
    compare(x[:4], y[:4], 4, "element i of out is x[i] + y[i]", {
        "y is never read: out is x + x": 2 * x[:4],
        "x is never read: out is y + y": 2 * y[:4],
        "out is x alone": x[:4],
        "out is y alone": y[:4],
        "the sum of all elements is stored: element i of out is x[i] + y[i]": (x + y)[:4].sum().expand(4),
    }, {
        "the last element is masked out: the mask is offs < n": _where_written((4,), (slice(0, 3),)),
    })  # fmt: skip
    starts = "program i works on the elements from i · BLOCK to (i + 1) · BLOCK − 1"
    compare(x, y, 4, f"an offset is wrong: {starts}, and 2 programs of 4 fill 8 elements exactly", {
        "every program reads the first BLOCK of x and y: the loads need program_id(0) · BLOCK too": (x + y)[:4].repeat(2),
    }, {
        "every program works on the first BLOCK elements: offs must start at program_id(0) · BLOCK": _where_written((8,), (slice(0, 4),)),
        "program i must start at element i · BLOCK, not at element i: multiply program_id(0) by BLOCK": _where_written((8,), (slice(0, 5),)),
        "the last element is masked out: the mask is offs < n": _where_written((8,), (slice(0, 7),)),
    })  # fmt: skip
    past = "runs past the end of the data: offs < n is the mask of every load and of the store"
    compare(x[:5], y[:5], 4, past, written={
        "the last element is masked out: the mask is offs < n": _where_written((5,), (slice(0, 4),)),
    })  # fmt: skip
    compare(x[:1], y[:1], 4, past)
    _refuse_repeated_blocks(kernel)

    third = torch.tensor([1 / 3, 2 / 3, 1e-3, 1000.1])
    compare(third, third, 4, "out must keep the precision of fp32 inputs", {
        "the sum is rounded to half precision: convert to out_ptr.dtype.element_ty, or leave the conversion to tl.store": (
            2 * third.half()).double(),
    })  # fmt: skip
    for dtype in _dtypes():
        for n, BLOCK in ((1, 16), (15, 16), (16, 16), (17, 16), (1000, 128)):
            if dtype == torch.bfloat16 and BLOCK == 128:
                continue
            x, y = (factor * torch.randn(n, generator=fresh()).to(dtype) for factor in (3, 100))
            compare(x, y, BLOCK, OTHERS, values=False)


def _refuse_repeated_blocks(kernel: Any) -> None:
    """Wrong if programs add each other's elements too, which out does not show: added in place, a second time shows.

    On a GPU programs run at once, and may all read before one writes: there they are so many that the last begin when the first have ended.
    Those beyond the second have nothing to do, and memory where an answer without a mask would write.
    """
    programs, block, n = (2 if hardware.interpreter_on() else 65_536), 4, 8
    out, y = (torch.zeros(programs * block, device=hardware.device()) for _ in range(2))
    x = torch.arange(1.0, n + 1)
    out[:n], y[:n] = x, 10 * x
    kernel[(programs,)](out, y, out, n, BLOCK=block)
    if (out[:n].cpu() > 11.5 * x).any():
        raise Wrong(
            "elements are added more than once: program i takes those from i · BLOCK to (i + 1) · BLOCK − 1, and no others: with n = 8, "
            "BLOCK = 4, and out in the memory of x, so that it shows, y is added to out again and again"
        )


def _matrix_strides(rows: int, cols: int, how: str | None) -> tuple[int, int]:
    return {None: (cols, 1), PADDED: (cols + 4, 1), COLUMN_MAJOR: (1, rows)}[how]


def grade_transpose_kernel(kernel) -> None:
    def compare(x, block, otherwise, *, suspects=None, written=None, x_lies=None, out_lies=None, values=True) -> None:
        rows, cols = x.shape
        x_strides, out_strides = _matrix_strides(rows, cols, x_lies), _matrix_strides(cols, rows, out_lies)
        on = f"x of shape {(rows, cols)}, tiles of {block}" + (f", x's strides {x_strides}" if x_lies else "")
        on += f", out's strides {out_strides}" if out_lies else ""
        on += "" if x.dtype == torch.float32 else f", {dtype_name(x.dtype)}"
        args = [input_buffer("x_ptr", x, x_strides), output_buffer("out_ptr", (cols, rows), x.dtype, out_strides), rows, cols]
        out = _launch(kernel, (_ceil_div(rows, block[0]), _ceil_div(cols, block[1])), [*args, *x_strides, *out_strides],
                      on=on, otherwise=otherwise, written=written, BLOCK_R=block[0], BLOCK_C=block[1])  # fmt: skip
        expect(out, x.T, on=on, otherwise=otherwise, suspects=suspects, rtol=0.0, atol=0.0, values=values)

    tile = (2, 8)
    count = torch.arange(1.0, 97.0)
    x = count[:16].view(2, 8)
    compare(x, tile, "element (r, c) of x lies at r · stride_xr + c · stride_xc, and goes to c · stride_or + r · stride_oc of out", suspects={
        "out holds the elements in x's order: store element (r, c) at c · stride_or + r · stride_oc": x.reshape(8, 2),
    }, written={
        "the output's strides are swapped: element (r, c) goes to row c and column r of out, at c · stride_or + r · stride_oc": (
            _where_written((16,), (slice(0, 10),)).view(8, 2)),
        "rows and cols are swapped in the mask: offs_r < rows and offs_c < cols": _where_written((8, 2), (slice(0, 2),)),
    })  # fmt: skip

    x = count.view(6, 16)
    starts = "tile (i, j) starts at row i · BLOCK_R and column j · BLOCK_C, i and j being program_id(0) and program_id(1)"
    every = slice(None)
    compare(x, tile, f"an offset is wrong: {starts}, and 3 · 2 tiles fill the matrix exactly", written={
        f"every program works on the first tile: {starts}": _where_written((16, 6), (slice(0, 8), slice(0, 2))),
        "only the first BLOCK_R rows of x are copied: offs_r starts at program_id(0) · BLOCK_R": (
            _where_written((16, 6), (every, slice(0, 2)))),
        "only the first BLOCK_C columns of x are copied: offs_c starts at program_id(1) · BLOCK_C": (
            _where_written((16, 6), (slice(0, 8), every))),
        "the program ids are swapped: program_id(0) counts blocks of rows, program_id(1) blocks of columns": (
            _where_written((16, 6), (every, slice(0, 4)))),
        "program_id(0) is used for both axes: blocks of columns are counted by program_id(1)": (
            _where_written((16, 6), (slice(0, 8), slice(0, 2)), (slice(8, 16), slice(2, 4)))),
        "the program ids are not multiplied by the block: tile (i, j) starts at row i · BLOCK_R and column j · BLOCK_C": (
            _where_written((16, 6), (slice(0, 9), slice(0, 4)))),
        "BLOCK_R is used for the columns: offs_c starts at program_id(1) · BLOCK_C": _where_written((16, 6), (slice(0, 10), every)),
    })  # fmt: skip

    both = "belongs in both masks, joined by &, in brackets (& binds closer than <)"
    compare(count[:24].view(3, 8), tile, f"runs past x's last row: (offs_r < rows) {both}")
    compare(count[:10].view(2, 5), tile, f"runs past x's last column: (offs_c < cols) {both}")

    x = count[:15].view(3, 5)
    contiguous_x = "x is read as if it were contiguous: its steps are stride_xr and stride_xc"
    contiguous_out = "out is written as if it were contiguous: its steps are stride_or and stride_oc"
    compare(x, tile, contiguous_x, x_lies=PADDED)
    compare(x, tile, "x may be any view: its steps are stride_xr and stride_xc", x_lies=COLUMN_MAJOR, suspects={
        contiguous_x: x.T.reshape(3, 5).T,
    })  # fmt: skip
    compare(x, tile, contiguous_out, out_lies=PADDED)
    compare(x, tile, "out may be any view: its steps are stride_or and stride_oc", out_lies=COLUMN_MAJOR, suspects={
        contiguous_out: x.T.reshape(3, 5).T,
    })  # fmt: skip

    for dtype in _dtypes():
        large = {torch.float32: ((3, 300), (16, 128)), torch.float16: ((300, 3), (128, 16)), torch.bfloat16: ((40, 9), (16, 16))}
        cases = (((1, 1), (16, 16)), ((15, 17), (16, 16)), ((16, 16), (16, 16)), large[dtype])
        for (rows, cols), block in cases:
            x = (100 * torch.randn(rows, cols, generator=fresh())).to(dtype)
            compare(x, block, OTHERS, x_lies=PADDED, out_lies=PADDED, values=False)
    x = torch.randn(33, 18, generator=fresh())
    compare(x, (16, 16), OTHERS, x_lies=COLUMN_MAJOR, out_lies=COLUMN_MAJOR, values=False)


def grade_softmax_kernel(kernel) -> None:
    def compare(x, BLOCK, otherwise, *, on="", suspects=None, written=None, stride_x=None, stride_out=None, values=True) -> None:
        rows, cols = x.shape
        stride_x, stride_out = stride_x or cols, stride_out or cols
        on = f"{on or f'x of shape {(rows, cols)}'}, BLOCK = {BLOCK}"
        on += "" if stride_x == stride_out == cols else f", stride_x = {stride_x}, stride_out = {stride_out}"
        on += "" if x.dtype == torch.float32 else f", {dtype_name(x.dtype)}"
        args: list[Buffer | int] = [input_buffer("x_ptr", x, (stride_x, 1)), output_buffer("out_ptr", x.shape, x.dtype, (stride_out, 1))]
        out = _launch(kernel, (rows,), [*args, cols, stride_x, stride_out], on=on, otherwise=otherwise, written=written, BLOCK=BLOCK)
        # fp16 and bf16: one rounding, at the store, is all that may differ.
        rtol, atol = {torch.float32: (1e-4, 1e-7), torch.float16: (1.05 * 2**-11, 4e-8), torch.bfloat16: (1.05 * 2**-8, 1e-7)}[x.dtype]
        expect(out, torch.softmax(x.double(), dim=1), on=on, otherwise=otherwise, suspects=suspects, rtol=rtol, atol=atol, values=values)

    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    p = torch.exp(x - 4)
    compare(x, 4, "y = exp(x − m) / Σ exp(x − m), m being the row's maximum", on="x = [1, 2, 3, 4]", suspects={
        "exp(x − m) is not divided by its sum": p,
        "exp(x) is not divided by its sum": torch.exp(x),
        "that is the logarithm of the softmax": torch.log_softmax(x, 1),
        "the base is 2: tl.exp2(x) is 2 to the power x": torch.softmax(x * math.log(2), 1),
        "x is divided by its sum, without exp": x / x.sum(),
        "x is copied": x,
    })  # fmt: skip
    compare(torch.tensor([[1.0, 2.0, 3.0, 4.0], [4.0, 0.0, 0.0, 1.0]]), 4, "program i takes row i, at i · stride_x in x and i · stride_out in out", suspects={
        "every program reads row 0: row i of x starts at i · stride_x": torch.softmax(x, 1).expand(2, 4),
    }, written={
        "only row 0 is written: row i of out starts at i · stride_out, and in every row the mask counts its lanes from 0": _where_written(
            (2, 4), (slice(0, 1),)
        ),
        "row i starts at element i, where it should start at i · stride_out": _where_written((8,), (slice(0, 5),)).view(2, 4),
    })  # fmt: skip
    overflow = "exp overflows: subtract the row's maximum before exp"
    compare(torch.full((1, 4), 1000.0), 4, overflow, on="x = [1000, 1000, 1000, 1000]")

    ragged = "runs past the row's end: offs < cols is the mask of the load and of the store"
    x = torch.tensor([[-1.0, -2.0, -3.0]])
    p, p_safe = torch.exp(x), torch.exp(x + 1)
    compare(x, 4, ragged, on="x = [−1, −2, −3]", suspects={
        "the lanes past the row's end count in the sum: load them as −inf (other=), whose exp is 0": p / (p.sum() + 1),
        "the lanes past the row's end add exp(0) = 1 to the sum: they must be −inf before exp, or 0 after it": p_safe / (p_safe.sum() + 1),
    })  # fmt: skip
    compare(torch.tensor([[-200.0, -201.0, -202.0]]), 4, on="x = [−200, −201, −202]", otherwise=(
        "the lanes past the row's end give the maximum: load them as −inf (other=), which is never the maximum"))  # fmt: skip
    compare(torch.full((1, 3), -1e30), 4, on="x = [−1e30, −1e30, −1e30]", otherwise=(
        "the lanes past the row's end give the maximum: a finite other= is larger than some row, −inf never is"))  # fmt: skip

    x = torch.tensor([[1.0, 2.0, 4.0], [0.0, 0.0, 1.0], [3.0, 1.0, 1.0]])
    rows = "row i starts at i · stride_x in x and at i · stride_out in out, however many columns or lanes there are"
    compare(x, 4, rows, stride_x=8)
    compare(x, 4, rows, stride_out=7)

    half = 3 * torch.randn(2, 64, generator=torch.Generator().manual_seed(0)).to(torch.float16)
    compare(half, 64, "computed in half precision: convert x to tl.float32 right after the load, and round only at the store", values=False)
    for dtype in _dtypes():
        for cols, BLOCK in ((1, 4), (15, 64), (16, 64), (17, 64), (100, 128)):  # more columns would make a loop over them take its time
            if (dtype != torch.float32 and BLOCK == 4) or (dtype == torch.bfloat16 and BLOCK == 128):
                continue
            factor, shift = torch.tensor([[1.0], [3.0], [1e3]]), torch.tensor([[0.0], [-1e4], [1e4]])  # one distribution a row
            x = (factor * torch.randn(3, cols, generator=fresh()) + shift).to(dtype)
            compare(x, BLOCK, OTHERS, stride_x=cols + 3, stride_out=cols + 2, values=False)


EXERCISES = (
    Exercise(
        "2.1", "contiguous_strides", "Find the strides of a row-major tensor.", grade_contiguous_strides,
        ("How many elements lie between x[0, 0] and x[1, 0] in a (2, 3) tensor? And between x[0, 0] and x[0, 1]?",
         "Walk over the shape from its end with a running product that starts at 1: note it down, then multiply it by the size."),
        layout.contiguous_strides,
        "The last index runs fastest, so its stride is 1; a step in an earlier one skips everything that the later ones span, the product "
        "of their sizes. A size of 0 counts as 1, as in PyTorch; such a tensor has no element to reach.",
    ),
    Exercise(
        "2.2", "flat_offset", "Find where an element lies: its offset from the tensor's first element.", grade_flat_offset,
        ("One step in index i moves stride[i] elements. How far do index[i] steps move, and all the indices together?",
         "sum(i * stride for i, stride in zip(index, strides)); nothing else about the tensor is needed, not even its shape."),
        layout.flat_offset,
        "Each index moves by its own stride, whatever the others do. That is why a transpose only swaps strides, an expand only sets one "
        "to 0, and a kernel that is given the strides works on every view.",
    ),
    Exercise(
        "2.3", "add_kernel", "Write the first kernel: out = x + y, one block a program.", grade_add_kernel,
        ("Which elements belong to program i? Build their offsets from tl.program_id(0), BLOCK and tl.arange(0, BLOCK).",
         "offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK) and mask = offs < n; the two loads and the store all take mask=mask."),
        layout.add_kernel,
        "One vector of offsets serves x, y and out, and one mask keeps the last program inside all three. The offsets are int64 because a "
        "tensor may have more than 2³¹ elements; the sum is in float32 because the interpreter cannot add bf16.",
    ),
    Exercise(
        "2.4", "transpose_kernel", "Write a transposing copy that is told every stride.", grade_transpose_kernel,
        ("offs_r[:, None] and offs_c[None, :] broadcast to a (BLOCK_R, BLOCK_C) tile of offsets: once with x's strides, once with out's.",
         "Load from x_ptr + offs_r[:, None] * stride_xr + offs_c[None, :] * stride_xc; element (r, c) goes to row c and column r of out. "
         "The mask (offs_r[:, None] < rows) & (offs_c[None, :] < cols) serves both."),
        layout.transpose_kernel,
        "The tile in registers is never rearranged: only the addresses differ, and the strides carry the whole transpose. So the load and "
        "the store share one mask, in x's terms, and padded rows, transposed views and storage offsets need no case of their own.",
    ),
    Exercise(
        "2.5", "softmax_kernel", "Write softmax with one read and one write an element: one row a program.", grade_softmax_kernel,
        ("The three passes of chapter 1 over a row that stays in registers: tl.max, tl.exp, tl.sum. What must the lanes past the row's end "
         "hold, so that they change neither the maximum nor the sum?",
         'tl.load(x_ptr + row * stride_x + offs, mask=offs < cols, other=-float("inf")).to(tl.float32): −inf is never the maximum, and its '
         "exp is 0."),
        layout.softmax_kernel,
        "Memory is touched twice an element, where three separate passes read it three times. −inf in the lanes past the row's end is the "
        "neutral element of both reductions, the maximum and the sum of exp. float32 inside, whatever the dtype outside.",
    ),
)  # fmt: skip
