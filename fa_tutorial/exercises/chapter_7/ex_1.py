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
PLAIN = "bhsd", "bhsd"  # how o and do lie in memory
MISTAKES = {
    f"the sum runs over the rows: sum each row along D, axis 1: {RULE}": ("axis=1", "axis=0"),
    f"o is multiplied by itself: {RULE}": (DO, O),
    "every program loads the first rows of o and do: they begin at start_m": [
        (O, "load_tile(o, b, h, 0,"), (DO, "load_tile(do, b, h, 0,")],
    "every program stores to the first block of rows: a program's rows begin at start_m, in delta too": ("offs_m = start_m + ", "offs_m = "),
    f"every batch stores to the rows of batch 0: {PLACE}": (AT, "h * S_q + offs_m"),
    "delta is rounded to fp16: it is float32, for every dtype": ("axis=1)", "axis=1).to(tl.float16)"),
}  # fmt: skip


def truth(o, do, blocks, layouts):
    return (o.double() * do.double()).sum(-1)


def launch(o, do, blocks, layouts):
    (B, H, S, D), (block_m, block_d) = o.shape, blocks
    o, do = (In(x, strides_of(x.shape, layout, 3 * (layout != "bhsd")), as_heads=True) for x, layout in zip((o, do), layouts, strict=True))
    args = (o, do, Out((B, H, S), torch.float32), H, S, D)
    return Launch((triton.cdiv(S, block_m) * B * H,), args, {"BLOCK_M": block_m, "BLOCK_D": block_d})


def tolerance(args, part):
    return 0.0, 1e-6 * float((args[0].double() * args[1].double()).abs().sum(-1).max())


def inputs():
    seed, draw = torch.Generator().manual_seed(0), generator()

    def whole(B, H, S, D, on, otherwise="", edge=""):
        """Whole numbers from −4 to 4: sums of their products are exact."""
        o, do = (torch.randint(-4, 5, (B, H, S, D), generator=seed).float() for _ in range(2))
        return case(o, do, (16, 16), PLAIN, on=on, otherwise=otherwise, edge=edge)

    yield whole(1, 1, 16, 16, "one head, S_q = D = 16, one tile")
    yield whole(1, 1, 32, 16, "S_q = 32, two programs", "a program's rows begin at start_m, in o, do and delta")
    pair = f"a program's number gives a block of rows and a batch_head, b · H + h, each pair once, and {PLACE}"
    yield whole(2, 2, 32, 16, "B = H = 2, S_q = 32", pair)
    yield whole(1, 1, 16, 12, "D = 12, BLOCK_D = 16", "load_tile takes D and BLOCK_D, and puts zeros past D")
    past = "give load_tile S_q, mask the store by offs_m < S_q, and count tl.cdiv(S_q, BLOCK_M) row blocks to a head"
    yield whole(1, 2, 20, 16, "H = 2, S_q = 20, BLOCK_M = 16", f"{past}; {PLACE}", edge="ragged")
    o, do = torch.zeros(1, 1, 16, 16).half(), torch.ones(1, 1, 16, 16).half()
    o[..., :4], do[..., :4] = torch.tensor([256, -256, 64, 1]), torch.tensor([256, 256, 32, 1])
    half = "products and sums are float32: fp16 ends at 65504 and has no 2049, so convert o and do before you multiply"
    yield case(o, do, (16, 16), PLAIN, on="fp16, every row of do ∘ o is 65536, −65536, 2048, 1, 0, …", otherwise=half, edge="half")
    o, do = (torch.randn(1, 1, 16, 16, generator=draw) for _ in range(2))
    digits = "products and sums keep float32's digits"
    yield case(o, do, (16, 16), PLAIN, on="float32, one tile of random numbers", otherwise=digits, fresh=True)
    strided = "o and do have strides of their own: load_tile takes them from each Heads"
    dtypes = (torch.float16, torch.bfloat16) if hardware.device().type == "cuda" else (torch.float16,)  # the interpreter's bf16 is wrong
    for dtype in (torch.float32, *dtypes):
        o, do = (3 * torch.randn((1, 2, 33, 40), generator=draw).to(dtype) for _ in range(2))
        on = f"{str(dtype).removeprefix('torch.')}, o and do views of shape (1, 2, 33, 40)"
        edge = "ragged" if dtype == torch.float32 else "half"
        yield case(o, do, (16, 64), ("bshd", "bhds"), on=on, otherwise=strided, fresh=True, edge=edge)


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
