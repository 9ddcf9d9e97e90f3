from edits import edit

from fa_tutorial.forward import softmax_step
from fa_tutorial.matmul import tl, triton
from fa_tutorial.tiles import load_tile


@triton.jit
def starter(x):
    raise NotImplementedError


SCORES = ("scale * dot(q_tile, tl.trans(k_tile))", "(scale * dot(q_tile, tl.trans(k_tile))).to(q_tile.dtype).to(tl.float32)")
SCALED_Q = ("    m = tl.full", "    q_tile = (q_tile * scale).to(q_tile.dtype)\n    m = tl.full")
P_IN_FLOAT32 = ("p.to(v_tile.dtype)", "p")
V_WIDENED = ("dot(p.to(v_tile.dtype), v_tile", "dot(p, v_tile.to(tl.float32)")
LOWEST = -float("inf")
NO_SCORE = tl.constexpr(-3.4028234663852886e38)
TWO_DTYPES = "both factors of a dot must have one dtype"
NO_OTHER = (("def load_tile(", "def load_anything("), (", other=0.0", ""))
LOAD_Q = "q_tile = load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)"
CARRIED = "Triton's compiler refuses it: \"Loop-carried variable"
FIRST_PASS = """    for start_n in range(0, S_k, BLOCK_N):
        k_tile = load_tile(k, b, h, start_n, S_k, D, BLOCK_N, BLOCK_D)
        s = scale * dot(q_tile, tl.trans(k_tile))
        offs_n = start_n + tl.arange(0, BLOCK_N)
        m = tl.maximum(m, tl.max(tl.where(offs_n[None, :] < S_k, s, -float("inf")), axis=1))
"""
LOOP = "    for start_n in"
STANDS = 'stands for −∞: write -float("inf"), as the exercise asks'
FULL, END = "tl.maximum(start_m + 1 + S_k - S_q, 0)", "tl.minimum(start_m + BLOCK_M, S_q) + S_k - S_q"
FIRST_LOOP = "    for start_n in range(0, full_n, BLOCK_N):\n"
SECOND_LOOP = "    for start_n in tl.range(full_n"
MASKING = """    if MASK:
        offs_n = start_n + tl.arange(0, BLOCK_N)  # [BLOCK_N]
        s = tl.where(offs_n[None, :] <= last_seen[:, None], s, -float("inf"))
"""


def m_starts_at(number):
    return '(BLOCK_M,), -float("inf")', f"(BLOCK_M,), {number}"


@triton.jit
def with_a_constant():
    return NO_SCORE


def of_row(s):
    return tl.max(s, axis=1)


@triton.jit
def with_a_global():
    return LOWEST


A_ALONE = "{'A': (q, k.mT.contiguous().mT, v, False), 'B': (q, k, v, False)}"
OF_5_8 = (  # what is changed, and what the reader is told
    ("k.mT.contiguous().mT", "k", "A's input catches none, want A; right: B, C, D, E, F"),
    ("1, 40, 1, 32", "1, 40, 1, 40", "B's input catches B, C, want B"),
    ("1, 64, 1, 32", "1, 40, 1, 32", "F's input catches B, D, F, want F"),
    ("1, 40, 1, 32", "1, 0, 1, 32", "no axis but S_k is empty"),
    ("torch.randn(1, H_q, S_q, 16)", "torch.randn(1, H_q, S_q, 16).half()", "A: an input is (q, k, v, is_causal), float32 and finite"),
    ("(q, k.mT.contiguous().mT, v, False)", "(q, k, v)", "A: an input is (q, k, v, is_causal)"),
    ("    return {", f"    return {A_ALONE}\n    {{", "B's input catches none, want B; right: A; missing: C, D, E, F"),
    ("    return {", "    return dict.fromkeys('abcdef', (q, k, v, False))\n    {", 'want a dict of inputs for "A" to "F"'),
)

