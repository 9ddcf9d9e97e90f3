import numpy as np
from edits import edit


def blocked_whole(a, b, block_m, block_n, block_k):
    return (a.float() @ b.float()).to(a.dtype)


def tile_by_sorting(pid, tiles_m, tiles_n, group):
    m, n = np.divmod(np.arange(tiles_m * tiles_n), tiles_n)
    place = np.lexsort((m, n, m // group))[pid]
    return [m[place], n[place]]


def tile_by_max_of_half(tiles, block_k, num_stages, itemsize, registers, shared_memory):
    fits = [(m, n) for m, n in tiles if 8 * m * n <= registers and 2 * num_stages * block_k * (m + n) * itemsize <= shared_memory]
    return max(fits, key=lambda tile: tile[0] * tile[1] / sum(tile))


def tile_by_max_of_pairs(tiles, block_k, num_stages, itemsize, registers, shared_memory):
    def fits(m, n):
        return 8 * m * n <= registers and num_stages * block_k * (m + n) * itemsize <= shared_memory

    return max((m * n / (m + n), (m, n)) for m, n in tiles if fits(m, n))[1]


def tile_by_loop_of_half(tiles, block_k, num_stages, itemsize, registers, shared_memory):
    best = None
    for m, n in tiles:
        fits = 8 * m * n <= registers and 2 * num_stages * block_k * (m + n) * itemsize <= shared_memory
        if fits and (best is None or m * n / (m + n) > best[0]):
            best = m * n / (m + n), (m, n)
    return best[1]


def by_hand(a, b):
    return f"tl.sum({a}[:, :, None].to(tl.float32) * {b}[None, :, :].to(tl.float32), axis=1)"


DOT = 'tl.dot(a, b, acc, input_precision="ieee")'
LOAD_A, OFFS_N = "a = tl.load(a_ptrs", "offs_n = start"
RATE = "2 * block_m * block_n / ((block_m + block_n) * itemsize)"
S, PV = "scale * tl.dot(q, k_t, ", "acc = tl.dot(s.to(v.dtype), v, acc, "
BAND = "band = pid // (group * tiles_n)\n    within = pid % (group * tiles_n)"
BAND_BY_M = "band = pid // (group * tiles_m)\n    within = pid - band * group * tiles_n"
SHORT = "    if (band + 1) * group > tiles_m:\n        group = tiles_m - band * group\n"

WRONG_ANSWERS = (
    ("3.1", blocked_whole, "all of a and all of b go into one product"),
    edit("3.1", "all of K at once", ("range(0, K, block_k)", "[0]"), ("k : k + block_k", ":", 2),
         told="a product takes parts of shape (2, 8) and (8, 3): a step multiplies a tile of a"),
    edit("3.1", "acc of a full tile", ("tile.shape", "(block_m, block_n)"),
         told="M = 3, N = 5, K = 2, blocks 2 × 2 × 2: raises RuntimeError"),
    edit("3.1", "c in float32", ("dtype=a.dtype", "dtype=torch.float32"), told="one edge is left: c has dtype torch.float32, want a's"),
    edit("3.1", "block_n and block_k exchanged", ("    (M, K)", "    block_n, block_k = block_k, block_n\n    (M, K)"),
         told="a step multiplies a tile of a, block_m × block_k, by a tile of b"),
    edit("3.1", "block_k is always 1", ("    (M, K)", "    block_k = 1\n    (M, K)"),
         told="a step multiplies a tile of a, block_m × block_k, by a tile of b"),
    edit("3.1", "block_m and block_n exchanged", ("    (M, K)", "    block_m, block_n = block_n, block_m\n    (M, K)"),
         told="block_m counts rows of a, and block_n columns of b"),
    edit("3.2", "c in fp16", ("c_ptr.dtype.element_ty", "tl.float16"), told="acc is rounded to c's dtype, c_ptr.dtype.element_ty"),
    edit("3.2", "rows wrap around", ("tl.arange(0, BLOCK_M)  #", "tl.arange(0, BLOCK_M)) % M  #"), ("offs_m = tile_m", "offs_m = (tile_m"),
         told="by the true numbers of its rows and columns", gpu=None),
    edit("3.2", "no other", (", other=0.0", "", 2), told="what a mask leaves out must add 0 to the sum", gpu=None),
    edit("3.2", "no K mask", (" & (offs_k[None, :] < K - k)", ""), (" & (offs_k[:, None] < K - k)", ""),
         told="the last step reads past K, and 0 · NaN is NaN", gpu="K's last block may be shorter"),
    edit("3.2", "no store mask", ("mask=mask_m & mask_n", "mask=mask_m"), told="mask rows by M and columns by N"),
    edit("3.2", "and", ("mask_m & (offs_k", "mask_m and (offs_k"), told="join masks by &, not by `and`", gpu=None),
    edit("3.2", "steps rounded down", ("range(0, K, BLOCK_K)", "range(0, K // BLOCK_K * BLOCK_K, BLOCK_K)"),
         told="the steps along K are rounded down: a kernel's // rounds toward 0, so take tl.cdiv(K, BLOCK_K)"),
    edit("3.2", "steps rounded up as in Python", ("range(0, K, BLOCK_K)", "range(0, -(-K // BLOCK_K) * BLOCK_K, BLOCK_K)"),
         told="the steps along K are rounded down: a kernel's // rounds toward 0, so take tl.cdiv(K, BLOCK_K)"),
    edit("3.2", "TF32", (', input_precision="ieee"', ""), told="fp32 is multiplied in IEEE precision", gpu=None),
    edit("3.2", "tiles in fp16", ("a, b, acc", "a.to(tl.float16), b.to(tl.float16), acc"), told="16 bits can't hold 131,584"),
    edit("3.2", "acc in fp16", ('"ieee")', '"ieee").to(tl.float16).to(tl.float32)'),
         told="sums stay in float32, acc and what tl.dot returns", gpu=None),
    edit("3.2", "only a moves", ("b_ptrs += step * stride_bk", "pass"), told=("each goes BLOCK_K columns of a and BLOCK_K rows of b "
                                                                                "further")),
    edit("3.2", "both move by BLOCK_K", ("step * stride_ak", "step"), ("step * stride_bk", "step"),
         told="each goes BLOCK_K columns of a and BLOCK_K rows of b further"),
    edit("3.2", "b moves as a", ("step * stride_bk", "step * stride_ak"), told="BLOCK_K rows of b further"),
    edit("3.2", "TF32x3", ('"ieee"', '"tf32x3"'), told="TF32x3 cuts float32 into parts", gpu=None),
    edit("3.2", "a static_range", ("in range(0, K", "in tl.static_range(0, K"), told="tl.static_range takes constants alone"),
    edit("3.2", "a break", (LOAD_A, f"if K <= k:\n            break\n        {LOAD_A}"), told="a kernel has no break"),
    edit("3.2", "int", ("pid // tiles_n, pid", "int(pid / tiles_n), pid"), told="`int(pid / tiles_n)`: int is Python's"),
    edit("3.2", "math.ceil", ("range(0, K, BLOCK_K)", "range(0, math.ceil(K / BLOCK_K) * BLOCK_K, BLOCK_K)"), told="math.ceil is Python's"),
    edit("3.2", "widened", ("a, b, acc", "a.to(tl.float32), b.to(tl.float32), acc"),
         told="the result is right, but 16-bit inputs are multiplied as float32", gpu=None),
    edit("3.2", "no dot", (DOT, f"acc + {by_hand('a', 'b')}"), told="off the tensor cores: use tl.dot", gpu=None),
    edit("3.2", "Python's cdiv", ("tl.cdiv", "triton.cdiv"), told="use tl.cdiv there", gpu=None),
    edit("3.2", "stored in every step", ("    c_ptrs = c_ptr + ", "        c_ptrs = c_ptr + "), ("    tl.store(", "        tl.store("),
         told="stored more than once: store acc once, after the loop along K", gpu=None),
    edit("3.3", "acc at 2 bytes", ("acc = block_m * block_n * 4", "acc = block_m * block_n * 2"),
         told="acc has block_m · block_n float32 numbers, which may take at most half of the registers"),
    edit("3.3", "a stage too many", ("num_stages * block_k", "(num_stages + 1) * block_k"), told="is its room counted too large"),
    edit("3.3", "a stage too few", ("num_stages * block_k", "(num_stages - 1) * block_k"), told="counted for num_stages − 1 steps"),
    ("3.3", tile_by_max_of_half, "by your count no tile fits, and one does"),
    ("3.3", tile_by_max_of_pairs, "of two equally good tiles, return the first"),
    ("3.3", tile_by_loop_of_half, "by your count no tile fits, and one does"),
    edit("3.3", "a and b in registers", ("acc <= registers / 2", "acc + buffers <= registers / 2"), told="a's and b's tiles aren't in them"),
    edit("3.3", "bytes per FLOP, the smallest", (RATE, f"-{RATE}"), ("None, 0.0", "None, -1e9"),
         told="both fit: the larger does more FLOPs per byte"),
    edit("3.3", "rounded down, the last of equals", (RATE, RATE.replace(" / ", " // ")), ("> most", ">= most"), told="compare FLOPs per byte"),
    *(edit("3.3", f"{quotient} is compared", (RATE, quotient), told="and don't round them")
      for quotient in ("2 * block_m * block_n // (block_m + block_n)", "round(block_m * block_n / (block_m + block_n))")),
    edit("3.3", "shared memory for c's tile", ("block_k * (block_m + block_n)", "block_m * block_n"),
         told="shared memory holds num_stages tiles of a, block_m × block_k, and as many of b"),
    edit("3.3", "the FLOPs per byte are returned", ("return best", "return most"), told="want a tuple (block_m, block_n)"),
    edit("3.3", "twice the registers", ("registers / 2", "registers * 2"), told="at most half of the registers are for it"),
    edit("3.3", "a tile's sides divided", ("2 * block_m * block_n /", "2 * block_m / block_n /"), told="both fit: the larger does more FLOPs per byte"),
    edit("3.4", "by float", ("pid // (group * tiles_n)", "int(pid / (group * tiles_n))"), told="this works in Python only"),
    edit("3.4", "by divmod", (BAND, "band, within = divmod(pid, group * tiles_n)"), told="this works in Python only"),
    edit("3.4", "by tl.minimum", ("min(tiles_m - first_row, group)", "tl.minimum(tiles_m - first_row, group)"),
         told="tl.minimum and its kin work in a kernel alone"),
    edit("3.4", "an `if` shortens group", (BAND, f"if group > tiles_m:\n        group = tiles_m\n    {BAND}"), told="no `if` may assign to it"),
    edit("3.4", "group shortened before its first row", (BAND, f"{BAND}\n{SHORT}"),
         told="every band before it has `group` rows"),
    edit("3.4", "the last band's first row by its own rows", ("first_row + within % rows", "band * rows + within % rows"),
         told="the last band's own rows are used to find where it begins"),
    edit("3.4", "the band by tiles_m, the place by subtraction", (BAND, BAND_BY_M), told="the band is found with tiles_m"),
    edit("3.4", "the band alone found by tiles_m", ("band = pid // (group * tiles_n)", "band = pid // (group * tiles_m)"),
         told="pid // (group · tiles_m)"),
    edit("3.4", "min of a list", ("min(tiles_m - first_row, group)", "min([tiles_m - first_row, group])"), told="min takes two numbers"),
    ("3.4", tile_by_sorting, "this works in Python only"),
    edit("3.5", "products rounded", (PV, "acc = acc + tl.dot(s.to(v.dtype), v, "), ('v, input_precision="ieee")', 'v, input_precision="ieee").to(v.dtype)'),
         told="sums stay in float32, acc and what tl.dot returns"),
    edit("3.5", "s and v in fp16", ("tl.dot(s.to(v.dtype), v,", "tl.dot(s.to(tl.float16), v.to(tl.float16),"), told="16 bits can't hold 131,584"),
    edit("3.5", "no key mask", (" & (offs_n[None, :] < S_k)", ""), ("(offs_n[:, None] < S_k) & ", ""),
         told="mask rows of q and o by S_q, keys by S_k"),
    edit("3.5", "no store mask", ("mask=mask_q)", "mask=offs_d[None, :] < D)"), told="mask rows of q and o by S_q, keys by S_k"),
    edit("3.5", "v with k's strides", ("stride_vs + ", "stride_ks + "), ("* stride_vd", "* stride_kd"), told=("each tensor has its own "
                                                                                                             "two strides")),
    edit("3.5", "k's columns side by side", (" * stride_kd", ""), told="each tensor has its own two strides"),
    edit("3.5", "o contiguous", ("* stride_os", "* D"), (" * stride_od", ""), told="each tensor has its own two strides"),
    edit("3.5", "o as q", ("* stride_os", "* stride_qs"), ("* stride_od", "* stride_qd"), told="each tensor has its own two strides"),
    edit("3.5", "stored in every step", ("    o_ptrs = o_ptr + ", "        o_ptrs = o_ptr + "), ("    tl.store(", "        tl.store("),
         told="stored more than once: store acc once, after the loop over keys", gpu=None),
    edit("3.5", "no dot", (PV.replace("acc = ", "") + 'input_precision="ieee")', f"acc + {by_hand('s.to(v.dtype)', 'v')}"),
         told="off the tensor cores: use tl.dot", gpu=None),
    edit("3.5", "steps of BLOCK_M keys", ("S_k, BLOCK_N)", "S_k, BLOCK_M)"), told="each step takes BLOCK_N keys"),
    edit("3.5", "k not transposed", ("dot(q, k_t,", "dot(q, tl.reshape(tl.trans(k_t), (BLOCK_D, BLOCK_N)),"),
         told="o is scale · (q kᵀ) v, with nothing else in it"),
    edit("3.5", "s not rounded", ("s.to(v.dtype)", "s"), told="these are fp32 and fp16: round one to the other's: x.to(y.dtype)"),
    edit("3.5", "v widened", ("s.to(v.dtype), v,", "s, v.to(tl.float32),"),
         told="the result is right, but 16-bit inputs are multiplied as float32", gpu=None),
    edit("3.5", "s v in TF32", ('v, acc, input_precision="ieee"', "v, acc"), told="and here s v is not", gpu=None),
    edit("3.5", "q kᵀ in TF32", ('k_t, input_precision="ieee"', "k_t"), told="and here q kᵀ is not", gpu=None),
    edit("3.5", "k scaled", ("scale * tl.dot(q, k_t,", "tl.dot(q, (scale * k_t).to(q.dtype),"),
         told="the scale multiplies s, in float32: q or k times the scale would be rounded"),
    edit("3.5", "half of it", ("scale * tl.dot", "0.5 * scale * tl.dot"), told="o is scale · (q kᵀ) v, with nothing else in it"),
    edit("3.5", "the first keys alone", ("+ offs_n[None, :] * stride_ks", "+ (offs_n - start)[None, :] * stride_ks"),
         told="each step adds scale · (q kᵀ) v of its own keys, k's and v's rows from its start on"),
    edit("3.5", "kᵀ v first", ("zeros((BLOCK_M, BLOCK_D)", "zeros((BLOCK_D, BLOCK_D)"), (PV, PV.replace("s.to(v.dtype)", "k_t")),
         ("acc.to(o_ptr", 'scale * tl.dot(q.to(tl.float32), acc, input_precision="ieee").to(o_ptr'),
         told="kᵀ v is computed, and s never is", gpu=None),
    edit("3.3", "a tile below 1 FLOP a byte isn't taken", ("best, most = None, 0.0", "best, most = None, 1.0"), told="and a tile fits"),
)  # fmt: skip
