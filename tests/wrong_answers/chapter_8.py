"""Chapter 8: a result that is rounded, a limit that is not asked, tiles of the wrong shape, launches with wrong arguments or in the wrong order."""

import torch

from fa_tutorial import backward
from fa_tutorial.matmul import tl, triton
from fa_tutorial.tiles import Heads, heads, padded_d


def tflops_in_half_precision(B, H, S_q, S_k, D, is_causal, mode, seconds):
    pairs = sum(max(0, i + 1 + S_k - S_q) for i in range(S_q)) if is_causal else S_q * S_k
    flops = 2 * {"fwd": 2, "bwd": 5, "fwd_bwd": 7}[mode] * B * H * pairs * D
    return torch.tensor(flops / seconds / 1e12, dtype=torch.float64).half()


def _bytes(config, D, itemsize):
    return (config.block_m + 2 * config.num_stages * config.block_n) * padded_d(D) * itemsize


def fits_turned_round(config, D, itemsize, shared_memory_limit):
    return shared_memory_limit <= _bytes(config, D, itemsize)


def fits_always(config, D, itemsize, shared_memory_limit):
    return True


def fits_in_bytes(config, D, itemsize, shared_memory_limit):
    return _bytes(config, D, itemsize)


@triton.jit
def forward_without_reshape(
    q_desc, k_desc, v_desc, o_desc, H, S_q, S_k, scale, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr
):
    q = q_desc.load([0, 0, 0, 0])
    k = k_desc.load([0, 0, 0, 0]).reshape([BLOCK_N, D])
    s = scale * tl.dot(q, tl.trans(k), input_precision="ieee")
    o_desc.store([0, 0, 0, 0], s.to(o_desc.dtype).reshape([1, 1, BLOCK_M, D]))


@triton.jit
def forward_stored_without_reshape(
    q_desc, k_desc, v_desc, o_desc, H, S_q, S_k, scale, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr
):
    o_desc.store([0, 0, 0, 0], v_desc.load([0, 0, 0, 0]).reshape([BLOCK_M, D]))


def _backward(flaw):
    """backward_once with one flaw in its launches."""

    def backward_once(q, k, v, o, do, lse, is_causal, scale):
        (B, H_q, S_q, D), (H_k, S_k) = q.shape, k.shape[1:3]
        if flaw == "flash_backward called":
            return backward.flash_backward(q, k, v, o, do, lse, None, is_causal, scale)
        dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
        if (q.numel() == 0 or k.numel() == 0) and flaw != "empty launched":
            return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
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
        return dq, dk, dv

    backward_once.__name__ = flaw.replace(" ", "_")
    return backward_once


BACKWARD_FLAWS = {
    "delta twice": "delta_kernel is launched 2 times",
    "delta by PyTorch": "delta_kernel is never launched",
    "second delta by PyTorch": "dq_kernel reads another delta",
    "dq before delta": "dq_kernel is launched before delta_kernel",
    "delta like q": "delta is float16, want float32",
    "dlse read": "gets dlse = a tensor, want None",
    "tensors without strides": "want heads(q)",
    "group forgotten": "GROUP = 1, want 3",
    "flash_backward called": "flash_backward launches the kernels here",
    "dk twice": "dkdv_kernel is launched 2 times",
    "k and v exchanged": "dkdv_kernel gets v where k belongs",
    "strides of do taken from o": "delta_kernel gets wrong strides for do",
    "D not padded": "want 16: tiles.padded_d(D)",
    "blocks rounded down": "the number of blocks is rounded down",
    "query heads in dkdv": "one program for each query head",
    "no heads in delta": "H_q is missing in delta_kernel's grid",
    "no batch in delta": "the batch is missing in delta_kernel's grid",
    "key blocks in dq": "dq_kernel divides the other length",
    "dq not causal": "dq_kernel gets IS_CAUSAL = False, want True",
    "scale of its own": "the scale does not reach it",
    "empty launched": "is launched, though nothing is there",
}

WRONG_ANSWERS = (
    ("8.1", tflops_in_half_precision, "something is rounded on the way"),
    ("8.2", fits_turned_round, "the comparison is turned round"),
    ("8.2", fits_always, "the limit is not asked"),
    ("8.2", fits_in_bytes, "want True or False"),
    ("8.3", forward_without_reshape, "drop the ones by .reshape([rows, D])"),
    ("8.3", forward_stored_without_reshape, "give o its ones back by .reshape([1, 1, BLOCK_M, D])"),
    *(("8.4", _backward(flaw), words) for flaw, words in BACKWARD_FLAWS.items()),
)
