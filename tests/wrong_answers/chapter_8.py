from edits import edit

# of 8.5: what its starter does for each score, and its solution doesn't
SCALED = (
    ("tl.trans(k_tile))", "tl.trans(k_tile)) * scale_log2"),
    ("axis=1) * scale_log2", "axis=1)"),
    ("s * scale_log2 - shift", "s - shift"),
)
GUARDED = (
    "p = tl.exp2(s * scale_log2 - shift[:, None])",
    "p = tl.where(s == -float('inf'), 0.0, tl.exp2(s * scale_log2 - shift[:, None]))",
)

WRONG_ANSWERS = (
    edit("8.1", "KiB of 1,000 bytes", ("+ 1024", "+ 1000"), ("- 1024", "- 1000"), told="1,024 are on top of the program's own"),
    edit("8.1", "the extra 1,024 bytes once for all", ("233_472 // (shared_bytes + 1024)", "(233_472 - 1024) // shared_bytes"),
         ("233_472 // more - 1024", "(233_472 - 1024) // more"), told="1,024 are on top of the program's own"),
    edit("8.1", "only the scarcer gives up", ("programs, max(0, registers - most_registers)",
                                              "programs, 0 if shared_bytes > most_bytes else max(0, registers - most_registers)"),
         told="whatever the bytes allow"),
    edit("8.2", "not jitted", ("@triton.jit\n", ""), told="put @triton.jit above it"),
    edit("8.2", "no alpha", ("axis=1), alpha", "axis=1)"), told="alpha, [BLOCK_M] each, in this order"),
    edit("8.2", "alpha before l_new", ("alpha * l + tl.sum(p, axis=1), alpha", "alpha, alpha * l + tl.sum(p, axis=1)"),
         told="m_new, l_new, alpha, [BLOCK_M] each, in this order"),
    edit("8.2", "shift at least −10⁹", ('tl.where(m_new == -float("inf"), 0.0, m_new)', "tl.maximum(m_new, -1e9)"),
         told="scores may be as low as −2³⁰"),
    edit("8.2", "the old m is scaled again in alpha", ("tl.exp2(m - shift)", "tl.exp2(m * scale_log2 - shift)"),
         told="m comes in units of s · scale_log2 already"),
    edit("8.2", "l adds p in fp16", ("tl.sum(p, axis=1)", "tl.sum(p.to(tl.float16), axis=1)"), told="l_new = alpha · l + Σ p"),
    edit("8.2", "scaled before the maximum", ("tl.max(s, axis=1) * scale_log2", "tl.max(s * scale_log2, axis=1)"), told="more multiplications"),
    edit("8.2", "a guard for each score", GUARDED, told="more comparisons"),
    edit("8.2", "p by exp", ("tl.exp2(s * scale_log2 - shift[:, None])", "tl.exp((s * scale_log2 - shift[:, None]) * 0.6931471805599453)"),
         told="more multiplications"),
    edit("8.3", "missing keys score −1e6", ('s, -float("inf")', "s, -1e6"), told="−1e+06 stands for −∞"),
    edit("8.3", "m starts at −9999", ('(BLOCK_M,), -float("inf")', "(BLOCK_M,), -9999.0"), told="scores may be as low as −2³⁰"),
    edit("8.3", "p in fp16", ("p.to(v.dtype), v", "p.to(tl.float16), v.to(tl.float16)"), told="a tile in fp16, which ends at 65504"),
    edit("8.3", "l adds p in v's dtype", ("tl.sum(p, axis=1)", "tl.sum(p.to(v.dtype), axis=1)"), told="all four stay float32", gpu=None),
    edit("8.3", "v widened", ("dot(p.to(v.dtype), v)", "dot(p, v.to(tl.float32))"), told="off the tensor cores", gpu=None),
    edit("8.3", "no mask, l repaired after the loop",
         ("        s = tl.where(offs_n[None, :] < S_k, s, -float(\"inf\"))  # a key of zeros has the score 0\n", ""),
         ("    o = (acc", "    l -= (tl.cdiv(S_k, BLOCK_N) * BLOCK_N - S_k) * tl.exp(-m)\n    o = (acc"),
         told="−inf stands where a key is missing, before the maximum is taken"),
    edit("8.3", "one head", ("b, h = batch_head // H, batch_head % H", "b, h = batch_head // H, 0"), told="b and h are coordinates of their own"),
    edit("8.3", "whole tiles of keys alone", ("range(0, S_k, BLOCK_N)", "range(0, S_k - S_k % BLOCK_N, BLOCK_N)"), told="keys below S_k count"),
    edit("8.3", "stored without reshape", ("o.reshape([1, 1, BLOCK_M, D])", "o"), told="a tile of the shape of its blocks"),
    edit("8.3", "k's row counts tiles", ("k_desc.load([b, h, start_n, 0])", "k_desc.load([b, h, start_n // BLOCK_N, 0])"),
         told="the second tile has the coordinates [b, h, BLOCK_N, 0], in k and in v"),
    edit("8.3", "the loop takes D keys", ("range(0, S_k, BLOCK_N)", "range(0, S_k, D)"), told="BLOCK_N keys at a time"),
    edit("8.4", "four instructions at a time", ("num_warps * instructions / 4", "num_warps * (instructions // 4)"), told="not rounded"),
    edit("8.4", "fewer warps than schedulers take longer", ("num_warps * instructions / 4", "max(num_warps, 4) * instructions / 4"),
         told="other programs' warps use the schedulers that 2 warps leave"),
    edit("8.4", "as in chapter 5, in series with the exponentials", ("matmuls + issuing", "matmuls + issuing + 256"),
         told="468 of issuing, the exponentials among them"),
    edit("8.4", "the matmuls shrink with a larger tile", ("matmuls = 2", "matmuls = tiles * 2"), told="and 4 · D of matmuls with any tile"),
    edit("8.4", "the matmuls by all warps", ("return matmuls", "return num_warps / 4 * matmuls"), told="4 · D of matmuls with any number of warps"),
    edit("8.4", "not for all warps", ("matmuls + issuing", "matmuls + instructions"), told="8 warps on four schedulers"),
    edit("8.6", "the last heads twice", ("range(0, heads, at_once)", "[*range(0, heads, at_once), heads - 1]"), told="every row block of every head is in the list once"),
    edit("8.6", "all short ones first", ("    return order", "    return sorted(order, key=lambda program: program[1])"),
         told="the longest row blocks start first, the shortest last"),
    edit("8.6", "a head opens when one is done", ("    return order", """    left, open_heads, order = [(head, row_blocks) for head in range(heads)], [], []
    while left or open_heads:
        while left and len(open_heads) < at_once:
            open_heads.append(left.pop(0))
        head, rows = max(open_heads, key=lambda one: one[1])
        order.append((head, rows - 1))
        open_heads[open_heads.index((head, rows))] = (head, rows - 1)
        open_heads = [one for one in open_heads if one[1]]
    return order"""), told="of each at_once heads, the longest row blocks start first"),
    edit("8.5", "scaled before the maximum", *SCALED, told="more multiplications"),
    edit("8.5", "a guard for each score", GUARDED, told="more comparisons"),
    edit("8.5", "the old m is forgotten", ("tl.maximum(m, tl.max(s, axis=1) * scale_log2)", "tl.max(s, axis=1) * scale_log2"),
         told="m never falls: where one sees none it keeps m, l and acc"),
    edit("8.5", "p alone by exp", ("p = tl.exp2(", "p = tl.exp("), told="each row sees every key, p = 2^("),
    edit("8.5", "alpha in fp16", ("acc * alpha[:, None]", "acc * alpha.to(tl.float16).to(tl.float32)[:, None]"),
         told="alpha, which stays in float32"),
    edit("8.5", "the scores by tl.dot", ("s = dot(", "s = tl.dot("), told="s, p, l, acc are float32"),
    edit("8.5", "l adds p in v's dtype", ("tl.sum(p, axis=1)", "tl.sum(p.to(k_tile.dtype), axis=1)"), told="l adds it in float32"),
    edit("8.5", "l adds rounded p", ("tl.sum(p, axis=1)", "tl.sum(p.to(k_tile.dtype).to(tl.float32), axis=1)"), told="l adds it in float32"),
    edit("8.5", "q is scaled and rounded", ("dot(q_tile, tl", "dot((q_tile * scale_log2).to(q_tile.dtype), tl"), ("axis=1) * scale_log2", "axis=1)"),
         ("s * scale_log2 - shift", "s - shift"), told="q is multiplied as it is"),
    edit("8.5", "two results", ("return m_new, l, acc", "return m_new, l"), told="not enough values to unpack", gpu="does not run"),
    edit("8.5", "keys beyond S_k are read", ("load_tile(k, b, h_k, start_n, S_k", "load_tile(k, b, h_k, start_n, None"),
         told="outside", gpu=None),
    edit("8.5", "masked in both loops", ("    if MASK:\n        offs_n", "    if BLOCK_N:\n        offs_n"),
         told="more integer comparisons, as of a mask"),
    edit("8.5", "m at least −10³⁰", ("tl.maximum(m, tl.max(s, axis=1) * scale_log2)", "tl.maximum(tl.maximum(m, tl.max(s, axis=1) * scale_log2), -1e30)"),
         told="m stays −∞ for a row that has seen no key: yours is -1e+30"),
    edit("8.5", "shift at least −10⁹ under the mask", ("tl.where(m_new == -float(\"inf\"), 0.0, m_new)", "tl.maximum(m_new, -1e9)"),
         told="causal, 32 queries, 32 keys, scores of −2³⁰"),
)  # fmt: skip