WRONG_ANSWERS = (
    edit("5.1", "rows not masked", ("(offs_m[:, None] < S) & ", ""), told="rows from S on belong to the next head, or to nobody"),
    edit("5.1", "no pointer", ("x.ptr + b * x.strides[0] + h * x.strides[1]", "x"), told="write x.ptr for the pointer", gpu=None),
    edit("5.2", "q is a tile", (LOAD_Q, f"q = load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)\n    {LOAD_Q}"),
         told="keep Heads and tiles apart", gpu=None),
    edit("5.2", "batch and head exchanged", ("b, h = batch", "h, b = batch"), told="// H gives b and % H gives h", gpu="views"),
    *(edit(number, "all heads in batch entry 0", ("b, h = batch_head // H" + q, "b, h = batch_head * 0, batch_head  # //" + q), told=told, gpu="views")
      for number, q, told in (("5.2", ", ", "// H gives b"), ("5.3", ", ", "// H gives b"), ("5.4", ", ", "// H gives b"), ("5.6", ", ", "// H gives b"), ("5.7", "_q, ", "pid // row_blocks is b · H_q + h"))),
    edit("5.2", "p in float32", P_IN_FLOAT32, told=f"{TWO_DTYPES}, and these are fp32 and fp16"),
    *(edit(number, "p v by tl.dot", ("acc = dot(", "acc = tl.dot("), told="to TF32") for number in ("5.2", "5.3", "5.5")),
    edit("5.4", "q kᵀ by tl.dot", ("scale * dot(", "scale * tl.dot("), told="neither a cast nor tl.dot (TF32) rounds it"),
    edit("5.2", "row blocks forgotten", ("batch_head = tl.program_id(0) // row_blocks", "batch_head = tl.program_id(0)"),
         told="row block pid % row_blocks of q and o, of head pid // row_blocks"),
    edit("5.2", "1/√D", ("scale * dot", "0.25 * dot"), told="scale is an argument, which the caller chooses"),
    edit("5.2", "a plain helper", ("m = tl.max(s, axis=1)", "m = of_row(s)"), helpers=(of_row,), told="needs @triton.jit above it, too"),
    edit("5.2", "l and a small number", ("acc / l[:, None]", "acc / (l + 1e-6)[:, None]"), told="with nothing added to it"),
    edit("5.2", "v ends at S_q", ("load_tile(v, b, h, 0, S_k", "load_tile(v, b, h, 0, S_q"), told="k and v have S_k rows"),
    edit("5.2", "all tiles widened", ("start_m, S_q, D, BLOCK_M, BLOCK_D)  #", "start_m, S_q, D, BLOCK_M, BLOCK_D).to(tl.float32)  #"),
         ("0, S_k, D, BLOCK_N, BLOCK_D)", "0, S_k, D, BLOCK_N, BLOCK_D).to(tl.float32)", 2), told="off the tensor cores", gpu=None),
    *(edit(number, "v widened", V_WIDENED, told="off the tensor cores", gpu=None) for number in ("5.2", "5.3", "5.5")),
    *(edit(number, "scores in the inputs' dtype", SCORES, told="fp16 rounds 2049 to 2048") for number in ("5.2", "5.5")),
    *(edit(number, "sums of rounded p", ("tl.sum(p, axis=1)", "tl.sum(p.to(v_tile.dtype), axis=1)"), told="or a sum of p, is fp16", gpu=None)
      for number in ("5.2", "5.3")),
    edit("5.2", "a maximum of at least 0", ("tl.max(s, axis=1)", "tl.maximum(tl.max(s, axis=1), 0.0)"), told="scores may be large, or low"),
    edit("5.2", "a mean for the maximum", ("tl.max(s, axis=1)", "tl.sum(s, axis=1) / BLOCK_N"), told="each row subtracts its own maximum"),
    edit("5.3", "alpha upside down", ("tl.exp(m - m_new)", "tl.exp(m_new - m)"), told="an exponent that is positive or NaN"),
    edit("5.3", "divided by the last tile's l", ("alpha * l + tl.sum(p, axis=1)", "tl.sum(p, axis=1)"), told="joins m, l and acc by (4.2) and (4.3)"),
    edit("5.3", "one maximum for the tile", ("tl.max(s, axis=1)", "tl.max(s)"), told="each row subtracts its own maximum"),
    edit("5.3", "acc in fp16", ("BLOCK_D), dtype=tl.float32", "BLOCK_D), dtype=tl.float16"), ("acc = dot(p.to(v_tile.dtype), v_tile, acc * alpha[:, None])",
         "acc = dot(p.to(v_tile.dtype), v_tile, acc * alpha[:, None]).to(tl.float16)"), told="a tile in fp16, which ends at 65504"),
    edit("5.3", "m in the inputs' dtype", ("-float(\"inf\"), dtype=tl.float32", "-float(\"inf\"), dtype=q_tile.dtype"),
         ("        m = m_new", "        m = m_new.to(q_tile.dtype)"), told="fp16 rounds 2049 to 2048"),
    edit("5.3", "l in the inputs' dtype", ("        m = m_new", "        m, l = m_new, l.to(v_tile.dtype).to(tl.float32)"),
         told="m, l, alpha or a sum of p, is fp16", gpu=None),
    edit("5.3", "m is a number before the loop", ("tl.full((BLOCK_M,), -float(\"inf\"), dtype=tl.float32)", "-float(\"inf\")"), told=CARRIED),
    edit("5.3", "acc is a number before the loop", ("tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)", "0.0"),
         told="the accumulator of a dot has the product's shape"),
    edit("5.3", "l is a number before a tl.range", ("tl.zeros((BLOCK_M,), dtype=tl.float32)", "0.0"), ("in range", "in tl.range"), told=CARRIED),
    edit("5.3", "maximum by elements", ("tl.max(s, axis=1)", "s"), told="both factors of a dot must be tiles of two axes"),
    edit("5.3", "stored in every iteration", ("    store_tile(", "        store_tile("), told="a program stores each element once", gpu=None),
    *(edit(number, "a loop for m before the loop for l and acc", (LOOP, FIRST_PASS + LOOP),
           told="k is read more than once: load each tile of keys once", gpu=None) for number in ("5.3", "5.4")),
    edit("5.3", "q scaled in its own dtype", SCALED_Q, ("s = scale * dot", "s = dot"), told="multiply q and k as they are"),
    edit("5.3", "m starts at 0", m_starts_at("0.0"), told="m starts at −inf, below them all"),
    edit("5.3", "m starts at −1e30", m_starts_at("-1e30"), told=f"−1e+30 {STANDS}"),
    edit("5.3", "row blocks of BLOCK_N", ("tl.cdiv(S_q, BLOCK_M)", "tl.cdiv(S_q, BLOCK_N)"), told="a tile of q or o has BLOCK_M rows"),
    edit("5.3", "a global for −∞", m_starts_at("LOWEST"), helpers=(with_a_global,), told="Triton's compiler refuses the global LOWEST"),
    edit("5.4", "a mask times −∞", ('tl.where(offs_n[None, :] < S_k, s, -float("inf"))', 's + (offs_n[None, :] >= S_k).to(tl.float32) * -float("inf")'),
         told="an exponent that is positive or NaN"),
    edit("5.4", "m starts at −9999", m_starts_at("-9999.0"), ("acc / l[:, None]", "acc / tl.where(l == 0.0, 1.0, l)[:, None]"),
         told="one edge is left: the scores may be as low as −2³⁰"),
    edit("5.4", "a constant for −∞", ('s, -float("inf")', "s, NO_SCORE"), helpers=(with_a_constant,), told=f"−3.403e+38 {STANDS}"),
    edit("5.4", "keys not masked", ("start_n, S_k, D", "start_n, None, D", 2),
         told="keys past S_k are read", gpu="keys past S_k have the score −inf, and their rows of v are 0"),
    edit("5.4", "rows stored past the end", ("l[:, None], b, h, start_m, S_q", "l[:, None], b, h, start_m, row_blocks * BLOCK_M"),
         told="o's store_tile get S_q"),
    *(edit(number, "row blocks rounded down", ("tl.cdiv(S_q, BLOCK_M)", "S_q // BLOCK_M"), told="a head has tl.cdiv(S_q, BLOCK_M) row blocks")
      for number in ("5.4", "5.6", "5.7")),
    *(edit(number, "the row block is pid", ("tl.program_id(0) % row_blocks", "tl.program_id(0)"), told="pid % row_blocks is the row block")
      for number in ("5.2", "5.3", "5.4", "5.6", "5.7")),
    *(edit(number, "1/√D", ("scale * dot", "1.0 / tl.sqrt(D * 1.0) * dot"), told=told)
      for number, told in (("5.3", "scale is an argument"), ("5.4", "scale is an argument"), ("5.5", "the caller's scale"))),
    edit("5.4", "keys of the first tile alone", ("offs_n[None, :] < S_k", "offs_n[None, :] < BLOCK_N"), told="no key is left out"),
    edit("5.4", "k without other", *NO_OTHER, ("k_tile = load_tile", "k_tile = load_anything"), helpers=(load_tile,),
         told="columns past D must be 0 in the tiles of q and k", gpu=None),
    edit("5.4", "v without other", *NO_OTHER, ("v_tile = load_tile", "v_tile = load_anything"), helpers=(load_tile,),
         told="keys past S_k have the score −inf, and their rows of v are 0", gpu=None),
    edit("5.5", "returned in another order", ("return m, l, acc", "return acc, m, l"), told="returns something else than m [BLOCK_M]", gpu=None),
    edit("5.5", "no return", ("return m, l, acc", "m += 0"), told="returns something else than m [BLOCK_M]", gpu=None),
    edit("5.5", "masked after the maximum", (MASKING, ""), ("(4.2)\n", "(4.2)\n" + MASKING), told="the others get the score −inf"),
    edit("5.5", "no shift by 0", ('tl.where(m_new == -float("inf"), 0.0, m_new)', "m_new"), helpers=(softmax_step,),
         told="a row that has seen no key yet keeps m = −∞"),
    edit("5.5", "batch and head exchanged with a mask", (", b, h_k, start_n, rows", ", h_k if MASK else b, b if MASK else h_k, start_n, rows", 2),
         told="k and v come from head h_k of batch entry b"),
    edit("5.5", "every load is masked", ("S_k if MASK else None", "S_k"), told="pass None for S_k", gpu=None),
    edit("5.5", "no load is masked", ("S_k if MASK else None", "None"), told="the last tile may be ragged"),
    edit("5.5", "every score is compared", ("    if MASK:\n", "    if True:\n"), told="compare only under `if MASK:`", gpu=None),
    edit("5.5", "acc in the inputs' dtype", ("v_tile, acc)", "v_tile, acc).to(v_tile.dtype).to(tl.float32)"), told="fp16 ends at 65504"),
    edit("5.5", "all columns of v", ("v_tile = load_tile(v, b, h_k, start_n, rows, D,", "v_tile = load_tile(v, b, h_k, start_n, rows, BLOCK_D,"),
         told="D may be smaller than BLOCK_D"),
    edit("5.6", "calls a starter", (LOAD_Q, f"{LOAD_Q}\n    starter(q_tile)"), helpers=(starter,),
         told="starter, which it calls, still raises NotImplementedError", gpu=None),
    edit("5.6", "full_n is S_k", ("full_n, end_n = S_k // BLOCK_N * BLOCK_N, S_k", "full_n, end_n = S_k, S_k"),
         told="without IS_CAUSAL full_n is S_k // BLOCK_N · BLOCK_N", gpu="still the kernel of 5.4"),
    edit("5.6", "no mask in the second loop", ("True, BLOCK_N, BLOCK_D", "False, BLOCK_N, BLOCK_D"), told="so the loop with a mask takes it"),
    edit("5.6", "full_n is negative", (FULL, "(start_m + 1 + S_k - S_q)"), told="a key that doesn't exist is read", gpu=None),
    edit("5.6", "rounded before S_k − S_q is added", (f"{FULL} // BLOCK_N * BLOCK_N", "tl.maximum((start_m + 1) // BLOCK_N * BLOCK_N + S_k - S_q, 0)"),
         told="full_n is a multiple of BLOCK_N"),
    edit("5.6", "always causal", ("if IS_CAUSAL:", "if True:"), told="with IS_CAUSAL = False it is still the kernel of 5.4"),
    edit("5.6", "all tiles in the loop with a mask", (FIRST_LOOP, "    full_n *= 0\n" + FIRST_LOOP),
         told="tiles masked: 12 of 12, and 6 need it", gpu=None),
    edit("5.6", "the whole of S_k", (END, "S_k"), told="tiles that no row of the block sees are skipped"),
    edit("5.6", "end_n past the last row", (END, "start_m + BLOCK_M + S_k - S_q"),
         told="tiles are multiplied that no row of their block sees", gpu=None),
    *(edit(number, "l and a small number", ("tl.where(l == 0.0, 1.0, l)", "l + 1e-6"), told="with nothing added to it") for number in ("5.6", "5.7")),
    *(edit("5.7", f"key head {text}", ("h // (H_q // H_k)", text), told="query head h reads key head h // (H_q // H_k)")
      for text in ("h * 0", "h // 2")),
    edit("5.7", "the second loop reads head h", ("h_k, start_n, last_seen, S_k, D, scale,\n                           True", "h, start_n, last_seen, S_k, D, scale,\n                           True"),
         told="so both loops read key head h_k", gpu="in both loops"),
    *(edit(number, "ends as the first row block", ("tl.minimum(start_m + BLOCK_M, S_q)", "tl.minimum(BLOCK_M, S_q)"), told="causal") for number in ("5.6", "5.7")),
    edit("5.6", "tiles counted", ("range(0, full_n, BLOCK_N)", "range(0, full_n // BLOCK_N, 1)"), told="full_n, end_n and start_n count keys"),
    edit("5.7", "exp of m", ("m + tl.log(l_or_one)", "tl.log(tl.exp(m) * l_or_one)"), told="lse is m + tl.log(l)"),
    edit("5.7", "b and h_k exchanged", ("acc, b, h_k,", "acc, h_k, b,", 2), told="attend gets b, then h_k", gpu=None),
    edit("5.7", "lse stored past the end", ("mask=offs_m < S_q", "mask=offs_m < row_blocks * BLOCK_M"),
         told="a row past S_q, or of another head, is loaded or stored"),
    *(edit("5.8", f"{old} is {new}", (old, new), told=told) for old, new, told in OF_5_8),
    edit("5.9", "whole numbers", ("return in_series, in_turns, at_once", "return int(in_series), int(in_turns), int(at_once)"),
         told="gives in_series = 363, want 363.6"),
    edit("5.9", "not at once", ("max(products, exponential, every)", "max(products, every)"), told="the longest of 4 D / 4096, 1/16 and all_instructions"),
)  # fmt: skip
