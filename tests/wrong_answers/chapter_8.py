"""Chapter 8: a step that is a plain function, a step that stops, tiles of the wrong shape."""

from edits import edit

WRONG_ANSWERS = (
    edit("8.1", "33rd program left out", ("min(by_registers, by_shared_memory)", ("min(by_registers, by_shared_memory, "
                                                                                 "32)")), told="no other limit counts"),
    edit("8.1", "KiB of 1,000 bytes", ("+ 1024", "+ 1000"), told="1 KiB is 1,024 bytes"),
    edit("8.1", "what a program may ask for", ("233_472", "232_448"), told="an SM has 233,472 bytes for its programs"),
    edit("8.2", "not jitted", ("@triton.jit\n", ""), told="put @triton.jit above it"),
    edit("8.2", "no alpha", ("axis=1), alpha", "axis=1)"), told="alpha, [BLOCK_M] each, in this order"),
    edit("8.2", "alpha before l_new", ("alpha * l + tl.sum(p, axis=1), alpha", "alpha, alpha * l + tl.sum(p, axis=1)"),
         told="the order is p, m_new, l_new, alpha"),
    edit("8.2", "p rounded, then summed", ("tl.sum(p, axis=1)", "tl.sum(p.to(tl.float16), axis=1)"),
         told="l adds p in fp16: it adds p as it is, in float32"),
    edit("8.2", "shift at least −10⁴", ('tl.where(m_new == -float("inf"), 0.0, m_new)', "tl.maximum(m_new, -1e4)"),
         told="scores may be as low as −2³⁰"),
    edit("8.3", "missing keys score −1e6", ('s, -float("inf")', "s, -1e6"), told="−1e+06 stands for −∞"),
    edit("8.3", "m starts at −9999", ('(BLOCK_M,), -float("inf")', "(BLOCK_M,), -9999.0"),
         told="scores may be as low as −2³⁰"),
    edit("8.3", "p in fp16", ("p.to(v.dtype), v", "p.to(tl.float16), v.to(tl.float16)"),
         told="p v has the 11 bits of TF32 or fp16"),
    edit("8.3", "one head", ("b, h = batch_head // H, batch_head % H", "b, h = batch_head // H, 0"),
         told="b and h are coordinates of their own"),
    edit("8.3", "masked at S_q", ("offs_n[None, :] < S_k", "offs_n[None, :] < S_q"), told="the mask on the scores compares with S_q"),
    edit("8.3", "whole tiles of keys alone", ("range(0, S_k, BLOCK_N)", "range(0, S_k - S_k % BLOCK_N, BLOCK_N)"),
         told="the last tile of keys is left out where it is ragged"),
    edit("8.3", "no reshape", ("q_desc.load([b, h, start_m, 0]).reshape([BLOCK_M, D])", "q_desc.load([b, h, start_m, 0])"),
         told="drop the ones by .reshape([rows, D])"),
    edit("8.3", "stored without reshape", ("o.reshape([1, 1, BLOCK_M, D])", "o"),
         told="give o its ones back by .reshape([1, 1, BLOCK_M, D])"),
    edit("8.5", "step 1's model", ("max(issuing, exponentiating)", "instructions"), told="that is the model of 64 x 64 tiles"),
    edit("8.5", "issuing beside the matmuls", ("matmuls + max(issuing, exponentiating)", "max(matmuls, issuing) + exponentiating"),
         told="issuing is hidden behind the matmuls"),
    edit("8.5", "8 cycles for each exponential", ("* num_warps * 32 / 16", "* num_warps * 8"), told="four schedulers have such a unit"),
    edit("8.5", "rounded up to whole cycles", ("return matmuls + max(issuing, exponentiating)", "return int(matmuls + max(issuing, exponentiating) + 1)"),
         told="724"),
)  # fmt: skip
