"""Chapter 9: its loops, the finished kernel's steps, the ladder's errors, and from which size on "auto" takes
Hopper's kernels.
"""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from fa_tutorial import hardware, hopper, reference, tuned
from fa_tutorial.bench.cases import GRIDS, Case, Shape, about
from fa_tutorial.bench.chapter_8 import at_4096, flops_of, inputs
from fa_tutorial.bench.measure import measure_in_turns
from fa_tutorial.bench.sweep import Measurement
from fa_tutorial.bench.timing import graph_of, randn, timed_in_turns
from fa_tutorial.tuned import steps
from measure import backward_orders, chapter_8_clock, finished_clock, finished_parts, loops
from measure.chapter_8 import repeated_us
from measure.clocks import cycles_in_turns, settled_in_turns
from measure.stamps import completed, mean_parts, mean_shares, of_the_usual
from measure.turns import by_shape, in_turns

hardware.require_triton("Chapter 9's measurements")
from fa_tutorial.bench.chapter_9 import LATER, LOOP_CHANGES, STAMPS  # noqa: E402
from fa_tutorial.hopper import ladder  # noqa: E402

SPEEDS = ("hopper", "tuned", "basic", "sdpa_cudnn", "sdpa_flash", "flash_attn_4")


def speed_cases() -> Iterator[Measurement]:
    """The course's kernels and the fastest others on the literature's grid, those of a point in turns."""
    for shape, mode in itertools.product(GRIDS["literature"].shapes, ("fwd", "bwd")):
        cases = [Case(provider, mode, "fp16", shape) for provider in SPEEDS]
        yield from in_turns({place: case.about() for place, case in enumerate(cases)}, measure_in_turns, cases)


Call = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool, float], Any]
STEPS = ("overlap", "persistent", "counter")


def step_cases() -> Iterator[Measurement]:
    """Three of the finished kernel's steps, in turns, D = 64: a program for each work tile; persistent ones that take
    fixed numbers; those that draw them from a counter."""
    for shape in (at_4096(64, True), Shape(16, 32, 32, 1024, 1024, 64, False)):
        yield from by_shape(9, "step", _steps_in_turns, [shape], STEPS)


def _steps_in_turns(shape: Shape) -> dict[str, dict[str, Any]]:
    arguments = (*inputs(shape), shape.is_causal, shape.D**-0.5)
    steps = {name: partial(hopper.flash_forward, step=hopper.forward.STEPS[name]) for name in STEPS}
    calls = {name: partial(step, *arguments) for name, step in steps.items()}
    return timed_in_turns(calls, flops=flops_of(shape), rounds=6)


def clocked_cases() -> Iterator[Measurement]:
    """When a consumer is where in its loop, by the SM's clock: D = 128, full, S = 4,096, 3 stages."""
    shape = at_4096(128, False)
    for loop in ("two stops", "one stop", "overlapped"):
        yield about(9, "clocked", loop, **vars(shape)), partial(_clocked_row, shape, loop)
    yield about(9, "clocked", "one stop, its maximum", **vars(shape)), partial(_first_row, shape, maximum=True)
    for instead in loops.INSTEAD:
        words = about(9, "clocked", f"one stop, consumer 1 {instead}", **vars(shape))
        yield words, partial(_first_row, shape, instead=instead)


def _clocked_row(shape: Shape, loop: str) -> dict[str, Any]:
    """The SM cycles of calls with stamps; of the last the mean cycles from each of STAMPS to the next, of all
    blocks in the middle of the loop; the stamps of both consumers of one program in four blocks, from the first of them
    on; and of several programs the mean share of the time in which 0, 1, 2 of their consumers are at a softmax."""
    q, k, v = inputs(shape)
    stamps = stamps_of(shape)
    call = partial(loops.flash_forward, q, k, v, False, shape.D**-0.5, loop=loop, stamps=stamps)
    cycles = cycles_in_turns({loop: call}, rounds=1)[loop]
    clock = completed(stamps.cpu())[:, :, 4:-4]
    return {
        "call": cycles,
        "cycles": mean_parts(clock),
        "stamps": of_the_usual(clock),
        "softmax_at_once": _at_once(clock),
    }


def _first_row(shape: Shape, **change: Any) -> dict[str, Any]:
    """The mean cycles of consumer 0, by STAMPS. With `maximum`, "stop" is the maximum's, "softmax" that of the
    exponentials and their sum; instead: what consumer 1 does, one of loops.INSTEAD."""
    q, k, v = inputs(shape)
    call = partial(loops.flash_forward, q, k, v, False, shape.D**-0.5, loop="one stop", **change)
    return {"cycles": mean_parts(_clock_of(call, shape)[:, :1])}


def stamps_of(shape: Shape) -> torch.Tensor:
    """Room for the stamps of both consumers of each program."""
    blocks = shape.S_q // ladder.ROWS.value
    sizes = shape.B * shape.H_q * blocks, 2, blocks, len(STAMPS)
    return torch.zeros(sizes, dtype=torch.int64, device="cuda")


def _clock_of(call: Callable[..., Any], shape: Shape) -> torch.Tensor:
    """The stamps of call(stamps=…), of both consumers of each program, in the middle of the loop."""
    stamps = stamps_of(shape)
    for _ in range(3):
        call(stamps=stamps)
    return completed(stamps.cpu())[:, :, 4:-4]


