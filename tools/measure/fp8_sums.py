"""Chapter 14: sums of FP8 products on Hopper's tensor cores: one chain of wgmmas, or blocks of it added in float32."""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

PART = 128
TILE = gl.constexpr(64)


@gluon.jit
def sums_kernel(a_desc, b_desc, out_ptr, K, BY_BLOCKS: gl.constexpr):
    """out = a bᵀ, [64, 64] float32. a, b: descriptors of (64, K) e4m3 with tiles (64, PART). Grid: (1,)."""
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, TILE, 32])
    a = gl.allocate_shared_memory(a_desc.dtype, a_desc.block_type.shape, a_desc.layout)
    b = gl.allocate_shared_memory(b_desc.dtype, b_desc.block_type.shape, b_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)
    zeros = gl.zeros([TILE, TILE], gl.float32, layout)
    acc = zeros
    for i in range(K // a_desc.block_type.shape[1]):
        mbarrier.expect(full, a_desc.block_type.nbytes + b_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(a_desc, [0, i * a_desc.block_type.shape[1]], full, a)
        tma.async_copy_global_to_shared(b_desc, [0, i * a_desc.block_type.shape[1]], full, b)
        mbarrier.wait(full, i % 2)
        if BY_BLOCKS:
            acc += warpgroup_mma(a, b.permute((1, 0)), zeros, use_acc=False)
        else:
            acc = warpgroup_mma(a, b.permute((1, 0)), acc)
    rows = gl.arange(0, TILE, gl.SliceLayout(1, layout))
    columns = gl.arange(0, TILE, gl.SliceLayout(0, layout))
    gl.store(out_ptr + rows[:, None] * TILE + columns[None, :], acc)


def sums(a: torch.Tensor, b: torch.Tensor, by_blocks: bool) -> torch.Tensor:
    """a bᵀ, (64, 64) float32, for contiguous a and b (64, K) e4m3, K a multiple of PART."""
    out = torch.full((64, 64), torch.nan, device=a.device)
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=8, rank=2)
    descriptors = [TensorDescriptor(x, list(x.shape), list(x.stride()), [64, PART], layout) for x in (a, b)]
    sums_kernel[(1,)](*descriptors, out, a.shape[1], by_blocks, num_warps=4)
    return out
