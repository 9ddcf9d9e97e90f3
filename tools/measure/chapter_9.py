"""Chapter 9: each remedy, the finished kernel's steps, the ladder's errors, and from which size on "auto" takes
Hopper's kernels.
"""

import dataclasses
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
from fa_tutorial.tiles import TileConfig
from fa_tutorial.tuned import steps
from measure import alone, backward_orders, chapter_8_clock, finished_clock, loops
from measure.chapter_8 import repeated_us
from measure.clocks import cycles_in_turns, settled_in_turns
from measure.turns import by_shape, in_turns

hardware.require_triton("Chapter 9's measurements")
from fa_tutorial.hopper import ladder, ping_pong  # noqa: E402

SPEEDS = ("hopper", "tuned", "basic", "sdpa_cudnn", "sdpa_flash", "flash_attn_4")


def speed_cases() -> Iterator[Measurement]:
    """The course's kernels and the fastest others on the literature's grid, those of a point in turns."""
    for shape, mode in itertools.product(GRIDS["literature"].shapes, ("fwd", "bwd")):
        cases = [Case(provider, mode, "fp16", shape) for provider in SPEEDS]
        yield from in_turns({place: case.about() for place, case in enumerate(cases)}, measure_in_turns, cases)


def step_cases() -> Iterator[Measurement]:
    """One chain, in turns: chapter 8's forward, the plain forward's loops, and the finished kernel's steps, of which
    the first runs with two consumers, too, where three are the rule."""
    for shape in GRIDS["points"].shapes:
        yield from by_shape(9, "step", _steps_in_turns, [shape], steps_of(shape))


Call = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool, float], Any]


def steps_of(shape: Shape) -> dict[str, Call]:
    """Name -> forward, in the order of the chapter."""
    steps: dict[str, Call] = {"tuned": tuned.flash_forward}
    steps["one stop"] = partial(ping_pong.flash_forward, loop="one stop")
    config = hopper.forward.choose_config(shape.D, shape.S_q, shape.is_causal)
    if config is hopper.forward.CONFIGS[64]:
        two = dataclasses.replace(config, consumers=2, registers=240)
        steps["two consumers"] = partial(hopper.flash_forward, step=hopper.forward.STEPS["roles"], config=two)
    own = [name for name in hopper.forward.STEPS if name != "turns" or config.consumers == 3]
    return steps | {name: partial(hopper.flash_forward, step=hopper.forward.STEPS[name]) for name in own}


def _steps_in_turns(shape: Shape) -> dict[str, dict[str, Any]]:
    arguments = (*inputs(shape), shape.is_causal, shape.D**-0.5)
    calls = {name: partial(step, *arguments) for name, step in steps_of(shape).items()}
    return timed_in_turns(calls, flops=flops_of(shape), rounds=6)


def clocked_cases() -> Iterator[Measurement]:
    """When a consumer is where in its loop, by the SM's clock: D = 128, full, S = 4,096, 3 stages."""
    shape = at_4096(128, False)
    for loop in ("9.3", "9.4, one wait"):
        yield about(9, "clocked", loop, **vars(shape)), partial(_clocked_row, shape, loop)
    for alone_on_sm in (False, True):
        words = about(9, "clocked", "9.4, one wait, its maximum", alone=alone_on_sm, **vars(shape))
        yield words, partial(_maximum_row, shape, alone_on_sm)


def _clocked_row(shape: Shape, loop: str) -> dict[str, Any]:
    """The SM cycles of calls with stamps; of the last the mean cycles from each of ping_pong.STAMPS to the next, of all
    blocks in the middle of the loop; the stamps of both consumers of one program in four blocks, from the first of them
    on; and of several programs the mean share of the time in which 0, 1, 2 of their consumers are at a softmax."""
    q, k, v = inputs(shape)
    stamps = stamps_of(shape)
    call = partial(loops.flash_forward, q, k, v, False, shape.D**-0.5, loop=loop, stamps=stamps)
    cycles = cycles_in_turns({loop: call}, rounds=1)[loop]
    clock = alone.completed(stamps.cpu())[:, :, 4:-4]
    return {
        "call": cycles,
        "cycles": alone.mean_parts(clock),
        "stamps": _of_the_usual(clock),
        "softmax_at_once": _at_once(clock),
    }


def _maximum_row(shape: Shape, alone_on_sm: bool) -> dict[str, Any]:
    """The mean cycles of consumer 0, by ping_pong.STAMPS, of which "stop" is the maximum's, "softmax" that of the
    exponentials and their sum."""
    q, k, v = inputs(shape)
    call = partial(
        loops.flash_forward, q, k, v, False, shape.D**-0.5, loop="9.4, one wait", maximum=True, alone=alone_on_sm
    )
    return {"cycles": alone.mean_parts(_clock_of(call, shape)[:, :1])}