def _at_once(clock: torch.Tensor) -> list[float]:
    """Of several programs the mean share of the time in which 0, 1, 2 of their consumers are at a softmax."""
    return mean_shares(clock[5::37])


PART_OF = {f"finished, {part}": part for part in finished_parts.PARTS}


def loops_of() -> dict[str, Call]:
    """Name -> a forward that takes 64 rows and 128 keys, or as many scores, a block, D = 128: chapter 8's, each loop of
    chapter 9, the finished kernel, and this without parts of its softmax."""
    found: dict[str, Call] = {"chapter 8's": partial(tuned.flash_forward, tile=steps.LARGER[128])}
    found |= {loop: partial(loops.flash_forward, loop=loop) for loop in LOOP_CHANGES}
    found["two stops, consumer 1 late"] = partial(loops.flash_forward, loop="two stops", late=LATER)
    found["one stop, two stages"] = partial(loops.flash_forward, loop="one stop", stages=2)
    for name, step in (("finished, a program each", "overlap"), ("finished", "order")):
        found[name] = partial(hopper.flash_forward, step=hopper.forward.STEPS[step])
    return found | {name: finished_parts.forward(part) for name, part in PART_OF.items()}


def loop_cases() -> Iterator[Measurement]:
    """Each of loops_of in turns, full, S = 4,096: cycles, MHz and TFLOP/s of the same calls; of most loops by stamps,
    in further calls, the share of the time in which 0, 1, 2 consumers are at a softmax; of the finished kernel's forms
    the instructions of a block. And the finished one with work tiles that 132 SMs share evenly."""
    yield from by_shape(9, "loop", partial(_settled_rows, loops_of()), [at_4096(128, False)], loops_of())
    shared = {"finished": loops_of()["finished"]}
    yield from by_shape(9, "loop", partial(_settled_rows, shared), [Shape(4, 33, 33, 4096, 4096, 128, False)], shared)


def _settled_rows(forwards: dict[str, Call], shape: Shape) -> dict[str, dict[str, Any]]:
    q, k, v = inputs(shape)
    calls = {name: partial(call, q, k, v, False, shape.D**-0.5) for name, call in forwards.items()}
    rows = settled_in_turns(calls, flops_of(shape))
    for name, row in rows.items():
        if name in loops.STAMPED or name.endswith("late"):
            row["softmax_at_once"] = _at_once(_clock_of(calls[name], shape))
        elif name.startswith("finished"):
            row["instructions"] = finished_parts.instructions(PART_OF.get(name, "hopper"))
    return rows


def error_cases() -> Iterator[Measurement]:
    """The largest errors of the ladder's kernels, and of plain attention."""
    yield about(9, "ladder_errors", "hopper"), _error_row


def _error_row() -> dict[str, Any]:
    x = randn(512, 64)
    q, k = x[:64], x[128:256]
    scores = (ladder.scores(q, k) - q.float() @ k.float().T).abs().max().item()
    q, k, v = (randn(2, 4, 1024, 64) for _ in range(3))
    truth, _ = reference.attention(q, k, v)
    found = {"forward": ladder.flash_forward(q, k, v, 64**-0.5), "plain": reference.naive_attention(q, k, v)}
    errors = {name: (o - truth).abs().max().item() for name, o in found.items()}
    return {"copied": torch.equal(ladder.copy(x), x), "scores": scores} | errors


def auto_rule_cases() -> Iterator[Measurement]:
    """Small inputs, heads = B · H: the GPU's time alone, replayed from a CUDA graph. attention.HOPPER_FROM comes from
    these.
    """
    sizes = itertools.product(
        (256, 512, 1024), (64, 128), (16, 64, 256, 1024), (False, True), ("fwd", "bwd"), ("tuned", "hopper")
    )
    for S, D, heads, is_causal, mode, provider in sizes:
        point = {"S": S, "D": D, "heads": heads, "is_causal": is_causal, "mode": mode}
        yield about(9, "auto_rule", provider, **point), partial(_auto_rule_row, provider, **point)


def _auto_rule_row(provider: str, S: int, D: int, heads: int, is_causal: bool, mode: str) -> dict[str, float]:
    """The launchers themselves: autograd would run the backward on the forward's stream, which is not the one that is
    captured.
    """
    launchers, scale = {"tuned": tuned, "hopper": hopper}[provider], D**-0.5
    q, k, v, do = (randn(1, heads, S, D) for _ in range(4))
    call = partial(launchers.flash_forward, q, k, v, is_causal, scale)
    if mode == "bwd":
        o, lse = call()
        call = partial(launchers.flash_backward, q, k, v, o, do, lse, None, is_causal, scale)
    return {"graph_us": repeated_us(graph_of(call).replay)}


def kernels_cases() -> Iterator[Measurement]:
    """Everything of this module but the speeds, whose rows are attention's."""
    return itertools.chain(
        step_cases(), loop_cases(), clocked_cases(),
        chapter_8_clock.clocked_cases(), finished_clock.clocked_cases(),
        backward_orders.order_cases(), error_cases(), auto_rule_cases(),
    )  # fmt: skip
