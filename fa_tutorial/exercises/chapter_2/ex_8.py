"""Exercise 2.8, offsets_kernel."""

import dis

import torch

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.harness_kernel import Launch, Out
from fa_tutorial.exercises.running import Wrong
from fa_tutorial.layout import tl, triton
from fa_tutorial.source import unwrapped


@triton.jit
def offsets_kernel(out_ptr, first, stride_r, stride_c, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    """out: where the elements of tiles first, first + 1, … of a matrix lie. Grid: (tiles,)."""
    pid = tl.program_id(0)
    offs_r = (first + pid).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)  # [BLOCK_R]
    offs_c = tl.arange(0, BLOCK_C).to(tl.int64)  # [BLOCK_C]
    offsets = offs_r[:, None] * stride_r + offs_c[None, :] * stride_c  # [BLOCK_R, BLOCK_C]
    place = (pid * BLOCK_R + tl.arange(0, BLOCK_R))[:, None] * BLOCK_C + tl.arange(0, BLOCK_C)[None, :]
    tl.store(out_ptr + place, offsets)


ROWS, COLUMNS = "(first + pid).to(tl.int64)", "tl.arange(0, BLOCK_C).to(tl.int64)"
OFFSETS = "offs_r[:, None] * stride_r + offs_c[None, :] * stride_c"
NARROW = [(ROWS, "(first + pid)"), (COLUMNS, "tl.arange(0, BLOCK_C)")]
MISTAKES = {
    "the products overflow, because both factors have 32 bits: cast a factor to tl.int64, before you multiply": NARROW,
    "the columns are still 32-bit integers: offs_c · stride_c overflows where the columns lie far apart": (
        COLUMNS, "tl.arange(0, BLOCK_C)"),
    "the rows are still 32-bit integers: offs_r · stride_r overflows": (ROWS, "(first + pid)"),
    "the casts come too late, each product has only 32 bits by then: cast a factor, before you multiply": [
        *NARROW, (OFFSETS, "(offs_r[:, None] * stride_r).to(tl.int64) + (offs_c[None, :] * stride_c).to(tl.int64)")],
    "an unsigned 32-bit integer ends at 2³²: cast to tl.int64": [
        (ROWS, "(first + pid).to(tl.uint32)"), (COLUMNS, "tl.arange(0, BLOCK_C).to(tl.uint32)")],
    "first is missing: program i takes tile first + i": ("(first + pid)", "pid"),
    "stride_c is missing: column c lies c · stride_c elements further": (OFFSETS, "offs_r[:, None] * stride_r + offs_c[None, :]"),
}  # fmt: skip


def in_integers(kernel):
    """The kernel as it is; Wrong where it names a float's type."""
    code = getattr(unwrapped(kernel), "__code__", None)
    named = {step.argval for step in (dis.get_instructions(code) if code else ())}
    for name, bits in (("float32", 24), ("float64", 53)):
        if name in named:
            raise Wrong(f"a {name} has {bits} bits for the digits, and a pointer takes only integer offsets: cast to tl.int64")
    return kernel


def truth(first, stride_r, stride_c, programs, BLOCK_R, BLOCK_C):
    rows = first * BLOCK_R + torch.arange(programs * BLOCK_R)
    return (rows[:, None] * stride_r + torch.arange(BLOCK_C)[None, :] * stride_c).double()


def launch(first, stride_r, stride_c, programs, BLOCK_R, BLOCK_C):
    out = Out((programs * BLOCK_R, BLOCK_C), torch.float64)  # holds every integer below 2⁵³
    meta = {"BLOCK_R": BLOCK_R, "BLOCK_C": BLOCK_C}
    return Launch((programs,), (out, first, stride_r, stride_c), meta)


def inputs():
    stored = "the offsets are stored in out, which holds only the tiles of these programs: leave place as it was"

    def offsets(first, strides, otherwise=""):
        on = f"first = {first:,}, strides {strides}, 2 programs, tiles of (4, 8)"
        return case(first, *strides, 2, 4, 8, on=on, otherwise=otherwise, stray=stored)

    yield offsets(1, (10, 1), "small offsets stay what they were: row · stride_r + column · stride_c")
    yield offsets(10_000, (65_536, 1), "row 40,000 of a matrix with 65,536 columns starts past 2³¹")
    yield offsets(3, (1, 2**29), "columns may lie as far apart as rows: in a transposed view they do")
    yield offsets(1_000_000, (65_537, 3), "some offsets are past 2³² and odd")
    yield offsets(1_000_000, (2**20 + 1, 2**30 + 1))
    yield offsets(600_000_000, (3, 1), "a row's number may itself pass 2³¹: cast before you multiply by BLOCK_R")


EXERCISE = Exercise(
    task="Repair a kernel whose offsets overflow.",
    hints=(
        "A product of two 32-bit integers is a 32-bit integer. Which two products can pass 2³¹? What if one factor of each had 64 bits?",
        "Cast before you multiply, and cast blocks, not arguments: (first + pid).to(tl.int64) * BLOCK_R for the rows, and tl.arange(0, BLOCK_C).to(tl.int64) for the columns.",
    ),
    solution=offsets_kernel,
    reasoning="Triton's integers have 32 bits unless you say otherwise: program numbers, tl.arange and small arguments. One 64-bit factor "
    "makes the product 64 bits wide, and the sum with it. A cast of the product comes too late.",
    more="The package's kernels cast each program number, .to(tl.int64), so that every product with it has 64 bits.",
    inputs=inputs,
    truth=truth,
    launch=launch,
    rule="the offset of an element is row · stride_r + column · stride_c, whatever its size",
    mistakes=MISTAKES,
    adapt=in_integers,
    tolerance=lambda args, part: (0.0, 0.0),
)
