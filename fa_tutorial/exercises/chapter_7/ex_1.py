"""Exercise 7.1, delta_kernel."""

import torch

from fa_tutorial import hardware
from fa_tutorial.exercises.harness import UNWRITTEN, Exercise, case, generator, laid_out
from fa_tutorial.exercises.harness_kernel import In, Launch, Out
from fa_tutorial.exercises.strided import BHDS, BSHD, UNLIKE, read_mistakes, reread, stride_mistakes, strides_in

triton = hardware.require_triton("Exercise 7.1")
import triton.language as tl  # noqa: E402


@triton.jit
def delta_kernel(
    o_ptr, do_ptr, delta_ptr, H, S_q, D,
    stride_ob, stride_oh, stride_os, stride_od, stride_dob, stride_doh, stride_dos, stride_dod,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """delta = rowsum(do ∘ o). o, do: (B, H, S_q, D); delta: (B, H, S_q) float32, contiguous.

    Grid: (ceil(S_q / BLOCK_M) · B · H,).
    """
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    row_block, batch_head = tl.program_id(0) % row_blocks, tl.program_id(0) // row_blocks
    b, h = batch_head // H, batch_head % H
    offs_m = row_block * BLOCK_M + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    offs_d = tl.arange(0, BLOCK_D)  # [BLOCK_D]
    mask = (offs_m[:, None] < S_q) & (offs_d[None, :] < D)  # [BLOCK_M, BLOCK_D]
    o_ptr += b * stride_ob + h * stride_oh
    do_ptr += b * stride_dob + h * stride_doh
    o_ptrs = o_ptr + offs_m[:, None] * stride_os + offs_d[None, :] * stride_od
    do_ptrs = do_ptr + offs_m[:, None] * stride_dos + offs_d[None, :] * stride_dod
    o = tl.load(o_ptrs, mask=mask, other=0.0)
    do = tl.load(do_ptrs, mask=mask, other=0.0)
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), axis=1)  # [BLOCK_M]
    tl.store(delta_ptr + batch_head * S_q + offs_m, delta, mask=offs_m < S_q)


RULE = "delta = rowsum(do ∘ o)"
PLACE = "row i of head h of batch b lies at (b · H + h) · S_q + i of delta, i < S_q"
GROUPS = ("o+do", "o", "do")
MISTAKES = {
    "columns": f"the sum runs over the rows: a row is summed along D, axis 1: {RULE}",
    "o_twice": f"o is multiplied by itself: {RULE}",
    "do_twice": f"do is multiplied by itself: {RULE}",
    "mean": f"the mean is taken: {RULE}",
    "sign": f"delta has the wrong sign: {RULE}",
    "do_alone": f"do alone is summed: {RULE}",
    "o_alone": f"o alone is summed: {RULE}",
    "largest": f"the largest product is taken: {RULE}",
    "scaled": f"delta is divided by √D: no scale belongs to {RULE}",
    **{f"first {group}": f"every program loads the first rows of {group.replace('+', ' and ')}: offs_m starts at row_block · BLOCK_M"
       for group in GROUPS},
    "first_place": "every program stores to the first block of rows: a program's rows start at row_block · BLOCK_M, in delta too",
    "delta_head_0": f"every head stores to the rows of head 0 of its batch: {PLACE}",
    "delta_batch_0": f"every batch stores to the rows of batch 0: {PLACE}",
    "delta_exchanged": f"batch and head are exchanged in delta, or in both o and do: // H gives b, % H gives h; {PLACE}",
    **read_mistakes(("head_0", "batch_0"), GROUPS),
    **read_mistakes(("exchanged",), ("o", "do")),
    "ragged": "the ragged last rows are never stored: the mask is offs_m < S_q, and a head has tl.cdiv(S_q, BLOCK_M) row blocks",
    "no_other": "without other=0.0 the lanes that a mask leaves out hold anything, NaN too, and count in the sum: columns past D must be 0",
    "half_products": "the products overflow in fp16, which ends at 65504: turn o and do to float32 before they are multiplied",
    "half_sum": "the sum is kept in fp16, in which 2048 + 1 is 2048: delta is float32",
    **stride_mistakes(("o", "do")),
    "swapped": "the strides of o and do are exchanged: each tensor has its own four strides",
}  # fmt: skip

