"""Exercise 3.4, scores_values_kernel."""

import math

import torch

from fa_tutorial import hardware
from fa_tutorial.exercises.chapter_3.ex_2 import LAYOUTS
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.harness_kernel import In, Launch, Out
from fa_tutorial.exercises.inputs import gather, generator, laid_out
from fa_tutorial.exercises.running import UNWRITTEN
from fa_tutorial.matmul import round_to_tf32

triton = hardware.require_triton("Exercise 3.4")
import triton.language as tl  # noqa: E402


@triton.jit
def scores_values_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, S_q, S_k, D, scale,
    stride_qs, stride_qd, stride_ks, stride_kd, stride_vs, stride_vd, stride_os, stride_od,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """o = scale · (q kᵀ) v for one head. q, o: (S_q, D); k, v: (S_k, D). BLOCK_D ≥ D.

    Grid: (ceil(S_q / BLOCK_M),).
    """
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)  # [BLOCK_M]
    offs_d = tl.arange(0, BLOCK_D)  # [BLOCK_D]
    mask_q = (offs_m[:, None] < S_q) & (offs_d[None, :] < D)  # of o, too
    q_ptrs = q_ptr + offs_m[:, None] * stride_qs + offs_d[None, :] * stride_qd
    q = tl.load(q_ptrs, mask=mask_q, other=0.0)  # [BLOCK_M, BLOCK_D]
    acc = tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)
    for start in range(0, S_k, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)  # [BLOCK_N]
        k_t_ptrs = k_ptr + offs_d[:, None] * stride_kd + offs_n[None, :] * stride_ks
        mask_k_t = (offs_d[:, None] < D) & (offs_n[None, :] < S_k)
        k_t = tl.load(k_t_ptrs, mask=mask_k_t, other=0.0)  # [BLOCK_D, BLOCK_N]
        s = scale * tl.dot(q, k_t, input_precision="ieee")  # [BLOCK_M, BLOCK_N]
        v_ptrs = v_ptr + offs_n[:, None] * stride_vs + offs_d[None, :] * stride_vd
        mask_v = (offs_n[:, None] < S_k) & (offs_d[None, :] < D)
        v = tl.load(v_ptrs, mask=mask_v, other=0.0)  # [BLOCK_N, BLOCK_D]
        acc = tl.dot(s.to(v.dtype), v, acc, input_precision="ieee")  # [BLOCK_M, BLOCK_D]
    o_ptrs = o_ptr + offs_m[:, None] * stride_os + offs_d[None, :] * stride_od
    tl.store(o_ptrs, acc.to(o_ptr.dtype.element_ty), mask=mask_q)


_OWN = "each tensor has its own two strides"
_STEP = "a step takes BLOCK_N keys, and the next step starts BLOCK_N keys further on"
MISTAKES = {
    "k_straight": "q is multiplied by k, not by kᵀ: element (d, n) of kᵀ is element (n, d) of k",
    "s_transposed": "s is transposed before it meets v: acc adds s @ v",
    "v_transposed": "v is read transposed: row n of v's tile is key n",
    "k_for_v": "s is multiplied by k again: the second product takes v",
    "v_for_k": "q meets v: the first product takes kᵀ",
    "scores_alone": "the tile of scores is stored: multiply it by v's tile",
    "elements": "s and v are multiplied element by element: the second product is a tl.dot too",
    "no_scale": "scale is missing: s = scale · q kᵀ",
    "scale_own": "the scale is computed in the kernel as 1/√D: it is an argument",
    "scale_twice": "scale is applied twice",
    "scale_again": "acc is scaled again in every step: multiply s by scale, or acc once, after the loop",
    **{f"{x}_swapped": f"{x}'s strides are swapped: stride_{x}s leads to the next row of {x}, stride_{x}d to the next column" for x in "qkvo"},
    "overwrites": "each block of keys overwrites the one before: add its product to acc",
    "twice": "acc is added twice in each step: tl.dot(s, v, acc) has added it already, so acc = tl.dot(s, v, acc), not +=",
    "first_keys": "only the first block of keys is used: the loop runs to S_k",
    "one_early": "the last block of keys is left out: the loop runs to S_k",
    "still": "every step reads the first block of keys again: offs_n starts at the step's first key",
    "v_still": "every step reads the first block of v again: its rows are offs_n, too",
    "first_rows": "only the first block of rows is computed: offs_m starts at tl.program_id(0) · BLOCK_M",
    "first_q": "every program loads the first rows of q: offs_m is in q's pointers, too",
    "step_m": f"some keys count twice: {_STEP}",
    "skip_m": f"some keys are left out: {_STEP}",
    **{f"{x}_by_{y}": f"{x} is {'stored' if x == 'o' else 'read'} with the strides of {y}: {_OWN}" for x in "kvo" for y in "qkv" if x != y},
    "keys_dropped": "the ragged last block of keys is left out: the loop runs to S_k",
    "rows_dropped": "the ragged last rows are never stored",
    "no_other": "elements that a mask leaves out hold anything without other=0.0, NaN too, and 0 · NaN is NaN: they must add nothing to the sums",
    "half": "acc is rounded to fp16 at every step, and 2048 + 1 is 2048 there: keep acc in float32",
    "tf32": 'fp32 is rounded to TF32, as tl.dot does by default: pass input_precision="ieee" to both products',
    "in_loop": "without keys the loop takes no step, and o is 0 all the same: tl.store comes after the loop",
}  # fmt: skip

