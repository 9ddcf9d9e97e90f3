from edits import edit

from fa_tutorial.forward import attend, softmax_step
from fa_tutorial.matmul import tl, triton
from fa_tutorial.tiles import load_tile


@triton.jit
def starter(x):
    raise NotImplementedError


SCORES = ("scale * dot(q_tile, tl.trans(k_tile))", "(scale * dot(q_tile, tl.trans(k_tile))).to(q_tile.dtype).to(tl.float32)")
SCALED_Q = ("    m = tl.full", "    q_tile = (q_tile * scale).to(q_tile.dtype)\n    m = tl.full")
P_IN_FLOAT32 = ("p.to(v_tile.dtype)", "p")
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
FULL = "tl.maximum(start_m + 1 + S_k - S_q, 0)"
FIRST_LOOP = "    for start_n in range(0, full_n, BLOCK_N):\n"
SECOND_LOOP = "    for start_n in tl.range(full_n"
ROUNDED = "    {0} = {0}.to(q_tile.dtype).to(tl.float32)\n"
V_WIDENED = ("dot(p.to(v_tile.dtype), v_tile", "dot(p, v_tile.to(tl.float32)")
FULL_IN_TILES = (FIRST_LOOP, "    full_n //= BLOCK_N\n" + FIRST_LOOP)
MASKING = """    if MASK:
        offs_n = start_n + tl.arange(0, BLOCK_N)  # [BLOCK_N]
        s = tl.where(offs_n[None, :] <= last_seen[:, None], s, -float("inf"))
"""
END_IN_TILES = (FIRST_LOOP, "    end_n = tl.cdiv(end_n, BLOCK_N)\n" + FIRST_LOOP)

OF_HEAD = "k and v come from head h_k of batch entry b"


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


