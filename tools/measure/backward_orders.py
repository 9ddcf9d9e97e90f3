"""Chapter 9: its backward with another order of a block's lines, D = 128."""

import functools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from fa_tutorial import hopper
from fa_tutorial.bench.cases import Case, Shape
from fa_tutorial.bench.chapter_8 import at_4096, inputs
from fa_tutorial.bench.sweep import Measurement
from fa_tutorial.bench.timing import timed_in_turns
from fa_tutorial.source import defined, edited, source_of
from measure.clocks import cycles_in_turns
from measure.turns import by_shape

ISSUE_S = "        ahead = issue_s(after, shared, start_n, sizes, C, flags)  # issue s′, which starts at −lse / scale\n"
WAIT_DP = "    dp_t = warpgroup_mma_wait(0, [dp_t])  # wait for dp\n"
AHEAD = "    p_t = ahead if UNDER_DQ else gl.exp2(ahead * scale_log2)\n"
# s′ is issued behind dp, so the tensor cores compute it while ds is computed.
UNDER_DS = [
    ("    if MORE:\n" + ISSUE_S, "", 1),
    (WAIT_DP, "    dp_t = warpgroup_mma_wait(1 if MORE else 0, [dp_t])\n", 1),
    (AHEAD, AHEAD + "    if MORE:\n" + ISSUE_S, 1),
]
# Each matmul is waited for before the next line.
LINE_BY_LINE = [
    (
        "    dp_t = issue_dp(block, shared, C, MINUS_DELTA=UNDER_DQ)  # issue dp (6.9), which starts at −delta\n"
        + AHEAD + WAIT_DP,
        "    s_t = warpgroup_mma_wait(0, [issue_s(block, shared, start_n, sizes, C, flags)])\n"
        "    p_t = gl.exp2(s_t * scale_log2)\n"
        "    consumer_wait(shared.do, block.n)\n"
        "    dv = warpgroup_mma_wait(0, [issue_dkdv(pack(p_t, dtype), dv, shared.do, block.n)])\n"
        "    dp_t = warpgroup_mma_wait(0, [issue_dp(block, shared, C, MINUS_DELTA=UNDER_DQ)])\n",
        1,
    ),
    ("    dk = issue_dkdv(ds_pairs, dk, shared.q, block.n)  # issue dk (6.12)\n    if not UNDER_DQ:\n",
     "    if not UNDER_DQ:\n", 1),
    ("    if MORE:\n" + ISSUE_S, "", 1),
    ("    if MORE and UNDER_DQ:\n", "    if True:\n        dq = warpgroup_mma_wait(0, [dq])\n"
     "        add_dq(dq, block, dq_desc, shared, C)\n"
     "        dk = warpgroup_mma_wait(0, [issue_dkdv(ds_pairs, dk, shared.q, block.n)])\n"
     "        consumer_release(shared.q, block.n)\n    elif MORE and UNDER_DQ:\n", 1),
    ("        x = warpgroup_mma_wait(0, [issue_s(block, shared, start_n, sizes, C, flags)])\n"
     "        if flags.UNDER_DQ:\n", "        x = scale_log2\n        if False:\n", 1),
]  # fmt: skip
# Rings of q and do with three stages, for which k's has one.
THREE_STAGES = [
    ("STAGES = gl.constexpr(2)  # of every ring but v\n",
     "STAGES = gl.constexpr(2)\nOF_Q = gl.constexpr(3)\nOF_K = gl.constexpr(1)\n", 1),
    ("    stage = stage_of(n, STAGES)\n    mbarrier.expect(", "    stage = stage_of(n, OF_Q)\n    mbarrier.expect(", 1),
    ("values.index(stage_of(n, STAGES))", "values.index(stage_of(n, OF_Q))", 1),
    ("ring.tiles.index(stage_of(n, STAGES))", "ring.tiles.index(stage_of(n, OF_Q))", 1),
    ("make_pipeline(q_desc, STAGES, 2)", "make_pipeline(q_desc, OF_Q, 2)", 1),
    ("[STAGES, 1, 1, BLOCK_M, D]", "[OF_Q, 1, 1, BLOCK_M, D]", 1),
    ("            make_barriers(STAGES, 1),\n", "            make_barriers(OF_Q, 1),\n", 1),
    ("(gl.float32, [STAGES, 1, BLOCK_M]", "(gl.float32, [OF_Q, 1, BLOCK_M]", 2),
    ("stage_of(turn, STAGES)), count=1)", "stage_of(turn, OF_K)), count=1)", 1),
    ("make_pipeline(k_desc, STAGES, 2),\n        make_numbers(STAGES)",
     "make_pipeline(k_desc, OF_K, 2),\n        make_numbers(OF_K)", 1),
]  # fmt: skip
ORDERS: dict[str, list[tuple]] = {
    "the kernel's": [],
    "s′ right behind dp": UNDER_DS,
    "line by line": LINE_BY_LINE,
    "the kernel's, three stages": THREE_STAGES,
    "s′ right behind dp, three stages": UNDER_DS + THREE_STAGES,
}


@functools.cache
def backward(order: str) -> Callable:
    """hopper.flash_backward with one of ORDERS."""
    module = hopper.backward
    names = [('("hopper backward", ', f'("{order}", ', 1), ('("prepare dq", ', f'("{order} 1", ', 1)]
    text = edited(source_of(module), *ORDERS[order], *names)
    return defined(text, {"__name__": module.__name__})["flash_backward"]


def order_cases() -> Iterator[Measurement]:
    """The backward in each order, in turns, full, S = 4,096: the three launches of a call, as chapter 9 counts them."""
    return by_shape(9, "order", _orders_in_turns, [at_4096(128, False)], ORDERS)


def _orders_in_turns(shape: Shape) -> dict[str, dict[str, Any]]:
    q, k, v = inputs(shape)
    do = torch.randn_like(q)
    o, lse = hopper.flash_forward(q, k, v, False, shape.D**-0.5)
    arguments = q, k, v, o, do, lse, None, False, shape.D**-0.5
    calls = {order: partial(backward(order), *arguments) for order in ORDERS}
    truth = hopper.flash_backward(*arguments)
    errors = {
        order: max((x - true).abs().max().item() for x, true in zip(call(), truth, strict=True))
        for order, call in calls.items()
    }
    cycles = cycles_in_turns(calls)
    rows = timed_in_turns(calls, flops=Case("tuned", "bwd", "fp16", shape).flops())
    return {order: row | {"cycles": cycles[order], "differs": round(errors[order], 5)} for order, row in rows.items()}
