"""Exercise 8.4, backward_once."""

import torch

from fa_tutorial import backward, hardware, reference, tiles
from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.launches import Launches

triton = hardware.require_triton("Exercise 8.4")


def backward_once(q, k, v, o, do, lse, is_causal, scale):
    """(dq, dk, dv) by the three kernels of fa_tutorial.backward, with one delta for both others."""
    (B, H_q, S_q, D), (H_k, S_k) = q.shape, k.shape[1:3]
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    if q.numel() == 0 or k.numel() == 0:
        return dq, dk, dv
    block = 32
    row_grid = (triton.cdiv(S_q, block) * B * H_q,)
    key_grid = (triton.cdiv(S_k, block) * B * H_k,)
    tile = {"BLOCK_M": block, "BLOCK_D": tiles.padded_d(D)}

    delta = torch.empty((B, H_q, S_q), dtype=torch.float32, device=q.device)
    backward.delta_kernel[row_grid](tiles.heads(o), tiles.heads(do), None, delta, H_q, S_q, D, **tile)

    tile |= {"BLOCK_N": block, "IS_CAUSAL": is_causal}
    inputs = [tiles.heads(x) for x in (q, k, v, do)]
    dk_dv = tiles.heads(dk), tiles.heads(dv)
    sizes = S_q, S_k, D, scale
    backward.dkdv_kernel[key_grid](*inputs, *dk_dv, lse, delta, H_k, *sizes, GROUP=H_q // H_k, **tile)
    backward.dq_kernel[row_grid](*inputs, tiles.heads(dq), lse, delta, H_q, H_k, *sizes, **tile)
    return dq, dk, dv


ORDERS = ("dk, dv, dq", "dq, dv, dk", "dk, dq, dv", "dv, dq, dk", "dv, dk, dq")
MISTAKES = {
    **{order: f"the gradients come as dq, dk, dv, and here they come as {order}" for order in ORDERS},
    "not_zeroed": "where q or k is empty nothing is seen, so every gradient is 0",
}

CONDITIONS = {
    "half": "in fp16 dq, dk and dv are fp16, and delta is float32",
    "views": "q, k, v, o and do may be views: heads(x) takes each one's own strides",
    "empty": "where q or k is empty nothing is launched, and every gradient is 0",
}


def twin(q, k, v, o, do, lse, is_causal, scale, mistake=None):
    gradients = reference.gradients(*(x.detach().cpu() for x in (q, k, v, do)), is_causal, scale)
    if mistake == "not_zeroed" and not (q.numel() and k.numel()):
        return tuple(x * torch.nan for x in gradients)
    given = dict(zip(("dq", "dk", "dv"), gradients, strict=True))
    return tuple(given[name] for name in (mistake if mistake in ORDERS else "dq, dk, dv").split(", "))


def tolerance(args, part):
    """The kernels round p and ds to the inputs' dtype, and sum them over every row or key that is there."""
    want = dict(zip(("dq", "dk", "dv"), twin(*args), strict=True))[part]
    share = 1e-4 if args[0].dtype == torch.float32 else 0.02
    return 0.0, share * max(1.0, float(want.abs().max()) if want.numel() else 0.0)


def inputs():
    BHSD, BSHD, BHDS = (0, 1, 2, 3), (0, 2, 1, 3), (0, 1, 3, 2)

    def sizes(B, H_q, H_k, S_q, S_k, D, on, is_causal=False, scale=0.5, dtype=torch.float32, orders=(BHSD,) * 5, ones=False, edge=""):
        """orders: of the dimensions in memory, of q, k, v, o and do. ones: do is expanded from one element."""
        seed = torch.Generator().manual_seed(0)
        shapes = (B, H_q, S_q, D), (B, H_k, S_k, D), (B, H_k, S_k, D), (B, H_q, S_q, D)
        q, k, v, do = (torch.randn(shape, generator=seed).to(dtype) for shape in shapes)
        do = torch.ones((), dtype=dtype).expand(do.shape) if ones else do
        o, lse = reference.attention(q, k, v, is_causal, scale)
        tensors = [x if x is do and ones else x.permute(order).contiguous().permute([order.index(dim) for dim in range(4)])
                   for x, order in zip((q, k, v, o.to(dtype), do), orders, strict=True)]  # fmt: skip
        tensors = [x.to(hardware.device()) for x in (*tensors, lse.float().contiguous())]
        if ones:
            tensors[4] = torch.ones((), dtype=dtype, device=hardware.device()).expand(do.shape)
        return case(*tensors, is_causal, scale, on=on, otherwise="the gradients are those of dkdv_kernel and dq_kernel", edge=edge)

    yield sizes(1, 1, 1, 4, 4, 4, "S_q = S_k = D = 4")
    yield sizes(2, 3, 1, 5, 3, 6, "B = 2, H_q = 3, H_k = 1, S_q = 5, S_k = 3, D = 6, causal, scale = 0.25", True, scale=0.25)
    yield sizes(1, 1, 1, 40, 33, 4, "S_q = 40, S_k = 33")
    yield sizes(1, 2, 2, 4, 5, 4, "q, k, v, o and do laid out differently", orders=(BSHD, BHDS, BSHD, BHSD, BHDS), edge="views")
    yield sizes(1, 1, 1, 4, 4, 4, "do = 1, expanded from one element", ones=True, edge="views")
    yield sizes(1, 1, 1, 4, 4, 4, "fp16, S_q = S_k = D = 4", dtype=torch.float16, edge="half")
    yield sizes(1, 2, 1, 19, 40, 20, "fp16, causal, H_q = 2, H_k = 1, S_q = 19, S_k = 40, D = 20", True, dtype=torch.float16, edge="half")
    for empty, on in (((2, 2, 2, 0, 3, 4), "S_q = 0"), ((2, 2, 2, 3, 0, 4), "S_k = 0"), ((0, 2, 2, 3, 3, 4), "B = 0")):
        yield sizes(*empty, on, edge="empty")


EXERCISE = Exercise(
    id="8.4",
    task="Write backward_once(q, k, v, o, do, lse, is_causal, scale) -> (dq, dk, dv): launch fa_tutorial.backward's delta_kernel once, and "
    "dkdv_kernel and dq_kernel with its delta.",
    conditions=CONDITIONS,
    hints=(
        "Three launches, in which order? delta is (B, H_q, S_q) float32, contiguous, and so is lse; dq, dk and dv are of q's dtype.",
        "fa_tutorial.tiles.heads(x) is a tensor with its strides, as the kernels take q, k, v, o, do, dq, dk and dv; lse and delta go in as they "
        "are, and None for dlse_ptr. BLOCK_M = BLOCK_N = 32 will do, BLOCK_D = tiles.padded_d(D), and GROUP = H_q // H_k for dkdv_kernel.",
        "Grids: cdiv(S_q, BLOCK_M) · B · H_q for delta and dq, cdiv(S_k, BLOCK_N) · B · H_k for dk and dv.",
    ),
    solution=backward_once,
    reasoning="delta needs o and do, 2 · S_q · D elements a head, for S_q numbers. A dkdv_kernel that sums it itself reads o in every step, for "
    "every block of keys again, and keeps one more tile in shared memory; dq_kernel then sums it once more. As a kernel of its own it costs one "
    "pass over o and do, and what the other two read is 4 bytes a row.",
    more="The package's backward.flash_backward chooses each kernel's tile by D, dtype and GPU, and takes a gradient of lse.",
    inputs=inputs,
    twin=twin,
    mistakes=MISTAKES,
    parts=("dq", "dk", "dv"),
    tolerance=tolerance,
    watch=Launches,
)