WRONG_ANSWERS = (
    edit("5.1", "rows not masked", ("(offs_m[:, None] < S) & ", ""),
         told="rows from S on belong to the next head, or to nobody"),
    edit("5.1", "no pointer", ("x.ptr + b * x.strides[0] + h * x.strides[1]", "x"), told="write x.ptr for the pointer", gpu=None),
    edit("5.1", "stored by rows of the sequence", ("pid * BLOCK_M + tl.arange(0, BLOCK_M)", "pid * BLOCK_M + offs_m"),
         told="element (i, j) of program pid's tile goes to"),
    edit("5.1", "rows of a contiguous head", ("offs_m[:, None] * x.strides[2] + offs_d[None, :] * x.strides[3]", "offs_m[:, None] * D + offs_d[None, :]"),
         told="read as if its heads were contiguous: element (s, d)"),
    edit("5.3", "two tiles", ("range(0, S_k, BLOCK_N)", "range(0, BLOCK_N + BLOCK_N, BLOCK_N)"), told="the loop always takes two tiles"),
    edit("5.3", "as many tiles of keys as of queries", ("range(0, S_k, BLOCK_N)", "range(0, tl.cdiv(S_q, BLOCK_N) * BLOCK_N, BLOCK_N)"),
         told="the loop ends at S_q, and keys end at S_k"),
    *(edit("5.3", f"{x} ends at S_q", (f"load_tile({x}, b, h, start_n, S_k", f"load_tile({x}, b, h, start_n, S_q"),
           told=f"{x}'s tile ends at S_q, and {x} has S_k rows") for x in "kv"),
    edit("5.7", "the logarithm of m", ("m + tl.log(l_or_one)", "tl.log(m) + l"), told="m and l are in each other's place: lse = m + log l"),
    edit("5.2", "the largest absolute score", ("tl.max(s, axis=1)", "tl.max(tl.abs(s), axis=1)"), told="m is the maximum of the scores themselves"),
    edit("5.2", "q is a tile", (LOAD_Q, f"q = load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)\n    {LOAD_Q}"),
         told="keep Heads and tiles apart", gpu=None),
    edit("5.2", "batch and head exchanged", ("b, h = batch", "h, b = batch"), told="// H gives b and % H gives h"),
    edit("5.2", "p in float32, by tl.dot", ("dot(p.to(v_tile.dtype), v_tile)", 'tl.dot(p, v_tile, input_precision="ieee")'),
         told="one edge is left: fp16", gpu=None),
    edit("5.2", "p in float32", P_IN_FLOAT32, told=f"{TWO_DTYPES}, and these are fp32 and fp16"),
    edit("5.2", "p in fp16", ("p.to(v_tile.dtype)", "p.to(tl.float16)"), told=f"{TWO_DTYPES}, and these are fp16 and fp32"),
    edit("5.2", "maximum of the columns", ("tl.max(s, axis=1)", "tl.max(s, axis=0)"), ("m[:, None]", "m[None, :]"),
         told="maximum and sum run over a row's keys, axis 1"),
    edit("5.2", "p's scores without the scale", (SCORES[0], "dot(q_tile, tl.trans(k_tile))"), ("tl.max(s, axis=1)", "tl.max(s, axis=1) * scale"),
         told="the scale is missing in p"),
    edit("5.2", "p's scores without the scale, its maximum in one", (SCORES[0], "dot(q_tile, tl.trans(k_tile))"),
         ("tl.max(s, axis=1)", "tl.max(s * scale, axis=1)"), told="the scale is missing in p"),
    edit("5.2", "maximum of the columns, by rows", ("tl.max(s, axis=1)", "tl.max(s, axis=0)"), told="tl.max(s, axis=0) is the maximum of each column"),
    edit("5.2", "p and v in fp16", ("dot(p.to(v_tile.dtype), v_tile)", "dot(p.to(tl.float16), v_tile.to(tl.float16))"),
         told="p and v are rounded to fp16, whatever v's dtype is"),
    edit("5.2", "row blocks forgotten", ("batch_head = tl.program_id(0) // row_blocks", "batch_head = tl.program_id(0)"),
         told="row block pid % row_blocks of q and o, of head pid // row_blocks"),
    edit("5.2", "p is not subtracted from its maximum by rows", ("s - m[:, None]", "s - tl.max(m, axis=0)"), told="each row subtracts its own maximum"),
    edit("5.2", "l counts down", ("tl.sum(p, axis=1)", "-tl.sum(p, axis=1)"), told="so o is the mean of v, 4097, unrounded: one tile"),
    edit("5.2", "a plain helper", ("m = tl.max(s, axis=1)", "m = of_row(s)"), helpers=(of_row,), told="needs @triton.jit above it, too"),
    edit("5.2", "store to head 0", ("acc / l[:, None], b, h", "acc / l[:, None], b, 0"), told="it never writes o[0, 1, 0, 0]", gpu=None),
    edit("5.2", "l and a small number", ("acc / l[:, None]", "acc / (l + 1e-6)[:, None]"), told="with nothing added to it"),
    *(edit("5.2", f"{x} ends at S_q", (f"load_tile({x}, b, h, 0, S_k", f"load_tile({x}, b, h, 0, S_q"),
           told="k and v have S_k rows") for x in "kv"),
    edit("5.3", "q ends at S_k", (LOAD_Q, LOAD_Q.replace("S_q", "S_k")), told="q and o have S_q rows"),
    edit("5.3", "o ends at S_k", ("acc / l[:, None], b, h, start_m, S_q", "acc / l[:, None], b, h, start_m, S_k"), told="q and o have S_q rows"),
    edit("5.3", "m in the inputs' dtype", ("-float(\"inf\"), dtype=tl.float32", "-float(\"inf\"), dtype=q_tile.dtype"),
         ("        m = m_new", "        m = m_new.to(q_tile.dtype)"), told="an m in fp16 would be 2048"),
    edit("5.3", "divided by the last tile's l", ("alpha * l + tl.sum(p, axis=1)", "tl.sum(p, axis=1)"), told="joins m, l and acc by (4.2) and (4.3)"),
    *(edit(number, "one maximum for the tile", ("tl.max(s, axis=1)", "tl.max(s)"), told="each row subtracts its own maximum") for number in ("5.3", "5.4")),
    edit("5.3", "divided in the loop and after it", ("        m = m_new\n", "        m = m_new\n        acc = acc / l[:, None]\n"),
         told="acc is divided by l in every iteration, and once more after the loop"),
    edit("5.3", "acc in fp16", ("BLOCK_D), dtype=tl.float32", "BLOCK_D), dtype=tl.float16"), ("acc = dot(p.to(v_tile.dtype), v_tile, acc * alpha[:, None])",
         "acc = dot(p.to(v_tile.dtype), v_tile, acc * alpha[:, None]).to(tl.float16)"), told="too much for fp16 where l is 16"),
    edit("5.4", "whole tiles alone", ("range(0, S_k, BLOCK_N)", "range(0, S_k // BLOCK_N * BLOCK_N, BLOCK_N)"),
         told="the last tile is left out where it is ragged"),
    edit("5.4", "a mask times −∞", ('tl.where(offs_n[None, :] < S_k, s, -float("inf"))', 's + (offs_n[None, :] >= S_k).to(tl.float32) * -float("inf")'),
         told="because 0 · ∞ is NaN: choose the score by tl.where"),
    edit("5.2", "l is 0", ("tl.sum(p, axis=1)", "tl.sum(p - 1, axis=1)"), told="which of these is 0, ∞ or NaN in your kernel?"),
    edit("5.2", "o cast to fp16", ("acc / l[:, None]", "(acc / l[:, None]).to(tl.float16)"), told="store_tile rounds to o's dtype by itself"),
    edit("5.3", "the sum of p rescaled", ("alpha * l + tl.sum(p, axis=1)", "alpha * (l + tl.sum(p, axis=1))"), told="Σ p is rescaled too"),
    edit("5.4", "the mask of the last tile in each", ("offs_n[None, :] < S_k", "offs_n[None, :] % BLOCK_N < S_k % BLOCK_N"),
         told="where S_k is a multiple of BLOCK_N"),
    edit("5.9", "the table's instructions on top", ("all_instructions / 128", "(all_instructions + 6 + D / 64) / 128"),
         ("softmax_instructions / 128", "(softmax_instructions + 6 + D / 64) / 128"), told="`softmax_instructions` and `all_instructions` are the numbers"),
    edit("5.9", "without the exponential's instruction", ("exponential, every", "exponential, every - 1 / 128"), ("exponential, softmax", "exponential, softmax - 1 / 128"),
         told="one instruction is missing"),
    edit("5.9", "products doubled", ("2 * 2 * D / 4096", "8 * D / 4096"), told="a score takes 0.0625 + 0.0625 + 0.0469"),
    edit("5.9", "in turns, the loads' instructions twice", ("max(exponential, softmax))", "max(exponential, softmax) + 2 * (every - softmax))"),
         told="joins the products' 1/4; the other 3 go on during the products"),
    edit("5.8", "A by any layout of q and k", ("k.mT.contiguous().mT", "k"), told="A's input catches none, want A; B, C, D, E and F are right"),
    edit("5.8", "A on heads of a fused kv alone", ("(q, k.mT.contiguous().mT, v, False)", "(*randn(2, 32, 2, 25), False)"),
         told="A's input catches A and C, want A"),
    edit("5.8", "B with as many ragged keys", ("1, 40, 1, 32", "1, 40, 1, 40"), told="B's input catches B and C, want B"),
    edit("5.8", "B with other lengths in two heads", ("1, 40, 1, 32", "2, 40, 2, 32"), told="B's input catches A and B, want B"),
    edit("5.8", "rows of whole blocks", ("1, 40, 1, 32", "1, 64, 1, 32"), told="B's input catches none, want B"),
    edit("5.8", "C under a causal mask", ("(*randn(1, 32, 1, 25), False)", "(*randn(1, 32, 1, 25), True)"), told="C's input catches D and F, want C"),
    edit("5.8", "C with as few queries", ("1, 32, 1, 25", "1, 25, 1, 25"), told="C's input catches B and C, want C"),
    edit("5.8", "D with a row that sees no key", ("1, 32, 1, 64", "1, 64, 1, 32"), told="D's input catches D and F, want D"),
    edit("5.8", "D without a mask", ("1, 32, 1, 64), True", "1, 32, 1, 64), False"), told="D's input catches none, want D"),
    edit("5.8", "one key head", ("4, 32, 2, 32", "4, 32, 1, 32"), told="E's input catches none, want E"),
    edit("5.8", "E with a batch of two", ("torch.randn(1,", "torch.randn(2,", 3), told="B's input catches A and B, want B; C's input catches A and C, want C"),
    edit("5.8", "F with more keys than queries", ("1, 64, 1, 32", "1, 32, 1, 64"), told="F's input catches D, want F"),
    edit("5.8", "F with a ragged block", ("1, 64, 1, 32", "1, 40, 1, 32"), told="F's input catches B, D and F, want F"),
    edit("5.8", "F without keys, nor queries for the last program", ("1, 64, 1, 32", "1, 40, 1, 0"),
         told="F's input catches B and F, want F"),
    edit("5.8", "C of one head without keys", ("1, 32, 1, 25", "1, 32, 1, 0"), told="C's input catches F, want C"),
    edit("5.8", "no queries", ("1, 40, 1, 32", "1, 0, 1, 32"), told="no axis but S_k empty"),
    edit("5.8", "three heads on two", ("4, 32, 2, 32", "3, 32, 2, 32"), told="H_q a multiple of H_k"),
    edit("5.8", "fp16", ("torch.randn(1, H_q, S_q, 16)", "torch.randn(1, H_q, S_q, 16).half()"), told="q, k and v are float32, and finite"),
    edit("5.8", "a long sequence", ("1, 40, 1, 32", "1, 4_000, 1, 32"), told="keep inputs small"),
    edit("5.8", "no F", ('        "F": (*randn(1, 64, 1, 32), True),\n', ""), told="yours so far: A, B, C, D and E are right; F is missing"),
    edit("5.8", "only A", ("    return {", "    return {'A': (q, k.mT.contiguous().mT, v, False)}\n    {"), told="A is right; B, C, D, E and F are missing"),
    edit("5.8", "A, and a wrong B", ("    return {", "    return {'A': (q, k.mT.contiguous().mT, v, False), 'B': (q, k, v, False)}\n    {"),
         told="B's input catches none, want B; A is right; C, D, E and F are missing"),
    edit("5.8", "C to F are None", ("    return {", "    return dict.fromkeys('CDEF') | {'A': (q, k.mT.contiguous().mT, v, False), 'B': (*randn(1, 40, 1, 32), False)}\n    {"),
         told="A and B are right; C, D, E and F are missing"),
    edit("5.8", "one harmless input for all", ("    return {", "    return dict.fromkeys('ABCDEF', (q, k, v, False))\n    {"),
         told="yours so far: A's, B's, C's, D's, E's and F's inputs catch none, want one each"),
    edit("5.8", "in small letters", ("    return {", "    return {name.lower(): (q, k, v, False) for name in 'ABCDEF'}\n    {"),
         told="""a dict with the keys 'a', 'b', 'c', 'd', 'e', 'f', want "A" to "F\""""),
    edit("5.8", "a list", ("    return {", "    return [(q, k, v, False)] * 6\n    {"), told='returns a list of 6, want a dict of inputs for "A" to "F"'),
    edit("5.8", "three axes", ("(q, k.mT.contiguous().mT, v, False)", "[q[0], k, v, False]"), told="this one is (a tensor of shape (1, 32, 16), a tensor"),
    edit("5.8", "k is missing", ("(q, k.mT.contiguous().mT, v, False)", "[q, v, False]"), told="this one is a list of 3"),
    edit("5.8", "no mask said", ("(q, k.mT.contiguous().mT, v, False)", "(q, k, v)"), told="an input is (q, k, v, is_causal)"),
    edit("5.9", "whole numbers", ("return in_series, in_turns, at_once", "return int(in_series), int(in_turns), int(at_once)"),
         told="speed_limits(64, 7, 7, 1000): in_series is right, but rounded: return it as it is"),
    edit("5.9", "two digits", ("return in_series, in_turns, at_once", "return round(in_series, 2), in_turns, at_once"), told="right, but rounded"),
    edit("5.9", "not at once", ("max(products, exponential, every)", "max(products, every)"), told="128 FLOPs take 1/32 of a cycle, and the exponential 1/16"),
    edit("5.9", "a fixed peak", ("peak *", "989 *", 3), told="a score takes 0.0625 + 0.0625 + 0.0469"),
    edit("5.9", "a fixed peak at once", ("at_once = peak *", "at_once = 989 *"), told="at_once is the peak that was passed"),
    edit("5.9", "sixteen instructions a cycle", ("max(exponential, softmax)", "max(exponential, 8 * softmax)"), ("max(products, exponential, every)", "max(products, exponential, 8 * every)"),
         told="the softmax's 7 instructions, 7/128"),
    edit("5.9", "four others", ("every - 1 / 128", "4 / 128"), told="a score takes 0.0625 + 0.0625 + 0.0469"),
    edit("5.9", "nothing beside the exponential in turns", ("max(exponential, softmax)", "exponential + softmax"),
         told="the exponential's 1/16 of a cycle is longer than the softmax's 7 instructions, 7/128, and joins the products' 1/16"),
    edit("5.9", "in turns and in series exchanged", ("return in_series, in_turns, at_once", "return in_turns, in_series, at_once"),
         told="in_series and in_turns are in each other's place"),
    edit("5.4", "m in the inputs' dtype", ("-float(\"inf\"), dtype=tl.float32", "-float(\"inf\"), dtype=q_tile.dtype"),
         ("        m = m_new", "        m = m_new.to(q_tile.dtype)"), told="an m in fp16 would be 2048"),
    edit("5.6", "m rounded between the loops", (SECOND_LOOP, ROUNDED.format("m") + SECOND_LOOP), told="an m in fp16 would be 2048"),
    edit("5.6", "acc rounded between the loops", (SECOND_LOOP, ROUNDED.format("acc") + SECOND_LOOP), told="fp16 ends at 65504"),
    edit("5.2", "all tiles widened", ("start_m, S_q, D, BLOCK_M, BLOCK_D)  #", "start_m, S_q, D, BLOCK_M, BLOCK_D).to(tl.float32)  #"),
         ("0, S_k, D, BLOCK_N, BLOCK_D)", "0, S_k, D, BLOCK_N, BLOCK_D).to(tl.float32)", 2), told="off the tensor cores", gpu=None),
    *(edit(number, "v widened", V_WIDENED, told="off the tensor cores", gpu=None) for number in ("5.2", "5.3", "5.4", "5.5")),
    edit("5.3", "m is a number before the loop", ("tl.full((BLOCK_M,), -float(\"inf\"), dtype=tl.float32)", "-float(\"inf\")"), told=CARRIED),
    edit("5.3", "acc is a number before the loop", ("tl.zeros((BLOCK_M, BLOCK_D), dtype=tl.float32)", "0.0"),
         told="the accumulator of a dot has the product's shape"),
    edit("5.3", "acc in q's dtype", ("BLOCK_D), dtype=tl.float32", "BLOCK_D), dtype=q_tile.dtype"), told=CARRIED),
    edit("5.3", "l is a number before a tl.range", ("tl.zeros((BLOCK_M,), dtype=tl.float32)", "0.0"), ("in range", "in tl.range"), told=CARRIED),
    edit("5.3", "stored in every iteration", ("    store_tile(", "        store_tile("), told="a program stores each element once",
         gpu=None),
    edit("5.3", "maximum by elements", ("tl.max(s, axis=1)", "s"), told="both factors of a dot must be tiles of two axes"),
    *(edit(number, "a loop for m before the loop for l and acc", ("    for start_n in", FIRST_PASS + "    for start_n in"),
           told="k is read more than once: load each tile of keys once", gpu=None) for number in ("5.3", "5.4")),
    edit("5.3", "m_new rounded", ("tl.max(s, axis=1))", "tl.max(s, axis=1)).to(v_tile.dtype).to(tl.float32)"), told="fp16 ends at 65504"),
    edit("5.2", "m rounded", ("tl.max(s, axis=1)", "tl.max(s, axis=1).to(v_tile.dtype).to(tl.float32)"), told="fp16 ends at 65504"),
    *(edit(number, "sums of rounded p", ("tl.sum(p, axis=1)", "tl.sum(p.to(v_tile.dtype), axis=1)"), told="or a sum of p, is fp16", gpu=None)
      for number in ("5.2", "5.3")),
    edit("5.3", "alpha rounded", ("tl.exp(m - m_new)", "tl.exp(m - m_new).to(v_tile.dtype).to(tl.float32)"), told="one number for each row", gpu=None),
    edit("5.5", "alpha rounded", ("acc * alpha[:, None]", "acc * alpha.to(q_tile.dtype)[:, None].to(tl.float32)"), told="one number for each row", gpu=None),
    edit("5.6", "l and a small number", ("tl.where(l == 0.0, 1.0, l)", "l + 1e-6"), told="with nothing added to it"),
    *(edit("5.6", f"rounded before S_k − S_q is added, {text}", (f"{FULL} // BLOCK_N * BLOCK_N", f"tl.maximum({text} // BLOCK_N * BLOCK_N + S_k - S_q, 0)"),
           told="full_n is rounded down before S_k − S_q is added") for text in ("(start_m + 1)", "start_m")),
    edit("5.6", "rounded before S_k − S_q is added, perhaps below 0", (f"{FULL} // BLOCK_N * BLOCK_N", "(start_m + 1) // BLOCK_N * BLOCK_N + S_k - S_q"),
         told="full_n is a multiple of BLOCK_N"),
    edit("5.6", "full_n without S_k − S_q", (FULL, "(start_m + 1)"), told="a key that doesn't exist is read", gpu=None),
    edit("5.7", "l and a small number", ("tl.where(l == 0.0, 1.0, l)", "l + 1e-6"), told="with nothing added to it"),
    *(edit("5.7", f"key head {text}", ("h // (H_q // H_k)", text), told="query head h reads key head h // (H_q // H_k)")
      for text in ("h // H_q // H_k", "h * 0", "h // 2")),
    edit("5.7", "the second loop reads head h", ("h_k, start_n, last_seen, S_k, D, scale,\n                           True", "h, start_n, last_seen, S_k, D, scale,\n                           True"),
         told="so both loops read key head h_k", gpu="in both loops"),
    edit("5.2", "scores in the inputs' dtype", SCORES, told="fp16 rounds 2049 to 2048"),
    edit("5.3", "scores in the inputs' dtype", SCORES, told="fp16 rounds 2049 to 2048"),
    edit("5.3", "q scaled in its own dtype", SCALED_Q, ("s = scale * dot", "s = dot"),
         told="multiply q and k as they are"),
    edit("5.3", "m starts at 0", m_starts_at("0.0"), told="m starts at −inf, below them all"),
    edit("5.3", "m starts at −1e30", m_starts_at("-1e30"), told="−1e+30 stands for −∞, and from 5.5 on, a row that has seen no key is known by m = −∞"),
    edit("5.3", "l in the inputs' dtype", ("        m = m_new", "        m, l = m_new, l.to(v_tile.dtype).to(tl.float32)"),
         told="fp16 loses the later tiles' sums"),
    edit("5.4", "scores in the inputs' dtype", SCORES, told="fp16 rounds 2049 to 2048"),
    edit("5.3", "row blocks of BLOCK_N", ("tl.cdiv(S_q, BLOCK_M)", "tl.cdiv(S_q, BLOCK_N)"), told="a tile of q or o has BLOCK_M rows"),
    edit("5.4", "m starts at −9999", m_starts_at("-9999.0"), ("acc / l[:, None]", "acc / tl.where(l == 0.0, 1.0, l)[:, None]"),
         told="one edge is left: the scores may be as low as −2³⁰"),
    edit("5.4", "m starts at −3e38", m_starts_at("-3e38"), told="−3e+38 stands for −∞, and from 5.5 on, a row"),
    edit("5.4", "missing keys score −1e30", ('s, -float("inf")', "s, -1e30"), told="−1e+30 stands for −∞, and from 5.5 on, a row that has seen no key is known by m = −∞"),
    edit("5.4", "missing keys score −1e9", ('s, -float("inf")', "s, -1e9"), told="−1e+09 stands for −∞, and a score may be as low"),
    edit("5.3", "a global for −∞", m_starts_at("LOWEST"), helpers=(with_a_global,), told="Triton's compiler refuses the global LOWEST"),
    edit("5.3", "divided by l", ("alpha * l + ", "alpha / l + "), told="l is 0"),
    edit("5.3", "no iteration", ("range(0, S_k, BLOCK_N)", "range(S_k, 0, BLOCK_N)"), told="l is 0"),
    edit("5.4", "a constant for −∞", ('s, -float("inf")', "s, NO_SCORE"),
         helpers=(with_a_constant,), told="−3.403e+38 stands for −∞, and from 5.5 on, a row"),
    edit("5.4", "keys not masked", ("start_n, S_k, D", "start_n, None, D", 2),
         told="keys past S_k are read", gpu="keys past S_k have the score −inf, and their rows of v are 0"),
    edit("5.4", "rows stored past the end", ("l[:, None], b, h, start_m, S_q", "l[:, None], b, h, start_m, row_blocks * BLOCK_M"),
         told="rows past S_q are loaded or stored"),
    edit("5.4", "k without other", *NO_OTHER, ("k_tile = load_tile", "k_tile = load_anything"), helpers=(load_tile,),
         told="columns past D must be 0 in the tiles of q and k", gpu=None),
    edit("5.4", "v without other", *NO_OTHER, ("v_tile = load_tile", "v_tile = load_anything"), helpers=(load_tile,),
         told="keys past S_k have the score −inf, and their rows of v are 0", gpu=None),
    edit("5.5", "p in float32", P_IN_FLOAT32, told=TWO_DTYPES),
    edit("5.5", "returned in another order", ("return m, l, acc", "return acc, m, l"), told="returns something else than m [BLOCK_M]", gpu=None),
    edit("5.5", "masked after the maximum", (MASKING, ""), ("(4.2)\n", "(4.2)\n" + MASKING), told="the others get the score −inf"),
    edit("5.5", "no shift by 0", ('tl.where(m_new == -float("inf"), 0.0, m_new)', "m_new"), helpers=(softmax_step,),
         told="a row that has seen no key yet keeps m = −∞"),
    edit("5.5", "batch and head exchanged with a mask", (", b, h_k, start_n, rows", ", h_k if MASK else b, b if MASK else h_k, start_n, rows", 2), told=OF_HEAD),
    edit("5.5", "v of head 0 with a mask", ("load_tile(v, b, h_k,", "load_tile(v, b, 0 if MASK else h_k,"), told=OF_HEAD),
    edit("5.5", "k of batch entry 0 with a mask", ("load_tile(k, b, h_k,", "load_tile(k, 0 if MASK else b, h_k,"), told=OF_HEAD),
    edit("5.5", "every load is masked", ("S_k if MASK else None", "S_k"), told="pass None for S_k", gpu=None),
    edit("5.5", "offs_n is computed for every tile, and so are the loads' masks", (MASKING, "    offs_n = start_n + tl.arange(0, BLOCK_N)\n" + MASKING),
         ("S_k if MASK else None", "S_k"), told="pass None for S_k", gpu=None),
    edit("5.5", "no load is masked", ("S_k if MASK else None", "None"), told="the last tile may be ragged",
         gpu="the last tile may be ragged"),
    edit("5.5", "every score is compared", ("    if MASK:\n", "    if True:\n"), told="compare only under `if MASK:`", gpu=None),
    edit("5.5", "scores in the inputs' dtype", SCORES, told="fp16 rounds 2049 to 2048"),
    edit("5.5", "l in the inputs' dtype", ("softmax_step(s, m, l)", "softmax_step(s, m, l.to(q_tile.dtype).to(tl.float32))"),
         told="fp16 loses the later tiles' sums"),
    edit("5.5", "acc in the inputs' dtype", ("v_tile, acc)", "v_tile, acc).to(v_tile.dtype).to(tl.float32)"), told="fp16 ends at 65504"),
    edit("5.5", "all columns of k", ("k_tile = load_tile(k, b, h_k, start_n, rows, D,", "k_tile = load_tile(k, b, h_k, start_n, rows, BLOCK_D,"),
         told="D may be smaller than BLOCK_D"),
    edit("5.5", "all columns of v", ("v_tile = load_tile(v, b, h_k, start_n, rows, D,", "v_tile = load_tile(v, b, h_k, start_n, rows, BLOCK_D,"),
         told="D may be smaller than BLOCK_D"),
    edit("5.6", "calls a starter", (LOAD_Q, f"{LOAD_Q}\n    starter(q_tile)"), helpers=(starter,),
         told="starter, which it calls, still raises NotImplementedError", gpu=None),
    edit("5.6", "full_n is S_k", ("full_n, end_n = S_k // BLOCK_N * BLOCK_N, S_k", "full_n, end_n = S_k, S_k"),
         told="without IS_CAUSAL full_n is S_k // BLOCK_N · BLOCK_N", gpu="still the kernel of 5.4"),
    edit("5.6", "no mask in the second loop", ("True, BLOCK_N, BLOCK_D", "False, BLOCK_N, BLOCK_D"), told="so the loop with a mask takes it"),
    edit("5.6", "end_n in tiles", END_IN_TILES, told="query i sees keys 0 to i + S_k − S_q"),
    edit("5.6", "full_n and end_n in tiles", FULL_IN_TILES, END_IN_TILES, told="query i sees keys 0 to i + S_k − S_q"),
    edit("5.6", "full_n is negative", (FULL, "(start_m + 1 + S_k - S_q)"),
         told="a key that doesn't exist is read", gpu=None),
    edit("5.6", "always causal", ("if IS_CAUSAL:", "if True:"),
         told="with IS_CAUSAL = False it is still the kernel of 5.4"),
    edit("5.6", "end_n rounded down", ("full_n, end_n = S_k // BLOCK_N * BLOCK_N, S_k", "full_n, end_n = S_k // BLOCK_N * BLOCK_N, S_k // BLOCK_N * BLOCK_N"),
         ("S_q) + S_k - S_q", "S_q) + S_k - S_q\n        end_n = end_n // BLOCK_N * BLOCK_N"), told="end_n one past the last key of its last row"),
    edit("5.6", "every NaN hidden", ("acc / l_or_one[:, None]", "tl.where(acc / l[:, None] == acc / l[:, None], acc / l[:, None], 0.0)"),
         told="hide no other NaN"),
    edit("5.6", "all tiles in the loop with a mask", (FIRST_LOOP, "    full_n *= 0\n" + FIRST_LOOP),
         told="tiles masked: 12 of 12, and 6 need it", gpu=None),
    edit("5.6", "both loops with a mask", ("False, BLOCK_N, BLOCK_D", "True, BLOCK_N, BLOCK_D"), told="tiles masked: ", gpu=None),
    edit("5.6", "the whole of S_k", ("tl.minimum(start_m + BLOCK_M, S_q) + S_k - S_q", "S_k"),
         told="tiles that no row of the block sees are skipped"),
    edit("5.6", "end_n past the last row", ("tl.minimum(start_m + BLOCK_M, S_q) + S_k - S_q", "start_m + BLOCK_M + S_k - S_q"),
         told="tiles are multiplied that no row of their block sees", gpu=None),
    edit("5.6", "nothing stored", ("    store_tile(", "    0 if True else store_tile("), told="nothing is stored"),
    edit("5.7", "key head is the query head", ("h // (H_q // H_k)", "h"), told="q, o and lse have H_q heads, k and v have H_k",
         gpu="a key head serves H_q / H_k neighbouring query heads"),
    edit("5.7", "programs count key heads", ("batch_head // H_q, batch_head % H_q", "batch_head // H_k, batch_head % H_k"),
         told="programs count query heads"),
    edit("5.7", "acc in the inputs' dtype", ("v_tile, acc)", "v_tile, acc).to(v_tile.dtype).to(tl.float32)"),
         helpers=(attend,), told="fp16 ends at 65504"),
    edit("5.7", "lse stored past the end", ("mask=offs_m < S_q", "mask=offs_m < row_blocks * BLOCK_M"),
         told="a row past S_q, or of another head, is loaded or stored"),
    edit("5.7", "S_k − BLOCK_N", ("S_q) + S_k - S_q", "S_q) + S_k - BLOCK_N"), told="one past the last key that its last row sees"),
    edit("5.7", "full_n in floats", ("// BLOCK_N * BLOCK_N\n        end_n", "// BLOCK_N / BLOCK_N\n        end_n"), told="the loops meet at full_n", gpu=None),
)  # fmt: skip