CONDITIONS = {
    "half": "fp16 and bf16 are multiplied and summed in float32",
    "zero": "do may have strides of 0, as o.sum().backward() gives it",
}


def twin(o, do, blocks, strides, mistake=None):
    (B, H, S, D), (block_m, block_d), half = o.shape, blocks, o.dtype == torch.float16
    how, _, group = (mistake or "").partition(" ")
    how = strides[["o", "do"].index(how[11:])] if how.startswith("strides_of") else how
    tensors = {}
    for name, x, lies, other in (("o", o, *strides), ("do", do, *strides[::-1])):
        used = other if mistake == "swapped" else how if name in group.split("+") else ""
        tensors[name] = reread(laid_out(x, lies), lies, x.shape, used)
        if used == "first":
            tensors[name] = tensors[name][:, :, torch.arange(S) % block_m]
    o, do = {"o_twice": (tensors["o"],) * 2, "do_twice": (tensors["do"],) * 2}.get(mistake, (tensors["o"], tensors["do"]))
    x = o * do
    x = x.half().double() if half and mistake == "half_products" else x
    sums = {"columns": lambda: x.sum(-2), "mean": lambda: x.mean(-1), "sign": lambda: -x.sum(-1), "do_alone": lambda: do.sum(-1),
            "o_alone": lambda: o.sum(-1), "largest": lambda: x.amax(-1), "scaled": lambda: x.sum(-1) / D**0.5,
            "half_sum": lambda: x.sum(-1).half().double() if half else x.sum(-1)}.get(mistake, lambda: x.sum(-1))()  # fmt: skip
    if mistake == "no_other" and block_d > D:
        sums = sums * float("nan")
    delta = torch.full((B, H, S), UNWRITTEN, dtype=torch.float64)
    for b in range(B):
        for h in range(H):
            to = {"delta_head_0": (b, 0), "delta_batch_0": (0, h), "delta_exchanged": (h, b)}.get(mistake, (b, h))
            for at in range(0, S // block_m * block_m if mistake == "ragged" else S, block_m):
                rows = sums[b, h, at : at + block_m]
                start = 0 if mistake == "first_place" else at
                delta[to][start : start + len(rows)] = rows
    return delta


def launch(o, do, blocks, strides):
    (B, H, S, D), (block_m, block_d) = o.shape, blocks
    args = (In(o, strides[0]), In(do, strides[1]), Out((B, H, S), torch.float32), H, S, D, *strides[0], *strides[1])
    return Launch((triton.cdiv(S, block_m) * B * H,), args, {"BLOCK_M": block_m, "BLOCK_D": block_d})


def tolerance(args, part):
    return 0.0, 1e-6 * float((args[0].double() * args[1].double()).abs().sum(-1).max())


def inputs():
    seed = torch.Generator().manual_seed(0)

    def rows(o, do, on, otherwise="", blocks=(16, 16), strides=None, **options):
        return case(o, do, blocks, strides or (o.stride(), do.stride()), on=on, otherwise=otherwise, **options)

    def whole(B, H, S, D, on, otherwise, **options):
        """Whole numbers from −4 to 4: sums of their products are exact."""
        o, do = (torch.randint(-4, 5, (B, H, S, D), generator=seed).float() for _ in range(2))
        return rows(o, do, on, otherwise, **options)

    fits = "an offset is wrong, not a mask, for whole tiles fit here"
    yield whole(1, 1, 16, 16, "one head, S_q = D = 16, one tile", f"one tile gives {RULE}", stray=fits)
    yield whole(1, 1, 32, 16, "S_q = 32, two programs", "a program's rows start at row_block · BLOCK_M, in o, do and delta", stray=fits)
    own = "an offset is wrong, as where batch and head are exchanged (// H gives b, % H gives h), or where delta, which is contiguous, is stored by strides of o"
    yield whole(2, 2, 16, 16, "B = H = 2, S_q = 16", f"pid // row_blocks is b · H + h, and {PLACE}", stray=own)
    past = f"rows past S_q are loaded or stored: offs_m < S_q is in the masks of both loads and of the store, and a head has tl.cdiv(S_q, BLOCK_M) row blocks; {PLACE}"
    yield whole(1, 1, 20, 16, "S_q = 20, BLOCK_M = 16", "the last block of rows may be ragged", stray=past)
    yield whole(2, 2, 20, 16, "B = H = 2, S_q = 20, BLOCK_M = 16", f"a row of delta is left out: {PLACE}", stray=past)
    columns = "columns past D are loaded, which belong to the next row: offs_d < D is in the mask of both loads"
    yield whole(1, 1, 16, 12, "D = 12, BLOCK_D = 16", columns, stray=columns)
    shape = (2, 2, 16, 16)
    unlike = (strides_in(shape, UNLIKE[0]), strides_in(shape, UNLIKE[3]))
    yield whole(*shape, "B = H = 2, o and do laid out differently", "each tensor has its own four strides", strides=unlike)
    zero = "do has strides of 0, as o.sum().backward() gives it: read it by its own strides"
    o = torch.randint(-4, 5, (1, 2, 16, 16), generator=seed).float()
    yield rows(o, torch.ones(1, 1, 1, 1).expand(o.shape), "do = 1, expanded from one element", zero, stray=zero, edge="zero")
    o, do = torch.zeros(1, 1, 16, 16).half(), torch.ones(1, 1, 16, 16).half()
    o[..., 0], o[..., 1], do[..., :2] = 256, -256, 256
    yield rows(o, do, "fp16, every row of do ∘ o is 65536, −65536, 0, …", MISTAKES["half_products"], edge="half")
    o, do = torch.zeros_like(o), torch.ones_like(do)
    o[..., 0], o[..., 1], do[..., 0] = 64, 1, 32
    yield rows(o, do, "fp16, every row of do ∘ o is 2048, 1, 0, …", MISTAKES["half_sum"], edge="half")
    draw = generator()
    halves = (torch.float16, torch.bfloat16) if hardware.device().type == "cuda" else (torch.float16,)  # no bf16 in the interpreter
    for shape, blocks, dtype in (
        ((1, 1, 1, 1), (16, 16), None),
        ((1, 2, 33, 20), (32, 32), None),
        *(((1, 2, 15, 40), (16, 64), x) for x in halves),
    ):
        o, do = (3 * torch.randn(shape, generator=draw).to(dtype or torch.float32) for _ in range(2))
        on = f"{str(dtype or o.dtype).removeprefix('torch.')}, o and do of shape {shape}"
        yield rows(o, do, on, blocks=blocks, fresh=True, edge="half" if dtype else "")
        lies = strides_in(shape, BSHD, pad=3), strides_in(shape, BHDS, pad=3)
        yield rows(o, do, f"{on}, views", blocks=blocks, strides=lies, fresh=True, edge="half" if dtype else "")


EXERCISE = Exercise(
    id="7.1",
    task="Sum do ∘ o by rows, in float32, for strided o and do: a program takes BLOCK_M rows of one head.",
    conditions=CONDITIONS,
    hints=(
        "Exercise 5.1's tile, twice: once of o, once of do, each by its own four strides. Which axis of [BLOCK_M, BLOCK_D] is summed?",
        "delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), axis=1), [BLOCK_M]. delta is contiguous: head h of batch b starts at (b · H + h) · S_q.",
        "The loads are masked by offs_m < S_q and offs_d < D, with other=0.0; the store by offs_m < S_q.",
    ),
    solution=delta_kernel,
    reasoning="Zeros past D add nothing to the sum, and rows past S_q are not stored. Products of two fp16 numbers reach far past 65504, so both are "
    "turned to float32 first. do is read by its own strides, which are 0 after o.sum().backward(), so that one element is read again and again.",
    more="The package's version, backward.delta_kernel, subtracts the gradient of lse where it has one, and has int64 offsets.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    launch=launch,
    tolerance=tolerance,
    overlap=f"programs store to one another's rows of delta: {PLACE}",
)
