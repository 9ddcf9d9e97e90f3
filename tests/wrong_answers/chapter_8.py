"""Wrong answers to the exercises of chapter 8, each with words that its diagnosis must hold.

Those of 8.3 are one kernel, right as long as FLAW is "", and those of 8.4 one function, right with the flaw "".
"""

from __future__ import annotations

from typing import Any

import torch

from fa_tutorial import backward
from fa_tutorial.exercises.pieces import tl, triton
from fa_tutorial.forward import softmax_step
from fa_tutorial.tiles import Heads, heads, padded_d
from wrong_answers import WrongAnswer, chapter_5

FLAW = tl.constexpr("")


# ---------------------------------------------------------------- 8.1


def _pairs(S_q, S_k, is_causal):
    return sum(min(max(0, i + 1 + S_k - S_q), S_k) for i in range(S_q)) if is_causal else S_q * S_k


def _by_matmuls(fwd, bwd, fwd_bwd):
    def tflops(B, H, S_q, S_k, D, is_causal, mode, seconds):
        matmuls = {"fwd": fwd, "bwd": bwd, "fwd_bwd": fwd_bwd}[mode]
        return matmuls * 2 * B * H * _pairs(S_q, S_k, is_causal) * D / seconds / 1e12

    return tflops


def _by_factor(factor):
    def tflops(B, H, S_q, S_k, D, is_causal, mode, seconds):
        return factor * _by_matmuls(2, 5, 7)(B, H, S_q, S_k, D, is_causal, mode, seconds)

    return tflops


def _by_pairs(pairs):
    def tflops(B, H, S_q, S_k, D, is_causal, mode, seconds):
        matmuls = {"fwd": 2, "bwd": 5, "fwd_bwd": 7}[mode]
        return matmuls * 2 * B * H * pairs(S_q, S_k, is_causal) * D / seconds / 1e12

    return tflops


def _tflops_without_heads(B, H, S_q, S_k, D, is_causal, mode, seconds):
    return _by_matmuls(2, 5, 7)(B, 1, S_q, S_k, D, is_causal, mode, seconds)


def _tflops_times_seconds(B, H, S_q, S_k, D, is_causal, mode, seconds):
    return _by_matmuls(2, 5, 7)(B, H, S_q, S_k, D, is_causal, mode, 1 / seconds)


def _tflops_to_cents(B, H, S_q, S_k, D, is_causal, mode, seconds):
    return round(_by_factor(1)(B, H, S_q, S_k, D, is_causal, mode, seconds), 2)


def _tflops_whole(B, H, S_q, S_k, D, is_causal, mode, seconds):
    return int(_by_factor(1)(B, H, S_q, S_k, D, is_causal, mode, seconds))


def _tflops_half(B, H, S_q, S_k, D, is_causal, mode, seconds):
    return torch.tensor(_by_factor(1)(B, H, S_q, S_k, D, is_causal, mode, seconds), dtype=torch.float64).half()


def _all_pairs(S_q, S_k, is_causal):
    return S_q * S_k


def _half_of_all(S_q, S_k, is_causal):
    return S_q * S_k / 2 if is_causal else S_q * S_k


def _strict(S_q, S_k, is_causal):
    return sum(max(0, i + S_k - S_q) for i in range(S_q)) if is_causal else S_q * S_k


def _top_left(S_q, S_k, is_causal):
    return sum(min(i + 1, S_k) for i in range(S_q)) if is_causal else S_q * S_k


def _negative_rows(S_q, S_k, is_causal):
    return sum(i + 1 + S_k - S_q for i in range(S_q)) if is_causal else S_q * S_k


# ---------------------------------------------------------------- 8.2


def _by_bytes(asked):
    def fits(config, D, itemsize, shared_memory_limit):
        return asked(config.block_m, config.block_n, config.num_stages, D, itemsize) <= shared_memory_limit

    return fits


def _rows(m, n, stages):
    return m + 2 * stages * n


