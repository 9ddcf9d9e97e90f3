"""Chapter 5: accesses past the ends of heads and tensors, lanes that hold anything, NaN from −inf − (−inf), loops that begin before key 0."""

from edits import edit

from fa_tutorial.forward import attend, softmax_step
from fa_tutorial.matmul import triton
from fa_tutorial.tiles import load_tile


@triton.jit
def starter(x):
    raise NotImplementedError


P_IN_FLOAT32 = ("p.to(v_tile.dtype)", "p")
TWO_DTYPES = "both factors of a dot must have one dtype"
NO_OTHER = (("def load_tile(", "def load_anything("), (", other=0.0", ""))
LOAD_Q = "q_tile = load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)"
FULL = "tl.maximum(start_m + 1 + S_k - S_q, 0)"
FIRST_LOOP = "    for start_n in range(0, full, BLOCK_N):\n"
FULL_IN_TILES = (FIRST_LOOP, "    full //= BLOCK_N\n" + FIRST_LOOP)
END_IN_TILES = (FIRST_LOOP, "    end = tl.cdiv(end, BLOCK_N)\n" + FIRST_LOOP)

WRONG_ANSWERS = (
    edit("5.1", "rows not masked", ("(offs_m[:, None] < S) & ", ""),
         told="the tile runs over its head's end", gpu="store the whole tile, zeros too"),
    edit("5.1", "no other", (", other=0.0", ""), told="without other=0.0 a load leaves the lanes that its mask hides undefined", gpu=None),
    edit("5.1", "no pointer", ("x.ptr + b * x.strides[0] + h * x.strides[1]", "x"), told="write x.ptr for the pointer", gpu=None),
    edit("5.1", "stored by rows of the sequence", ("pid * BLOCK_M + tl.arange(0, BLOCK_M)", "pid * BLOCK_M + offs_m"),
         told="element (i, j) of program pid's tile goes to"),
    edit("5.2", "not jitted", ("@triton.jit\n", ""), told="put @triton.jit above it"),
    edit("5.2", "q is a tile", (LOAD_Q, f"q = load_tile(q, b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)\n    {LOAD_Q}"),
         told="keep Heads and tiles apart", gpu=None),
    edit("5.2", "batch and head exchanged", ("b, h = batch", "h, b = batch"), told="// H gives b and % H gives h"),
    edit("5.2", "p in float32, by tl.dot", ("dot(p.to(v_tile.dtype), v_tile)", 'tl.dot(p, v_tile, input_precision="ieee")'),
         told="one edge is left: fp16", gpu=None),
    edit("5.2", "p in float32", P_IN_FLOAT32, told=f"{TWO_DTYPES}, and these are fp32 and fp16"),
    edit("5.2", "p in fp16", ("p.to(v_tile.dtype)", "p.to(tl.float16)"), told=f"{TWO_DTYPES}, and these are fp16 and fp32"),
    edit("5.2", "maximum of the columns", ("tl.max(s, axis=1)", "tl.max(s, axis=0)"), ("m[:, None]", "m[None, :]"),
         told="column j loses key j's maximum"),
    edit("5.3", "start_n counts tiles", ("range(0, S_k, BLOCK_N)", "range(0, S_k // BLOCK_N)"), told="start_n counts tiles"),
    edit("5.3", "p in float32", P_IN_FLOAT32, told=TWO_DTYPES),
    edit("5.3", "acc rescaled last", ("acc * alpha[:, None])", "acc) * alpha[:, None]"), told="p v is rescaled too"),
    edit("5.3", "divided in the loop", ("        m = m_new", "        m, acc = m_new, acc / l[:, None]"),
         told="divide once, after the loop"),
    edit("5.3", "exp of the old maximum", ("s - m_new[:, None]", "s - m[:, None]"),
         told="p is exp(s − m_new), and alpha is exp(m − m_new)"),
    edit("5.3", "row blocks of BLOCK_N", ("tl.cdiv(S_q, BLOCK_M)", "tl.cdiv(S_q, BLOCK_N)"), told="a tile of q or o has BLOCK_M rows"),
    edit("5.4", "p in float32", P_IN_FLOAT32, told=TWO_DTYPES),
    edit("5.4", "m starts at a finite number", ('(BLOCK_M,), -float("inf")', "(BLOCK_M,), -1e9"),
         ("acc / l[:, None]", "acc / tl.where(l == 0.0, 1.0, l)[:, None]"), told="m starts at −inf"),
    edit("5.4", "row blocks rounded down", ("tl.cdiv(S_q, BLOCK_M)", "S_q // BLOCK_M"), told="the number of row blocks is rounded up"),
    edit("5.4", "keys counted from the tile", ("offs_n = start_n + ", "offs_n = "), told="offs_n does not move with the loop"),
    edit("5.4", "one key too many", ("offs_n[None, :] < S_k", "offs_n[None, :] <= S_k"), told="one key too many"),
    edit("5.4", "rows for keys", ("offs_n[None, :] < S_k", "offs_n[:, None] < S_k"), told="the mask hides rows"),
    edit("5.4", "and", ("tl.where(offs_n[None, :] < S_k,", "tl.where(offs_n[None, :] >= 0 and offs_n[None, :] < S_k,"),
         told="join masks by &, not by `and`", gpu=None),
    edit("5.4", "keys not masked", ("start_n, S_k, D", "start_n, None, D", 2),
         told="keys past S_k are read", gpu="rows of v's tile past S_k hold anything"),
    edit("5.4", "rows stored past the end", ("l[:, None], b, h, start_m, S_q", "l[:, None], b, h, start_m, row_blocks * BLOCK_M"),
         told="rows past S_q are loaded or stored"),
    edit("5.4", "k without other", *NO_OTHER, ("k_tile = load_tile", "k_tile = load_anything"), helpers=(load_tile,),
         told="columns past D hold anything", gpu=None),
    edit("5.4", "v without other", *NO_OTHER, ("v_tile = load_tile", "v_tile = load_anything"), helpers=(load_tile,),
         told="rows of v's tile past S_k hold anything", gpu=None),
    edit("5.5", "p in float32", P_IN_FLOAT32, helpers=(attend,), told=TWO_DTYPES),
    edit("5.5", "calls a starter", (LOAD_Q, f"{LOAD_Q}\n    starter(q_tile)"), helpers=(starter,),
         told="starter, which it calls, still raises NotImplementedError", gpu=None),
    edit("5.5", "acc not rescaled", ("acc * alpha[:, None]", "acc"), helpers=(attend,), told="in attend, acc is not rescaled"),
    edit("5.5", "p v rescaled", ("acc * alpha[:, None]", "acc"), ("v_tile, acc)", "v_tile, acc) * alpha[:, None]"), helpers=(attend,),
         told="in attend, p v is rescaled too"),
    edit("5.5", "alpha by columns", ("alpha[:, None]", "alpha[None, :]"), helpers=(attend,),
         told="in attend, acc · alpha[None, :] rescales column j"),
    edit("5.5", "acc replaced", ("acc * alpha[:, None]", "tl.zeros_like(acc)"), helpers=(attend,),
         told="in attend, each tile's p v replaces the one before"),
    edit("5.5", "not MASK", ("if MASK:", "if not MASK:"), helpers=(attend,), told="attend hides nothing where it should"),
    edit("5.5", "full is not rounded", (f"{FULL} // BLOCK_N * BLOCK_N", FULL), told="full is no multiple of BLOCK_N"),
    edit("5.5", "full is S_k", ("full, end = S_k // BLOCK_N * BLOCK_N, S_k", "full, end = S_k, S_k"),
         told="without IS_CAUSAL it ends at S_k // BLOCK_N · BLOCK_N", gpu="still the kernel of 5.4"),
    edit("5.5", "last_seen is S_k", ("S_k - 1,", "S_k,"), told="without IS_CAUSAL, every row's last_seen is S_k − 1"),
    edit("5.5", "full in tiles", FULL_IN_TILES, told="full and end count keys, not tiles"),
    edit("5.5", "end in tiles", END_IN_TILES, told="full and end count keys, not tiles"),
    edit("5.5", "full and end in tiles", FULL_IN_TILES, END_IN_TILES, told="full and end count keys, not tiles"),
    edit("5.5", "last_seen top-left", ("offs_m + (S_k - S_q)", "offs_m"), told="S_k − S_q is missing in last_seen"),
    edit("5.5", "last_seen of no mask", ("last_seen = offs_m + (S_k - S_q)", "pass"),
         told="the mask hides nothing in the tile that the diagonal crosses"),
    edit("5.5", "full from the last row", ("start_m + 1 + S_k", "start_m + BLOCK_M + S_k"),
         told="the tile that the diagonal crosses is not masked"),
    edit("5.5", "full is negative", (FULL, "(start_m + 1 + S_k - S_q)"),
         told="one edge is left: the second loop starts before key 0", gpu=None),
    edit("5.5", "no shift by 0", ('tl.where(m_new == -float("inf"), 0.0, m_new)', "m_new"), helpers=(softmax_step, attend),
         told="one edge is left: rows that see no key give NaN"),
    edit("5.5", "no tile is skipped", ("end = tl.minimum(start_m + BLOCK_M, S_q) + S_k - S_q", "pass"),
         told="one edge is left: a tile that no row of the block sees is not skipped"),
    edit("5.5", "always causal", ("if IS_CAUSAL:", "if True:"),
         told="one edge is left: with IS_CAUSAL = False it is still the kernel of 5.4"),
    edit("5.6", "p in float32", P_IN_FLOAT32, helpers=(attend,), told=TWO_DTYPES),
    edit("5.6", "key head is the query head", ("h // (H_q // H_k)", "h"), told="query head h reads key head h // (H_q // H_k)"),
    edit("5.6", "programs count key heads", ("batch_head // H_q, batch_head % H_q", "batch_head // H_k, batch_head % H_k"),
         told="programs count query heads"),
    edit("5.6", "lse stored past the end", ("mask=offs_m < S_q", "mask=offs_m < row_blocks * BLOCK_M"),
         told="rows past S_q are loaded or stored, of o or lse"),
)  # fmt: skip
