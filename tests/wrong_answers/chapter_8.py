"""Chapter 8: a step that is a plain function, a step that stops, tiles of the wrong shape."""

from edits import edit

# of 8.6: what its starter does for each score, and its solution doesn't
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
    edit("8.1", "KiB of 1,000 bytes", ("+ 1024", "+ 1000"), ("- 1024", "- 1000"), told="1,024 of them on top of its own"),
    edit("8.1", "what a program may ask for", ("233_472", "232_448", 2), told="an SM has 233,472 bytes"),
    edit("8.1", "only the scarcer gives up", ("programs, max(0, registers - most_registers)",
                                              "programs, 0 if shared_bytes > most_bytes else max(0, registers - most_registers)"),
         told="102 for each thread"),
    edit("8.1", "of all programs together", ("max(0, shared_bytes - most_bytes)", "max(0, more * (shared_bytes + 1024) - 233_472)"),
         told="what all programs lack together"),
    edit("8.1", "the number of programs alone", ("return programs, max(0, registers - most_registers), max(0, shared_bytes - most_bytes)",
                                                 "return programs"), told="registers_less"),
    edit("8.2", "not jitted", ("@triton.jit\n", ""), told="put @triton.jit above it"),
    edit("8.2", "no alpha", ("axis=1), alpha", "axis=1)"), told="alpha, [BLOCK_M] each, in this order"),
    edit("8.2", "alpha before l_new", ("alpha * l + tl.sum(p, axis=1), alpha", "alpha, alpha * l + tl.sum(p, axis=1)"),
         told="the order is p, m_new, l_new, alpha"),
    edit("8.2", "l_new before m_new", ("return p, m_new, alpha * l + tl.sum(p, axis=1), alpha",
                                       "return p, alpha * l + tl.sum(p, axis=1), m_new, alpha"),
         told="m_new and l_new have changed places"),
    edit("8.2", "p rounded, then summed", ("tl.sum(p, axis=1)", "tl.sum(p.to(tl.float16), axis=1)"),
         told="l adds p in fp16: it adds p as it is, in float32"),
    edit("8.2", "shift at least −10⁴", ('tl.where(m_new == -float("inf"), 0.0, m_new)', "tl.maximum(m_new, -1e4)"),
         told="scores may be as low as −2³⁰"),
    edit("8.2", "shift 0 below −10⁹", ('m_new == -float("inf")', "m_new < -1e9"), told="scores may be as low as −2³⁰"),
    edit("8.2", "shift at least −10⁹", ('tl.where(m_new == -float("inf"), 0.0, m_new)', "tl.maximum(m_new, -1e9)"),
         told="scores may be as low as −2³⁰"),
    edit("8.3", "missing keys score −1e6", ('s, -float("inf")', "s, -1e6"), told="−1e+06 stands for −∞"),
    edit("8.3", "m starts at −9999", ('(BLOCK_M,), -float("inf")', "(BLOCK_M,), -9999.0"),
         told="scores may be as low as −2³⁰"),
    edit("8.3", "p in fp16", ("p.to(v.dtype), v", "p.to(tl.float16), v.to(tl.float16)"),
         told="p v has the 11 bits of TF32 or fp16"),
    edit("8.3", "v widened", ("dot(p.to(v.dtype), v)", "dot(p, v.to(tl.float32))"), told="off the tensor cores", gpu=None),
    edit("8.3", "alpha after p v", ("alpha[:, None] * acc + dot(p.to(v.dtype), v)", "alpha[:, None] * dot(p.to(v.dtype), v, acc)"),
         told="alpha multiplies p v, too"),
    edit("8.3", "o over all heads", ("o_desc.store([b, h, start_m,", "o_desc.store([b, h, tl.program_id(0) * BLOCK_M,"),
         told="o's row is counted over all heads"),
    edit("8.3", "one head", ("b, h = batch_head // H, batch_head % H", "b, h = batch_head // H, 0"),
         told="b and h are coordinates of their own"),
    edit("8.3", "masked at S_q", ("offs_n[None, :] < S_k", "offs_n[None, :] < S_q"), told="the mask on the scores compares with S_q"),
    edit("8.3", "whole tiles of keys alone", ("range(0, S_k, BLOCK_N)", "range(0, S_k - S_k % BLOCK_N, BLOCK_N)"),
         told="the last tile of keys is left out where it is ragged"),
    edit("8.3", "causal", ("offs_n[None, :] < S_k", "offs_n[None, :] < start_m + tl.arange(0, BLOCK_M)[:, None] + 1 + S_k - S_q"),
         told="this kernel does full attention"),
    edit("8.3", "divided by l twice", ("acc / l[:, None]", "acc / (l * l)[:, None]"), told="acc is divided by l twice"),
    edit("8.3", "no reshape", ("q_desc.load([b, h, start_m, 0]).reshape([BLOCK_M, D])", "q_desc.load([b, h, start_m, 0])"),
         told="drop the ones by .reshape([rows, D])"),
    edit("8.3", "stored without reshape", ("o.reshape([1, 1, BLOCK_M, D])", "o"),
         told="give o its ones back by .reshape([1, 1, BLOCK_M, D])"),
    edit("8.4", "a name that is nowhere", ("    return order", "    return orders"), told="of launch_order: `return orders`"),
    edit("8.4", "row blocks alone", ("[(head, row_block) for head in group]", "[row_block for head in group]"), told="a list of pairs"),
    edit("8.4", "each program twice", ("    return order", "    return order + order"), told="in the list once"),
    edit("8.4", "all long ones first", ("    return order", "    return sorted(order, key=lambda program: -program[1])"),
         told="all heads are open"),
    edit("8.4", "all short ones first", ("    return order", "    return sorted(order, key=lambda program: program[1])"),
         told="the longest row blocks start first, the shortest last"),
    edit("8.4", "one head at a time in a group", ("    return order", "    return sorted(order, key=lambda program: program[0])"),
         told="one head after another"),
    edit("8.4", "the last heads one by one", ("    return order", """    rest = heads // at_once * at_once
    return [one for one in order if one[0] < rest] + sorted(one for one in order if one[0] >= rest)[::-1]"""),
         told="run one after another"),
    edit("8.4", "a head opens when one is done", ("    return order", """    left, open_heads, order = [(head, row_blocks) for head in range(heads)], [], []
    while left or open_heads:
        while left and len(open_heads) < at_once:
            open_heads.append(left.pop(0))
        head, rows = max(open_heads, key=lambda one: one[1])
        order.append((head, rows - 1))
        open_heads[open_heads.index((head, rows))] = (head, rows - 1)
        open_heads = [one for one in open_heads if one[1]]
    return order"""), told="of each at_once heads, the longest row blocks start first"),
    edit("8.5", "one scheduler", ("issuing = instructions * to_issue", "issuing = tiles * instructions * num_warps"),
         told="four schedulers issue at the same time"),
    edit("8.5", "step 1's model", ("max(issuing, exponentiating)", "instructions"), told="that is the model of 64 x 64 tiles"),
    edit("8.5", "issuing beside the matmuls", ("matmuls + max(issuing, exponentiating)", "max(matmuls, issuing) + exponentiating"),
         told="issuing is hidden behind the matmuls"),
    edit("8.5", "8 cycles for each exponential", ("* num_warps * 32 / 16", "* num_warps * 8"), told="four schedulers have such a unit"),
    edit("8.5", "four instructions at a time", ("issuing = instructions * to_issue", "issuing = instructions // 4 * num_warps * tiles"),
         told="instructions // 4 cuts off a part of a cycle"),
    edit("8.5", "rounded up to whole cycles", ("matmuls + max(issuing, exponentiating)", "int(matmuls + max(issuing, exponentiating) + 1)"),
         told="724"),
    edit("8.5", "the cycles alone", ("return matmuls + max(issuing, exponentiating), removable", "return matmuls + max(issuing, exponentiating)"),
         told="removable"),
    edit("8.5", "four instructions for an exponential", ("instructions - exponentiating / to_issue", "instructions - 4 * exponentials"),
         told="468 cycles of issuing, 272 of exponentials"),
    edit("8.5", "until the matmuls take longer", ("instructions - exponentiating / to_issue", "instructions - matmuls"),
         told="468 cycles of issuing, 272 of exponentials"),
    edit("8.6", "scaled before the maximum", *SCALED, told="more multiplications"),
    edit("8.6", "a guard for each score", GUARDED, told="more comparisons"),
    edit("8.6", "p in fp32", ("dot(p.to(v_tile.dtype), v_tile, acc)", "dot(p, v_tile, acc)"), told="attend does not compile"),
    edit("8.6", "two results", ("return m_new, l, acc", "return m_new, l"), told="stops with"),
)  # fmt: skip