def _fits_below(config, D, itemsize, shared_memory_limit):
    return _rows(config.block_m, config.block_n, config.num_stages) * padded_d(D) * itemsize < shared_memory_limit


def _fits_turned_round(config, D, itemsize, shared_memory_limit):
    return shared_memory_limit <= _rows(config.block_m, config.block_n, config.num_stages) * padded_d(D) * itemsize


def _fits_always(config, D, itemsize, shared_memory_limit):
    return True


def _fits_in_bytes(config, D, itemsize, shared_memory_limit):
    return _rows(config.block_m, config.block_n, config.num_stages) * padded_d(D) * itemsize


def _power_of_two(D):
    return 1 << (D - 1).bit_length()


# ---------------------------------------------------------------- 8.3


@triton.jit
def _descriptor(q_desc, k_desc, v_desc, o_desc, H, S_q, S_k, scale, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr):
    row_blocks = S_q // BLOCK_M if FLAW == "row blocks rounded down" else tl.cdiv(S_q, BLOCK_M)
    row_block, batch_head = tl.program_id(0) % row_blocks, tl.program_id(0) // row_blocks
    b, h = batch_head // H, batch_head % H
    if FLAW == "batch and head exchanged":
        b, h = h, b
    start_m = row_block if FLAW == "row counts tiles" else row_block * BLOCK_M
    b_k, h_k, first_key = b, h, 0
    if FLAW == "head of k and v forgotten":
        h_k = 0
    if FLAW == "heads as rows of k and v":
        b_k, h_k, first_key = 0, 0, batch_head * S_k
    h_o, start_o = h, start_m
    if FLAW == "heads as rows of o":
        h_o, start_o = 0, h * S_q + start_m
    q = q_desc.load([b, h, start_m, 0])
    if FLAW != "tile not reshaped":
        q = q.reshape([BLOCK_M, D])
    if FLAW == "q scaled in half precision":
        q = (q * scale).to(q_desc.dtype)
    m = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)
    l = tl.zeros((BLOCK_M,), dtype=tl.float32)
    acc = tl.zeros((BLOCK_M, D), dtype=tl.float32)
    end = S_k // BLOCK_N * BLOCK_N if FLAW == "ragged tile left out" else S_k
    for start_n in range(0, end, BLOCK_N):
        row = start_n
        if FLAW == "keys count tiles":
            row = start_n // BLOCK_N
        if FLAW == "first tile only":
            row = 0
        k = k_desc.load([b_k, h_k, first_key + row, 0]).reshape([BLOCK_N, D])
        v = v_desc.load([b_k, h_k, first_key + row, 0]).reshape([BLOCK_N, D])
        if FLAW == "k not transposed":
            k = tl.trans(k)
        s = tl.dot(q, tl.trans(k), input_precision="ieee")
        if FLAW == "scores in half precision":
            s = s.to(q.dtype).to(tl.float32)
        if FLAW == "scale of its own":
            s = s * (D**-0.5)
        elif FLAW != "scale forgotten" and FLAW != "q scaled in half precision":
            s = s * scale
        if FLAW == "scaled scores in half precision":
            s = s.to(q.dtype).to(tl.float32)
        there = start_n + tl.arange(0, BLOCK_N)[None, :] < (S_q if FLAW == "mask ends at S_q" else S_k)
        if FLAW == "last key hidden":
            there = start_n + tl.arange(0, BLOCK_N)[None, :] < S_k - 1
        if FLAW == "padded keys set the maximum":
            m_new = tl.maximum(m, tl.max(s, axis=1))
            p = tl.where(there, tl.exp(s - m_new[:, None]), 0.0)
            alpha = tl.exp(m - m_new)
            m, l = m_new, l * alpha + tl.sum(p, axis=1)
        else:
            if FLAW == "hidden by 0":
                s = tl.where(there, s, 0.0)
            elif FLAW != "no mask on the scores":
                s = tl.where(there, s, -float("inf"))
            p, m, l, alpha = softmax_step(s, m, l)
        if FLAW == "acc not rescaled":
            alpha = alpha * 0.0 + 1.0
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        if FLAW == "acc in half precision":
            acc = acc.to(v.dtype).to(tl.float32)
    o = acc if FLAW == "not divided" else acc / l[:, None]
    o_desc.store([b, h_o, start_o, 0], o.to(o_desc.dtype).reshape([1, 1, BLOCK_M, D]))


