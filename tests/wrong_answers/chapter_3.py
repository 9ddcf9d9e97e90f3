from edits import edit


def blocked_whole(a, b, block_m, block_n, block_k):
    return (a.float() @ b.float()).to(a.dtype)


def tile_by_max_of_pairs(tiles, block_k, num_stages, itemsize, registers, shared_memory):
    def fits(m, n):
        return 8 * m * n <= registers and num_stages * block_k * (m + n) * itemsize <= shared_memory

    return max((m * n / (m + n), (m, n)) for m, n in tiles if fits(m, n))[1]


def by_hand(a, b):
    return f"tl.sum({a}[:, :, None].to(tl.float32) * {b}[None, :, :].to(tl.float32), axis=1)"


DOT = 'tl.dot(a, b, acc, input_precision="ieee")'
RATE = "2 * block_m * block_n / ((block_m + block_n) * itemsize)"
PV = "acc = tl.dot(s.to(v.dtype), v, acc, "
LOAD_A = "a = tl.load(a_ptrs"

WRONG_ANSWERS = (
    ("3.1", blocked_whole, "all of a and all of b go into one product"),
    edit("3.1", "all of K at once", ("range(0, K, block_k)", "[0]"), ("k : k + block_k", ":", 2), told="a product takes parts of shape (2, 8) and (8, 3)"),
    edit("3.1", "acc of a full tile", ("tile.shape", "(block_m, block_n)"), told="M = 3, N = 5, K = 2, blocks 2 × 2 × 2: raises RuntimeError"),
    edit("3.1", "c in float32", ("dtype=a.dtype", "dtype=torch.float32"), told="one edge is left: c has dtype torch.float32, want a's"),
    edit("3.1", "block_n and block_k exchanged", ("    (M, K)", "    block_n, block_k = block_k, block_n\n    (M, K)"), told="a tile of a, block_m × block_k"),
    edit("3.1", "block_m and block_n exchanged", ("    (M, K)", "    block_m, block_n = block_n, block_m\n    (M, K)"), told="block_m counts rows of a"),
    edit("3.1", "acc in fp16, whatever the dtype", ("dtype=torch.float32, device", "dtype=torch.float16, device"), ("acc += a_tile @ b_tile", "acc += (a_tile @ b_tile).half()"), told="summed in float32"),
    edit("3.2", "c in fp16", ("c_ptr.dtype.element_ty", "tl.float16"), told="round acc to c_ptr.dtype.element_ty"),
    edit("3.2", "rows wrap around", ("tl.arange(0, BLOCK_M)  #", "tl.arange(0, BLOCK_M)) % M  #"), ("offs_m = tile_m", "offs_m = (tile_m"),
         told="each element of an output belongs to one program", gpu=None),
    edit("3.2", "no other", (", other=0.0", "", 2), told="what a mask leaves out must add 0 to the sum", gpu=None),
    edit("3.2", "no K mask", (" & (offs_k[None, :] < K - k)", ""), (" & (offs_k[:, None] < K - k)", ""),
         told="the last step reads past K, and 0 · NaN is NaN", gpu="K's last block may be shorter"),
    edit("3.2", "no store mask", ("mask=mask_m & mask_n", "mask=mask_m"), told="mask rows by M and columns by N"),
    edit("3.2", "programs down the columns", ("pid // tiles_n, pid % tiles_n", "pid % tl.cdiv(M, BLOCK_M), pid // tl.cdiv(M, BLOCK_M)"),
         told="program pid computes tile (pid // tiles_n, pid % tiles_n)"),
    edit("3.2", "TF32", (', input_precision="ieee"', ""), told="fp32 is multiplied in IEEE precision", gpu=None),
    edit("3.2", "TF32x3", ('"ieee"', '"tf32x3"'), told="TF32x3 cuts float32 into parts", gpu=None),
    edit("3.2", "tiles in fp16", ("a, b, acc", "a.to(tl.float16), b.to(tl.float16), acc"), told="16 bits can't hold 131,584"),
    edit("3.2", "acc in fp16", ('"ieee")', '"ieee").to(tl.float16).to(tl.float32)'), told="sums stay in float32, acc and what tl.dot returns", gpu=None),
    edit("3.2", "both move by BLOCK_K", ("step * stride_ak", "step"), ("step * stride_bk", "step"), told="BLOCK_K · stride_ak elements of memory further in a"),
    edit("3.2", "a static_range", ("in range(0, K", "in tl.static_range(0, K"), told="tl.static_range takes constants alone"),
    edit("3.2", "a break", (LOAD_A, f"if K <= k:\n            break\n        {LOAD_A}"), told="a kernel has no break"),
    edit("3.2", "int", ("pid // tiles_n, pid", "int(pid / tiles_n), pid"), told="`int(pid / tiles_n)`: int is Python's"),
    edit("3.2", "Python's cdiv", ("tl.cdiv", "triton.cdiv"), told="use tl.cdiv there", gpu=None),
    edit("3.2", "widened", ("a, b, acc", "a.to(tl.float32), b.to(tl.float32), acc"), told="but 16-bit inputs are multiplied as float32", gpu=None),
    edit("3.2", "no dot", (DOT, f"acc + {by_hand('a', 'b')}"), told="off the tensor cores: use tl.dot", gpu=None),
    edit("3.2", "stored in every step", ("    c_ptrs = c_ptr + ", "        c_ptrs = c_ptr + "), ("    tl.store(", "        tl.store("),
         told="stored more than once: store acc once, after the loop along K", gpu=None),
    edit("3.3", "acc at 2 bytes", ("acc = block_m * block_n * 4", "acc = block_m * block_n * 2"), told="may take at most half of the registers"),
    edit("3.3", "a stage too many", ("num_stages * block_k", "(num_stages + 1) * block_k"), told="is its room counted too large"),
    ("3.3", tile_by_max_of_pairs, "of two equally good tiles, return the first"),
    edit("3.3", "the sides exchanged", ("return best", "return best[::-1]"), told="the (block_m, block_n) with the most FLOPs per byte"),
    edit("3.3", "a and b in registers", ("acc <= registers / 2", "acc + buffers <= registers / 2"), told="a's and b's tiles aren't in them"),
    edit("3.3", "FLOPs per byte rounded", (RATE, RATE.replace(" / ", " // ")), told="and don't round them"),
    edit("3.3", "a step's room in the rate", (RATE, "block_m * block_n / (block_m + block_n + block_k)"), told="with the most FLOPs per byte"),
    edit("3.3", "FLOPs per byte to one digit", (RATE, f"round({RATE}, 1)"), told="and don't round them"),
    edit("3.4", "by float", ("pid // (group * tiles_n)", "int(pid / (group * tiles_n))"), told="doesn't allow `int(pid / (group * tiles_n))`"),
    edit("3.4", "by tl.minimum", ("min(tiles_m - first_row, group)", "tl.minimum(tiles_m - first_row, group)"), told="tl.minimum(tiles_m - first_row, group)"),
    edit("3.4", "max", ("min(tiles_m - first_row, group)", "max(1, min(tiles_m - first_row, group))"), told="doesn't allow `max(1, min(tiles_m - first_row, group))`"),
    edit("3.4", "min of a list", ("min(tiles_m - first_row, group)", "min([tiles_m - first_row, group])"), told="use only +, -, *, //, %, min of two numbers"),
    edit("3.4", "an `if` shortens group", ("    band =", "    if group > tiles_m:\n        group = tiles_m\n    band ="), told="no `if` may assign to it"),
    edit("3.4", "the last band's first row by its own rows", ("first_row + within % rows", "band * rows + within % rows"), told="the last band has only"),
    edit("3.5", "products rounded", (PV, "acc = acc + tl.dot(s.to(v.dtype), v, "), ('v, input_precision="ieee")', 'v, input_precision="ieee").to(v.dtype)'),
         told="sums stay in float32, acc and what tl.dot returns"),
    edit("3.5", "s and v in fp16", ("tl.dot(s.to(v.dtype), v,", "tl.dot(s.to(tl.float16), v.to(tl.float16),"), told="16 bits can't hold 131,584"),
    edit("3.5", "no key mask", (" & (offs_n[None, :] < S_k)", ""), ("(offs_n[:, None] < S_k) & ", ""), told="mask rows of q and o by S_q, keys by S_k"),
    edit("3.5", "no store mask", ("mask=mask_q)", "mask=offs_d[None, :] < D)"), told="mask rows of q and o by S_q, keys by S_k"),
    edit("3.5", "k with q's stride of rows", ("* stride_ks", "* stride_qs"), told="each tensor has its own two strides"),
    edit("3.5", "v with k's strides", ("stride_vs + ", "stride_ks + "), ("* stride_vd", "* stride_kd"), told="each tensor has its own two strides"),
    edit("3.5", "stored in every step", ("    o_ptrs = o_ptr + ", "        o_ptrs = o_ptr + "), ("    tl.store(", "        tl.store("),
         told="stored more than once: store acc once, after the loop over keys", gpu=None),
    edit("3.5", "steps of BLOCK_M keys", ("S_k, BLOCK_N)", "S_k, BLOCK_M)"), told="each step takes its own BLOCK_N keys"),
    edit("3.5", "s adds up", ("s = scale * tl.dot(q, k_t, ", "s = scale * tl.dot(q, k_t, s, "), ("    for start in", "    s = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)\n    for start in"),
         told="its s starts from 0"),
    edit("3.5", "over the root of D", ('k_t, input_precision="ieee")', 'k_t, input_precision="ieee") / tl.sqrt(D.to(tl.float32))'), told="a factor such as 1/√D"),
    edit("3.5", "a mean over keys", ("acc.to(o_ptr", "(acc / S_k).to(o_ptr"), told="a factor such as 1/√D"),
    edit("3.5", "no scale", ("s = scale * ", "s = "), told="scale multiplies s, once"),
    edit("3.5", "acc scaled in each step", ("s = scale * ", "s = "), ("        acc = ", "        acc = scale * "), told="scale multiplies s, once"),
    edit("3.5", "a ReLU", (PV, PV.replace("s.to", "tl.maximum(s, 0.0).to")), told="o is (q kᵀ) v here and nothing else"),
    edit("3.5", "s and v in bf16", ("tl.dot(s.to(v.dtype), v,", "tl.dot(s.to(tl.bfloat16), v.to(tl.bfloat16),"), told="or another dtype",
         gpu="rounded to v's dtype alone"),
    edit("3.5", "v by swapped strides", ("offs_n[:, None] * stride_vs + offs_d[None, :] * stride_vd", "offs_n[:, None] * stride_vd + offs_d[None, :] * stride_vs"),
         told="its two strides, in their order"),
    edit("3.5", "q loaded in the loop", ("        k_t_ptrs =", "        q = tl.load(q_ptrs, mask=mask_q, other=0.0)\n        k_t_ptrs ="),
         told="load q's tile once, before the loop", gpu=None),
    edit("3.5", "s not rounded", ("s.to(v.dtype)", "s"), told="these are fp32 and fp16: round one to the other's: x.to(y.dtype)"),
    edit("3.5", "v widened", ("s.to(v.dtype), v,", "s, v.to(tl.float32),"), told="but 16-bit inputs are multiplied as float32", gpu=None),
    edit("3.5", "s v in TF32", ('v, acc, input_precision="ieee"', "v, acc"), told="IEEE precision, q kᵀ and s v", gpu=None),
    edit("3.5", "q kᵀ in TF32", ('k_t, input_precision="ieee"', "k_t"), told="IEEE precision, q kᵀ and s v", gpu=None),
    edit("3.5", "kᵀ v first", ("zeros((BLOCK_M, BLOCK_D)", "zeros((BLOCK_D, BLOCK_D)"), (PV, PV.replace("s.to(v.dtype)", "k_t")),
         ("acc.to(o_ptr", '(scale * tl.dot(q, acc.to(q.dtype), input_precision="ieee")).to(o_ptr'), told="s = q kᵀ comes first"),
    edit("3.5", "k scaled", ("scale * tl.dot(q, k_t,", "tl.dot(q, (scale * k_t).to(q.dtype),"), told="the scale multiplies s, in float32"),
)  # fmt: skip