CONDITIONS = {
    "ragged": "S_q and S_k need not be multiples of the blocks, and D may be smaller than BLOCK_D",
    "precision": "acc is float32, fp32 is multiplied in IEEE precision, q, k and v keep their dtype in the products, and s is rounded to v's",
    "empty": "S_k may be 0: then o is 0",
}


def twin(q, k, v, blocks, strides, scale, mistake=None):
    (S_q, D), S_k, (block_m, block_n, block_d) = q.shape, len(k), blocks
    lies = dict(zip("qkvo", strides, strict=True))
    memory = {name: laid_out(x, lies[name]) for name, x in zip("qkvo", (q, k, v, torch.zeros(S_q, D)), strict=True)}
    memory["o"].fill_(UNWRITTEN)
    x, _, flaw = (mistake or "").partition("_")
    used = lies | ({x: lies[x][::-1]} if flaw == "swapped" else {x: lies[flaw[3:]]} if flaw[:3] == "by_" else {})
    scale = {"no_scale": 1.0, "scale_own": D**-0.5, "scale_twice": scale**2}.get(mistake, scale)
    other = math.nan if mistake == "no_other" else 0.0
    starts = range(0, S_k, block_m if mistake in ("step_m", "skip_m") else block_n)
    starts = {"first_keys": starts[:1], "one_early": starts[:-1], "keys_dropped": starts[: S_k // block_n]}.get(mistake, starts)
    if (mistake == "step_m" and block_m > block_n) or (mistake == "skip_m" and block_m < block_n):
        starts = range(0, S_k, block_n)  # only the other of the two shows here
    d = torch.arange(block_d)[None, :]

    def read(name, rows):
        rows = rows[:, None]
        tile = gather(memory[name], rows * used[name][0] + d * used[name][1], (rows < (S_q if name == "q" else S_k)) & (d < D), other)
        return round_to_tf32(tile.float()).double() if mistake == "tf32" and q.dtype == torch.float32 else tile

    for pid in range(-(-S_q // block_m)):
        if mistake == "rows_dropped" and (pid + 1) * block_m > S_q:
            continue
        m = (0 if mistake == "first_rows" else pid) * block_m + torch.arange(block_m)
        q_tile = read("q", torch.arange(block_m) if mistake == "first_q" else m)
        acc = torch.zeros(block_m, block_d, dtype=torch.float64)
        for start in starts:
            n = (0 if mistake == "still" else start) + torch.arange(block_n)
            keys = read("v" if mistake == "v_for_k" else "k", n)
            values = read("k" if mistake == "k_for_v" else "v", n - start if mistake == "v_still" else n)
            s = scale * (q_tile @ (keys if mistake == "k_straight" else keys.T))
            s = round_to_tf32(s.float()).double() if mistake == "tf32" and q.dtype == torch.float32 else s
            step = {"s_transposed": lambda s, v: s.T @ v, "v_transposed": lambda s, v: s @ v.T, "scores_alone": lambda s, v: s,
                    "elements": lambda s, v: s * v}.get(mistake, torch.matmul)(s, values)  # fmt: skip
            acc = {"overwrites": 0, "twice": 2, "scale_again": scale}.get(mistake, 1) * acc + step
            acc = acc.half().double() if mistake == "half" and q.dtype == torch.float16 else acc
        inside = (m[:, None] < S_q) & (d < D)
        if not (mistake == "in_loop" and not len(starts)):
            memory["o"][(m[:, None] * used["o"][0] + d * used["o"][1])[inside]] = acc[inside]
    return memory["o"].as_strided((S_q, D), lies["o"])


def launch(q, k, v, blocks, strides, scale):
    (S_q, D), S_k = q.shape, len(k)
    tensors = (*map(In, (q, k, v), strides), Out((S_q, D), q.dtype, strides[3]))
    args = (*tensors, S_q, S_k, D, scale, *(step for pair in strides for step in pair))
    return Launch((-(-S_q // blocks[0]),), args, dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_D"), blocks, strict=True)))


def tolerance(args, part):
    """Whole numbers are exact. Else sums cost a few float32 units of Σ|q·k·v|; a half rounds s, and o, by one of its own units."""
    q, k, v, *_, scale = args
    if all((x == x.round()).all() for x in (q, k, v)):
        return 1e-6, 0.0
    size = float((abs(scale) * q.abs().double() @ k.abs().double().T @ v.abs().double()).max())
    return torch.finfo(q.dtype).eps, (2e-6 + (torch.finfo(q.dtype).eps if q.dtype != torch.float32 else 0.0)) * size


def inputs():
    def attention(q, k, v, on, otherwise="", blocks=(16, 16, 16), layouts=("rows",) * 4, scale=1.0, **options):
        strides = tuple(LAYOUTS[layout](*x.shape) for layout, x in zip(layouts, (q, k, v, q), strict=True))
        return case(q, k, v, blocks, strides, scale, on=on, otherwise=otherwise, **options)

    def digits(S_q, S_k, D, on, otherwise="", **options):
        """Whole numbers from 1 to 5: their products are exact in every dtype, and never 0."""
        draw = torch.Generator().manual_seed(S_q + S_k + D)
        return attention(*(torch.randint(1, 6, (S, D), generator=draw).float() for S in (S_q, S_k, S_k)), on, otherwise, **options)

    fits = "an offset is wrong, not a mask, for only whole blocks are here"
    yield digits(16, 16, 16, "S_q = S_k = D = 16, one tile of each", "s is q kᵀ, and o is s v", stray=fits)
    yield digits(16, 16, 16, "S_q = S_k = D = 16, scale = 0.5", "s = scale · q kᵀ", scale=0.5, stray=fits)
    both = "each pointer needs both of its strides"
    yield digits(16, 16, 16, "S_q = S_k = D = 16, all column-major", both, layouts=("columns",) * 4, stray=fits)
    three = "S_q = 16, S_k = 48, scale = 0.5, three blocks of keys"
    yield digits(16, 48, 16, three, "o adds the products of all blocks of keys", scale=0.5, stray=fits)
    rows = "a program's rows start at tl.program_id(0) · BLOCK_M, in q and in o"
    yield digits(32, 16, 16, "S_q = 32, S_k = 16, two programs", rows, stray=fits)
    for m, n in ((16, 32), (32, 16)):
        which = "q and o have BLOCK_M rows in a tile, k and v BLOCK_N"
        yield digits(32, 64, 16, f"S_q = 32, S_k = 64, BLOCK_M = {m}, BLOCK_N = {n}", which, blocks=(m, n, 16), stray=fits)
    for x in "qkvo":
        layouts = tuple("columns" if name == x else "rows" for name in "qkvo")
        yield digits(16, 16, 16, f"S_q = S_k = D = 16, {x} column-major, the others row-major", _OWN, layouts=layouts, stray=fits)
    past = "mask rows of q and o by S_q, keys by S_k and columns by D, in every load and in the store"
    yield digits(16, 20, 16, "S_k = 20, BLOCK_N = 16", past, edge="ragged", stray=past)
    yield digits(20, 16, 16, "S_q = 20, BLOCK_M = 16", past, edge="ragged", stray=past)
    yield digits(16, 16, 12, "D = 12, BLOCK_D = 16", past, edge="ragged", stray=past)
    ones = torch.zeros(16, 16, dtype=torch.float16)
    ones[:, 0] = 1
    v = torch.zeros(48, 16, dtype=torch.float16)
    v[0], v[16], v[32] = 2048, 1, 1
    on = "fp16, all scores 1, rows of v 2048, 1 and 1 in three blocks"
    yield attention(ones, ones[:1].expand(48, 16), v, on, MISTAKES["half"], edge="precision")
    one, on = torch.eye(16), "fp32, q is 4097 times the identity, k and v are the identity"
    yield attention(4097 * one, one, one, on, MISTAKES["tf32"], edge="precision")
    draw = generator()
    fresh = [((32, 48, 16), torch.float32, (16, 16, 16), "precision"), ((32, 32, 32), torch.float16, (16, 32, 32), "precision"),
             ((33, 17, 13), torch.float32, (32, 16, 16), "ragged")]  # fmt: skip
    if hardware.device().type == "cuda":  # the interpreter's bf16 is wrong
        fresh.append(((32, 48, 16), torch.bfloat16, (16, 16, 16), "precision"))
    for (S_q, S_k, D), dtype, blocks, edge in fresh:
        q, k, v = (torch.randn(S, D, generator=draw).to(dtype) for S in (S_q, S_k, S_k))
        on = f"{str(dtype).removeprefix('torch.')}, S_q = {S_q}, S_k = {S_k}, D = {D}, blocks {' × '.join(map(str, blocks))}"
        yield attention(q, k, v, on, blocks=blocks, layouts=("padded", "columns", "spaced", "rows"), scale=0.3, fresh=True, edge=edge)
    yield attention(torch.ones(16, 16), torch.ones(0, 16), torch.ones(0, 16), "S_q = 16, S_k = 0", "without keys o is 0", edge="empty")


EXERCISE = Exercise(
    id="3.4",
    task="Write the kernel that computes o = scale · (q kᵀ) v for one head and keeps s on the chip.",
    conditions=CONDITIONS,
    hints=(
        "Compare it with 3.2. There is no tile_n, because a program owns whole rows of o. The loop runs over keys, not over D: "
        "q's tile is loaded once, before the loop, and both k's tile and v's tile are loaded inside.",
        "kᵀ costs nothing: offs_d[:, None] * stride_kd + offs_n[None, :] * stride_ks gives pointers of shape [BLOCK_D, BLOCK_N]. "
        "tl.trans(k) of a tile [BLOCK_N, BLOCK_D] works as well.",
        "In the loop: offs_n = start + tl.arange(0, BLOCK_N), so that nothing has to be advanced. Mask offs_n < S_k and offs_d < D in both loads.",
        's = scale * tl.dot(q, k_t, input_precision="ieee"), then acc = tl.dot(s.to(v.dtype), v, acc, input_precision="ieee"). Store acc after the loop.',
    ),
    solution=scores_values_kernel,
    reasoning="A program keeps BLOCK_M rows of q and of acc, and the loop streams blocks of k and v past them. s lives for one iteration, in registers. "
    "Zeros beyond D add nothing to s. A key beyond S_k was loaded as 0, so its score is 0, and 0 · v adds nothing to acc either: as long as "
    "there is no softmax, zeros are enough.",
    more="You can also leave scale out of the loop and multiply acc by it once, at the end. The package's version, matmul.scores_values_kernel, has int64 "
    "offsets, because a tensor may have more than 2³¹ elements.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    tolerance=tolerance,
    launch=launch,
    widened="a tl.dot gets float32 tiles from 16-bit inputs, which takes it off the tensor cores: round s to v's dtype, and leave q, k and v as they are",
    overlap="a row of o is written by more than one program: program pid computes rows pid · BLOCK_M … (pid + 1) · BLOCK_M − 1",
)  # fmt: skip