def _of_the_usual(clock: torch.Tensor) -> list:
    """The stamps of four blocks, and of the next one, of the program whose blocks take the mean time."""
    each = (clock[:, :, 1:, 0] - clock[:, :, :-1, 0]).double().mean((1, 2))
    usual = (each - each.mean()).abs().argmin()
    shown = clock[usual, :, 4:9]
    return (shown - shown.min()).tolist()


def stamps_of(shape: Shape) -> torch.Tensor:
    """Room for the stamps of both consumers of each program."""
    blocks = shape.S_q // ladder.ROWS.value
    sizes = shape.B * shape.H_q * blocks, 2, blocks, len(ping_pong.STAMPS)
    return torch.zeros(sizes, dtype=torch.int64, device="cuda")


def _clock_of(call: Callable[..., Any], shape: Shape) -> torch.Tensor:
    """The stamps of call(stamps=…), of both consumers of each program, in the middle of the loop."""
    stamps = stamps_of(shape)
    for _ in range(3):
        call(stamps=stamps)
    return alone.completed(stamps.cpu())[:, :, 4:-4]


def _at_once(clock: torch.Tensor) -> list[float]:
    """Of several programs the mean share of the time in which 0, 1, 2 of their consumers are at a softmax."""
    return alone.mean_shares(clock[5::37])


SMALLER = TileConfig(64, 64, 4, 3)  # a consumer's rows, and the keys and stages of "two programs"
SHARE_OF = {
    128: {
        "two programs in Gluon": alone.Alone(2, 0, 64, 3),
        "two programs": alone.Alone(2, 1, 64, 3, 128), "one program": alone.Alone(1, 2, 64, 3),
        "one program, each tile loaded twice": alone.Alone(1, 2, 64, 3, loads=2),
    },
    64: {},
}  # fmt: skip
LATER = 1200  # cycles by which a late consumer 1 begins after consumer 0


def remedies_of(D: int) -> dict[str, Call]:
    """Name -> a forward that takes 64 rows and 128 keys, or as many scores, a block: chapter 8's, and each that chapter
    9 tries, in its order. At D = 128 "persistent" is hopper's kernel, where there is no mask."""
    found: dict[str, Call] = {"chapter 8's": partial(tuned.flash_forward, tile=steps.LARGER[D])}
    if D == 128:
        found["chapter 8's, 64 x 64"] = partial(tuned.flash_forward, tile=SMALLER)
    for name, how in SHARE_OF[D].items():
        found[name] = lambda q, k, v, _, __, how=how: alone.attend(q, k, v, how)
    found["9.3, consumer 1 late"] = partial(loops.flash_forward, loop="9.3", late=LATER)
    found |= {loop: partial(loops.flash_forward, loop=loop) for loop in loops.LOOPS}
    if D == 128:
        found["9.4, 2 stages"] = partial(loops.flash_forward, loop="9.4", stages=2)
    config, named = hopper.forward.CONFIGS[D], hopper.forward.STEPS
    two = dataclasses.replace(config, consumers=2, registers=240)
    found["finished loop"] = partial(hopper.flash_forward, step=named["overlap"], config=two)
    if D == 64:
        found["third consumer"] = partial(hopper.flash_forward, step=named["overlap"], config=config)
    found["persistent"] = partial(hopper.flash_forward, step=named["order"])
    return found | ({"hopper": partial(hopper.flash_forward, step=hopper.forward.BEST)} if D == 64 else {})


def remedy_cases() -> Iterator[Measurement]:
    """Each of remedies_of in turns, full, S = 4,096: cycles, MHz and TFLOP/s of the same calls without stamps; and of
    most of them by stamps, in further calls, the share of the time in which 0, 1, … consumers are at a softmax."""
    for D in (128, 64):
        yield from by_shape(9, "remedy", _remedies_in_turns, [at_4096(D, False)], remedies_of(D))


def _remedies_in_turns(shape: Shape) -> dict[str, dict[str, Any]]:
    q, k, v = inputs(shape)
    calls = {name: partial(call, q, k, v, False, shape.D**-0.5) for name, call in remedies_of(shape.D).items()}
    rows = settled_in_turns(calls, flops_of(shape))
    for name, row in rows.items():
        if name.startswith("chapter 8's"):
            tile = SMALLER if name.endswith("64 x 64") else steps.LARGER[shape.D]
            row["softmax_at_once"] = chapter_8_clock.shares(shape, tile)
        elif name in SHARE_OF[shape.D]:
            row["softmax_at_once"] = alone.shares(shape, SHARE_OF[shape.D][name])
        elif name in loops.STAMPED or name.endswith("late"):
            row["softmax_at_once"] = _at_once(_clock_of(calls[name], shape))
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
        step_cases(), remedy_cases(), alone.alone_cases(), clocked_cases(),
        chapter_8_clock.clocked_cases(), finished_clock.clocked_cases(), backward_orders.order_cases(), error_cases(),
        auto_rule_cases(),
    )  # fmt: skip