def _flawed(kernel: Any, flaw: str) -> Any:
    flawed = chapter_5.flawed(kernel, flaw)
    flawed.__module__ = flawed.fn.__module__ = __name__
    return flawed


# ---------------------------------------------------------------- 8.4


def _backward(flaw: str) -> Any:
    def backward_once(q, k, v, o, do, lse, is_causal, scale):
        (B, H_q, S_q, D), (H_k, S_k) = q.shape, k.shape[1:3]
        if flaw == "flash_backward called":
            return backward.flash_backward(q, k, v, o, do, lse, None, is_causal, scale)
        dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
        if (q.numel() == 0 or k.numel() == 0) and flaw != "empty launched":
            return (dq, dk, dv) if flaw == "empty not zeroed" else (torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v))
        rows = {"BLOCK_M": 32, "BLOCK_D": D if flaw == "D not padded" else padded_d(D)}
        fixed = {**rows, "BLOCK_N": 32, "IS_CAUSAL": is_causal}
        row_blocks = S_q // 32 if flaw == "blocks rounded down" else triton.cdiv(S_q, 32)
        key_blocks = triton.cdiv(S_k, 32)
        delta = torch.empty((B, H_q, S_q), dtype=q.dtype if flaw == "delta like q" else torch.float32, device=q.device)

        def sum_rows():
            programs = {"no heads in delta": B, "no batch in delta": H_q}.get(flaw, B * H_q)
            of_do = Heads(do, o.stride()) if flaw == "strides of do taken from o" else heads(do)
            dlse = delta if flaw == "dlse read" else None
            backward.delta_kernel[(row_blocks * programs,)](heads(o), of_do, dlse, delta, H_q, S_q, D, **rows)

        used_scale = D**-0.5 if flaw == "scale of its own" else scale
        dkdv_grid = (key_blocks * B * (H_q if flaw == "query heads in dkdv" else H_k),)
        dq_grid = ((key_blocks if flaw == "key blocks in dq" else row_blocks) * B * H_q,)
        read = [heads(x) for x in ((q, v, k, do) if flaw == "k and v exchanged" else (q, k, v, do))]
        if flaw == "tensors without strides":
            read = [q, k, v, do]
        group = 1 if flaw == "group forgotten" else H_q // H_k
        dq_fixed = {**fixed, "IS_CAUSAL": False} if flaw == "dq not causal" else fixed

        def launch_dkdv():
            backward.dkdv_kernel[dkdv_grid](*read, heads(dk), heads(dv), lse, delta, H_k, S_q, S_k, D, used_scale, GROUP=group, **fixed)

        def launch_dq():
            backward.dq_kernel[dq_grid](*read, heads(dq), lse, delta, H_q, H_k, S_q, S_k, D, used_scale, **dq_fixed)

        if flaw == "dq before delta":
            launch_dq()
        if flaw == "delta by PyTorch":
            delta = (o.float() * do.float()).sum(-1)
        else:
            sum_rows()
        launch_dkdv()
        if flaw == "delta twice":
            sum_rows()
        if flaw == "second delta by PyTorch":
            delta = (o.float() * do.float()).sum(-1)
        if flaw != "dq before delta":
            launch_dq()
        if flaw == "dk twice":
            launch_dkdv()
        return (dk, dv, dq) if flaw == "another order" else (dq, dk, dv)

    return backward_once


