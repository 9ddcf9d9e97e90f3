"""Runs a reader's attend, which is no kernel, as one: on the tiles of one program."""

import re

from fa_tutorial.exercises.forward_cases import noted
from fa_tutorial.exercises.running import Wrong, chain
from fa_tutorial.forward import attend  # the reader's takes its place
from fa_tutorial.matmul import tl, triton
from fa_tutorial.source import defined, source_of


@triton.jit
def steps_kernel(q_ptr, k, v, m_ptr, l_ptr, acc_ptr, b, h_k, start_n, last_seen_ptr, S_k, D, scale, MASK: tl.constexpr,
                 BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """m, l and acc after the keys before start_n, without a mask, and then the tile at start_n. One program."""
    b, h_k = b + tl.program_id(0), h_k + tl.program_id(0)  # tensors, as in a kernel
    offs_m, offs_d = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    places = offs_m[:, None] * BLOCK_D + offs_d[None, :]
    q_tile, last_seen = tl.load(q_ptr + places), tl.load(last_seen_ptr + offs_m)
    m, l = tl.full((BLOCK_M,), -float("inf"), tl.float32), tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for start in range(0, start_n, BLOCK_N):
        m, l, acc = attend(q_tile, k, v, m, l, acc, b, h_k, start, last_seen, S_k, D, scale, False, BLOCK_N, BLOCK_D)
    m, l, acc = attend(q_tile, k, v, m, l, acc, b, h_k, start_n, last_seen, S_k, D, scale, MASK, BLOCK_N, BLOCK_D)
    tl.store(m_ptr + offs_m, m)
    tl.store(l_ptr + offs_m, l)
    tl.store(acc_ptr + places, acc)


class Steps:
    """An attend as a kernel: steps_kernel, which calls it. In the interpreter, Wrong where a tile without a mask is compared."""

    def __init__(self, attend):
        self.fn = attend.fn
        self.kernel = defined(source_of(steps_kernel), globals() | {"attend": attend})["steps_kernel"]

    def __getitem__(self, grid):
        def launch(*args, MASK, BLOCK_N, BLOCK_D):
            block_m, told = len(args[9]), ""
            with noted() as (_, compared):
                try:
                    self.kernel[grid](*args, MASK, BLOCK_M=block_m, BLOCK_N=BLOCK_N, BLOCK_D=BLOCK_D)
                except Exception as error:
                    if not re.search("Expected pointer argument to have shape|non-iterable NoneType", f"{error} {chain(error)[-1]}"):
                        raise
                    told = "returns something else than m [BLOCK_M], l [BLOCK_M] and acc [BLOCK_M, BLOCK_D], in this order"
            if not MASK and len({block_m, BLOCK_N, BLOCK_D}) == 3:
                if BLOCK_N in compared:
                    told = "loads are masked though MASK is False: every row of the tile exists then, so pass None for S_k to load_tile"
                if block_m * BLOCK_N in compared:
                    told = "scores are masked though MASK is False: compare only under `if MASK:`"
            if told:  # raised here, because there the error would be its context, and told in its place
                raise Wrong(told)

        return launch
