import torch

from fa_tutorial import hardware
from fa_tutorial.exercises.forward_cases import strides_of
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.harness_kernel import In, Launch, Out
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.matmul import tl, triton
from fa_tutorial.tiles import load_tile


@triton.jit
def delta_kernel(o, do, delta_ptr, H, S_q, D, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):
    """delta = rowsum(do ∘ o). o, do: Heads (B, H, S_q, D); delta_ptr: (B, H, S_q) float32, contiguous.

    Grid: (ceil(S_q / BLOCK_M) · B · H,).
    """
    row_blocks = tl.cdiv(S_q, BLOCK_M)
    start_m = tl.program_id(0) % row_blocks * BLOCK_M
    batch_head = tl.program_id(0) // row_blocks
    b, h = batch_head // H, batch_head % H
    o_tile = load_tile(o, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    do_tile = load_tile(do, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    delta = tl.sum(o_tile.to(tl.float32) * do_tile.to(tl.float32), axis=1)  # [BLOCK_M]
    offs_m = start_m + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    tl.store(delta_ptr + batch_head * S_q + offs_m, delta, mask=offs_m < S_q)


RULE = "delta = rowsum(do ∘ o)"
PLACE = "row i of head h of batch b belongs at (b · H + h) · S_q + i of delta, i < S_q"
O, DO = "load_tile(o, b, h, start_m,", "load_tile(do, b, h, start_m,"
PRODUCT, AT = "o_tile.to(tl.float32) * do_tile.to(tl.float32)", "batch_head * S_q + offs_m"
MISTAKES = {
    f"the sum runs over the rows: sum each row along D, axis 1: {RULE}": ("axis=1", "axis=0"),
    f"o is multiplied by itself: {RULE}": (DO, O),
    "every program loads the first rows of o and do: they begin at start_m": [
        (O, "load_tile(o, b, h, 0,"), (DO, "load_tile(do, b, h, 0,")],
    "every program stores to the first block of rows: a program's rows begin at start_m, in delta too": ("offs_m = start_m + ", "offs_m = "),
    f"every batch stores to the rows of batch 0: {PLACE}": (AT, "h * S_q + offs_m"),
    "delta is rounded to fp16: it is float32, for every dtype": ("axis=1)", "axis=1).to(tl.float16)"),
    "batch and head are exchanged: // H gives b, % H gives h": ("batch_head // H, batch_head % H", "batch_head % H, batch_head // H"),
    "delta is divided by √D: no scale belongs into delta = rowsum(do ∘ o)": (PRODUCT, f"{PRODUCT} / tl.sqrt(D.to(tl.float32))"),
}  # fmt: skip


def truth(o, do, blocks, layouts):
    return (o.double() * do.double()).sum(-1)


def launch(o, do, blocks, layouts):
    (B, H, S, D), (block_m, block_d) = o.shape, blocks
    strides = [strides_of(o.shape, layout, 3 * (layout != "bhsd")) for layout in layouts]
    args = (In(o, strides[0], as_heads=True), In(do, strides[1], as_heads=True), Out((B, H, S), torch.float32), H, S, D)
    return Launch((triton.cdiv(S, block_m) * B * H,), args, {"BLOCK_M": block_m, "BLOCK_D": block_d})


def tolerance(args, part):
    return 0.0, 1e-6 * float((args[0].double() * args[1].double()).abs().sum(-1).max())


def inputs():
    seed = torch.Generator().manual_seed(0)

    def rows(o, do, on, otherwise="", blocks=(16, 16), layouts=("bhsd", "bhsd"), **options):
        return case(o, do, blocks, layouts, on=on, otherwise=otherwise, **options)

    def whole(B, H, S, D, on, otherwise, **options):
        """Whole numbers from −4 to 4: sums of their products are exact."""
        o, do = (torch.randint(-4, 5, (B, H, S, D), generator=seed).float() for _ in range(2))
        return rows(o, do, on, otherwise, **options)

    fits = "an offset is wrong, not a mask, because whole tiles fit here"
    yield whole(1, 1, 16, 16, "one head, S_q = D = 16, one tile", f"one tile gives {RULE}", stray=fits)
    yield whole(1, 1, 32, 16, "S_q = 32, two programs", "a program's rows begin at start_m, in o, do and delta", stray=fits)
    own = f"batch_head is b · H + h: // H gives b, % H gives h, and {PLACE}"
    yield whole(2, 2, 32, 16, "B = H = 2, S_q = 32", own, stray=f"an offset is wrong, for example with batch and head exchanged: {own}")
    yield whole(1, 1, 16, 12, "D = 12, BLOCK_D = 16", "load_tile takes D and BLOCK_D, and puts zeros past D")
    past = "rows past S_q are read or stored: give load_tile S_q, mask the store by offs_m < S_q, and count tl.cdiv(S_q, BLOCK_M) row blocks to a head"
    yield whole(1, 1, 20, 16, "S_q = 20, BLOCK_M = 16", "the last block of rows may be ragged", stray=past, edge="ragged")
    left_out = f"a row of delta is left out: {PLACE}"
    yield whole(1, 2, 20, 16, "H = 2, S_q = 20, BLOCK_M = 16", left_out, stray=f"{past}; {PLACE}", edge="ragged")
    o, do = torch.zeros(1, 1, 16, 16).half(), torch.ones(1, 1, 16, 16).half()
    o[..., 0], o[..., 1], do[..., :2] = 256, -256, 256
    products = "the products overflow in fp16, which ends at 65504: convert o and do to float32 before you multiply"
    yield rows(o, do, "fp16, every row of do ∘ o is 65536, −65536, 0, …", products, edge="half")
    o, do = torch.zeros_like(o), torch.ones_like(do)
    o[..., 0], o[..., 1], do[..., 0] = 64, 1, 32
    yield rows(o, do, "fp16, every row of do ∘ o is 2048, 1, 0, …", "the sum is kept in float32: fp16 has no 2049", edge="half")
    draw = generator()
    o, do = (torch.randn(1, 1, 16, 16, generator=draw) for _ in range(2))
    yield rows(o, do, "float32, one tile of random numbers", "products and sums keep float32's digits", fresh=True)
    cases = [((1, 2, 32, 20), (16, 32), torch.float32, ""), ((1, 1, 1, 1), (16, 16), torch.float32, "ragged"),
             ((1, 2, 33, 20), (32, 32), torch.float32, "ragged"), ((1, 2, 15, 40), (16, 64), torch.float16, "half")]  # fmt: skip
    if hardware.device().type == "cuda":  # the interpreter's bf16 is wrong
        cases.append(((1, 2, 15, 40), (16, 64), torch.bfloat16, "half"))
    for shape, blocks, dtype, edge in cases:
        o, do = (3 * torch.randn(shape, generator=draw).to(dtype) for _ in range(2))
        on = f"{str(dtype).removeprefix('torch.')}, o and do views of shape {shape}"
        strided = "o and do have strides of their own: load_tile takes them from each tensor's Heads"
        yield rows(o, do, on, strided, blocks=blocks, layouts=("bshd", "bhds"), fresh=True, edge=edge)


EXERCISE = Exercise(
    task="Sum do ∘ o by rows, in float32: each program takes BLOCK_M rows of one head.",
    conditions={"ragged": "S_q need not be a multiple of BLOCK_M", "half": "with fp16 and bf16, products and sums are float32"},
    hints=(
        "Load two tiles at the same place, one of o and one of do. Which axis of [BLOCK_M, BLOCK_D] do you sum?",
        "delta = tl.sum(o_tile.to(tl.float32) * do_tile.to(tl.float32), axis=1), of shape [BLOCK_M].",
        "load_tile puts zeros beyond S_q and D by itself. The store is yours: delta_ptr + batch_head * S_q + offs_m, mask=offs_m < S_q.",
    ),
    solution=delta_kernel,
    reasoning="Zeros past D add nothing to the sum, and rows past S_q are not stored. The product of two fp16 numbers can exceed 65504, "
    "so both are converted to float32 first. load_tile reads do by its own strides, which are all 0 after o.sum().backward().",
    more="The package's version, backward.delta_kernel, also subtracts the gradient of lse where there is one, and has int64 offsets.",
    inputs=inputs,
    truth=truth,
    rule=RULE,
    mistakes=MISTAKES,
    launch=launch,
    tolerance=tolerance,
    seen={"overlap": f"programs store to one another's rows of delta: {PLACE}"},
)