TFLOPS = (
    (_by_matmuls(1, 2.5, 3.5), "half is missing"),
    (_by_matmuls(2, 2, 4), "backward is counted as a forward"),
    (_by_matmuls(2, 4, 6), "backward is counted as twice the forward"),
    (_by_matmuls(2, 7, 9), "7 matmuls are counted: that is what two kernels do"),
    (_by_matmuls(2, 10, 12), "5 forwards are counted"),
    (_by_matmuls(2, 5, 5), "fwd_bwd counts the backward alone"),
    (_by_matmuls(2, 5, 3.5), "fwd_bwd is the mean of the two"),
    (_by_matmuls(2, 5, 9), "fwd_bwd counts 9 matmuls"),
    (_by_factor(1e12), "divide by 10¹²"),
    (_by_factor(1e3), "these are GFLOP/s"),
    (_by_factor(1e12 / 2**40), "not 2⁴⁰"),
    (_by_factor(1e-3), "it is in seconds already"),
    (_tflops_without_heads, "the heads are missing"),
    (_tflops_to_cents, "the result is rounded to 2 decimals"),
    (_tflops_whole, "the result is cut to a whole number"),
    (_tflops_half, "something is rounded on the way"),
    (_tflops_times_seconds, "the time is multiplied"),
    (_by_pairs(_all_pairs), "pairs that the causal mask hides are counted"),
    (_by_pairs(_half_of_all), "half of all pairs are counted"),
    (_by_pairs(_strict), "the diagonal is not counted"),
    (_by_pairs(_top_left), "the mask starts at the top left"),
    (_by_pairs(_negative_rows), "never less than nothing"),
)
FITS = (
    (_by_bytes(lambda m, n, stages, D, itemsize: (m + 2 * n) * padded_d(D) * itemsize), "num_stages is not used"),
    (_by_bytes(lambda m, n, stages, D, itemsize: stages * (m + 2 * n) * padded_d(D) * itemsize), "q is counted num_stages times"),
    (_by_bytes(lambda m, n, stages, D, itemsize: (m + stages * n) * padded_d(D) * itemsize), "one of k and v is missing"),
    (_by_bytes(lambda m, n, stages, D, itemsize: 2 * stages * n * padded_d(D) * itemsize), "q is missing"),
    (_by_bytes(lambda m, n, stages, D, itemsize: (2 * m + 2 * stages * n) * padded_d(D) * itemsize), "o is counted too"),
    (_by_bytes(lambda m, n, stages, D, itemsize: _rows(n, m, stages) * padded_d(D) * itemsize), "block_m and block_n are exchanged"),
    (_by_bytes(lambda m, n, stages, D, itemsize: _rows(m, n, stages - 1) * padded_d(D) * itemsize), "one stage too few"),
    (
        _by_bytes(lambda m, n, stages, D, itemsize: _rows(m, n, stages) * padded_d(D) * itemsize + 4 * m * n),
        "the tile of scores is counted",
    ),
    (_by_bytes(lambda m, n, stages, D, itemsize: _rows(m, n, stages) * padded_d(D) * itemsize + 1024), "1 KB is added"),
    (_by_bytes(lambda m, n, stages, D, itemsize: _rows(m, n, stages) * padded_d(D)), "elements are counted, not bytes"),
    (_by_bytes(lambda m, n, stages, D, itemsize: _rows(m, n, stages) * padded_d(D) * 2), "itemsize is taken for 2"),
    (_by_bytes(lambda m, n, stages, D, itemsize: _rows(m, n, stages) * padded_d(D) * 4), "itemsize is taken for 4"),
    (_by_bytes(lambda m, n, stages, D, itemsize: _rows(m, n, stages) * (1 << D.bit_length()) * itemsize), "D = 256 is padded to 512"),
    (_by_bytes(lambda m, n, stages, D, itemsize: 2 * _rows(m, n, stages) * padded_d(D) * itemsize), "q's tile stays, num_stages tiles"),
    (_by_bytes(lambda m, n, stages, D, itemsize: _rows(m, n, stages) * D * itemsize), "D is not padded"),
    (_by_bytes(lambda m, n, stages, D, itemsize: _rows(m, n, stages) * _power_of_two(D) * itemsize), "D = 8 stays 8"),
    (_by_bytes(lambda m, n, stages, D, itemsize: _rows(m, n, stages) * max(padded_d(D), 64) * itemsize), "D is padded to at least 64"),
    (_by_bytes(lambda m, n, stages, D, itemsize: _rows(m, n, stages) * padded_d(D) * itemsize / 1024), "compared with kilobytes"),
    (_fits_below, "a tile that needs exactly the limit fits"),
    (_fits_turned_round, "the comparison is turned round"),
    (_fits_always, "the limit is not asked"),
    (_fits_in_bytes, "want True or False"),
)
KERNEL_FLAWS = {
    "tile not reshaped": "does not run",
    "scale forgotten": "scale is forgotten",
    "k not transposed": "k is not transposed",
    "not divided": "acc is not divided",
    "keys count tiles": "the second tile of k and v is loaded from row 1",
    "first tile only": "every step loads the first tile of k and v",
    "mask ends at S_q": "keys from S_q on do not count",
    "acc not rescaled": "acc is not rescaled",
    "row counts tiles": "the second block of rows is never stored",
    "no mask on the scores": "keys past S_k are zeros, and a score of 0",
    "hidden by 0": "keys past S_k are zeros, and a score of 0",
    "padded keys set the maximum": "hide the scores before the maximum",
    "ragged tile left out": "the ragged last tile of keys is left out",
    "last key hidden": "a key that is there is hidden",
    "row blocks rounded down": "a head has tl.cdiv(S_q, BLOCK_M) row blocks",
    "head of k and v forgotten": "k and v are loaded from head 0",
    "heads as rows of k and v": "k and v of head 1 are 0",
    "heads as rows of o": "only head 0 of o is stored",
    "batch and head exchanged": "b and h are coordinates of their own",
    "scale of its own": "the scale is computed in the kernel",
    "acc in half precision": "acc is kept in fp16",
    "scores in half precision": "the scores overflow",
    "scaled scores in half precision": "the scaled scores overflow",
    "q scaled in half precision": "scale · q is rounded to fp16",
}
BACKWARD_FLAWS = {
    "delta twice": "delta_kernel is launched 2 times",
    "delta by PyTorch": "delta_kernel is never launched",
    "second delta by PyTorch": "dq_kernel reads another delta",
    "dq before delta": "dq_kernel is launched before delta_kernel",
    "delta like q": "delta is float16, want float32",
    "dlse read": "gets a tensor for dlse_ptr",
    "tensors without strides": "want heads(q)",
    "group forgotten": "GROUP = 1, want 3",
    "flash_backward called": "flash_backward launches the kernels here",
    "dk twice": "dkdv_kernel is launched 2 times",
    "another order": "here they come as dk, dv, dq",
    "k and v exchanged": "dkdv_kernel gets v where k belongs",
    "strides of do taken from o": "delta_kernel gets wrong strides for do",
    "D not padded": "want 16: padded_d(D)",
    "blocks rounded down": "the number of blocks is rounded down",
    "query heads in dkdv": "one program for each query head",
    "no heads in delta": "H_q is missing in delta_kernel's grid",
    "no batch in delta": "the batch is missing in delta_kernel's grid",
    "key blocks in dq": "dq_kernel divides the other length",
    "dq not causal": "is_causal does not reach dq_kernel",
    "scale of its own": "scale does not reach",
    "empty launched": "is launched, though nothing is there",
    "empty not zeroed": "every gradient is 0",
}
WRONG_ANSWERS = (
    *(WrongAnswer("8.1", answer, diagnosis) for answer, diagnosis in TFLOPS),
    *(WrongAnswer("8.2", answer, diagnosis) for answer, diagnosis in FITS),
    *(WrongAnswer("8.3", _flawed(_descriptor, flaw), diagnosis) for flaw, diagnosis in KERNEL_FLAWS.items()),
    *(WrongAnswer("8.4", _backward(flaw), diagnosis) for flaw, diagnosis in BACKWARD_FLAWS.items()),
)
