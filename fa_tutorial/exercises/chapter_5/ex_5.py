from dataclasses import replace

import torch
import torch.nn.functional as F

from fa_tutorial import forward
from fa_tutorial.exercises.chapter_5.inner_step import HALF, TF32, as_solution, half_inputs, one_tile_inputs, two_tiles_input
from fa_tutorial.exercises.chapter_5.steps import Steps
from fa_tutorial.exercises.forward_cases import attention_case, draw_qkv, widened
from fa_tutorial.exercises.harness import Exercise
from fa_tutorial.exercises.harness_kernel import In, Launch, Out
from fa_tutorial.forward import softmax_step  # noqa: F401, for the changed solutions, as dot and load_tile
from fa_tutorial.matmul import tl, triton  # noqa: F401
from fa_tutorial.tiles import dot, load_tile  # noqa: F401

attend = as_solution(forward.attend, __name__)

ACC, PV = "acc = acc * alpha[:, None]", "acc = dot(p.to(v_tile.dtype), v_tile, acc)"
MISTAKES = {
    "offs_n counts from the tile's start, last_seen from key 0: offs_n is start_n + tl.arange(0, BLOCK_N)": ("offs_n = start_n + ", "offs_n = "),
    "the mask is strict: a row sees key last_seen too": ("<= last_seen", "< last_seen"),
    "m and l are returned in each other's place: return m, l, acc": ("return m, l, acc", "return l, m, acc"),
    "acc is not rescaled: acc = alpha · acc + p v, by (4.3)": (ACC, "acc = acc"),
    "alpha multiplies the columns of acc: alpha[:, None] gives one number to each row": (ACC, ACC.replace("[:, None]", "")),
    "p v is rescaled too: bring acc to the new maximum first, acc · alpha, and then add p v": [
        (ACC, "acc = acc"), (PV, f"{PV} * alpha[:, None]")],
    "scale is missing: s = scale · q kᵀ": ("scale * dot(", "dot("),
    TF32: ("scale * dot(", "scale * tl.dot("),
}  # fmt: skip
CONDITIONS = {
    "unseen": "a row that has seen no key yet keeps m = −∞, l = 0 and acc = 0",
    "mask": "without MASK nothing is compared: neither scores, nor rows in load_tile",
    "half": HALF,
}
STEP = "the tile's keys join by (4.1) to (4.3), with the caller's scale: m is the largest score so far, l = Σ exp(s − m), acc = Σ exp(s − m) v, and tl.dot would round to TF32"
MASKED = "with MASK a row sees the keys up to last_seen, and the others get the score −inf"
PAST = "the last tile may be ragged: with MASK load_tile gets S_k, and last_seen hides the keys that are missing"


def truth(q_tile, k, v, at, last_seen, MASK, blocks, scale):
    start_n = (k.shape[2] - 1) // blocks[1] * blocks[1]
    s = scale * q_tile[:, : k.shape[-1]].double() @ k[at].double().T
    j = torch.arange(k.shape[2])
    s = s.masked_fill((j >= start_n) & (j > last_seen[:, None]) & MASK, -torch.inf)
    m = s.amax(-1)
    p = torch.exp(s - m[:, None]).nan_to_num()  # 0 for a row that sees nothing
    return m, p.sum(-1), F.pad(p @ v[at].double(), (0, blocks[2] - v.shape[-1]))


def launch(q_tile, k, v, at, last_seen, MASK, blocks, scale):
    block_m, block_n, block_d = blocks
    start_n = (k.shape[2] - 1) // block_n * block_n
    state = [Out((block_m,), torch.float32), Out((block_m,), torch.float32), Out((block_m, block_d), torch.float32)]
    args = In(q_tile), In(k, None, True), In(v, None, True), *state, *at, start_n, In(last_seen), *k.shape[2:], scale
    return Launch((1,), args, {"MASK": MASK, "BLOCK_N": block_n, "BLOCK_D": block_d})


def tolerance(args, part):
    """m and l are float32 sums; acc has p rounded to v's dtype."""
    q_tile, k, v = args[:3]
    if part == "acc":
        return 0.0, (2e-3 if v.dtype == torch.float16 else 2e-5) * k.shape[2] * float(v.abs().max())
    return 2e-5, 1e-5 * max(1.0, float(q_tile.abs().double().max() * k.abs().double().max()))


def step(one, last_seen=None, at=(0, 0)):
    """A case of attend from one of attention: its first block of rows, the last tile of keys with MASK if last_seen is given."""
    q, k, v, blocks, _, scale, _ = one.args
    seen = torch.full((blocks[0],), k.shape[2] - 1) if last_seen is None else last_seen
    q_tile = F.pad(q[at], (0, blocks[2] - q.shape[-1]))  # as load_tile gives it
    return replace(one, args=(q_tile, k, v, at, seen.int(), last_seen is not None, blocks, scale), wanted={})


def inputs():
    for one in one_tile_inputs(STEP):
        yield replace(step(one), otherwise=STEP)
    yield step(two_tiles_input())
    rows = torch.arange(16)
    yield step(attention_case(*draw_qkv(1, 1, 16, 16, 16), "MASK, one tile, last_seen = 0, 1, … 15", MASKED), rows)
    second = "MASK, S_k = 32, the second tile, last_seen = 16, 17, … 31"
    yield step(attention_case(*draw_qkv(1, 1, 16, 32, 16), second, f"{MASKED}, counted from key 0 of the sequence"), rows + 16)
    ragged = "MASK, S_k = 20, the second tile, last_seen = 19"
    yield step(attention_case(*draw_qkv(1, 1, 16, 20, 16), ragged, PAST, stray=PAST), rows * 0 + 19)
    where = "k and v come from head h_k of batch entry b"
    for MASK in (False, True):
        on = f"MASK = {MASK}, B = 3, H = 2, b = 2, h_k = 1"
        yield step(attention_case(*draw_qkv(3, 2, 16, 16, 16), on, where, stray=where), rows if MASK else None, at=(2, 1))
    on = "MASK, S_k = 32, the second tile, D = 40, BLOCK_M = 32, BLOCK_N = 16, BLOCK_D = 64, last_seen = 31"
    other = "blocks may differ, and D may be smaller than BLOCK_D: load_tile gets BLOCK_N rows, and 0 in the columns from D on"
    yield step(attention_case(*draw_qkv(1, 1, 32, 32, 40), on, other, blocks=(32, 16, 64)), torch.full((32,), 31))
    blind = "MASK, one tile, last_seen = −8, −7, … 7"
    yield step(attention_case(*draw_qkv(1, 1, 16, 16, 16), blind, edge="unseen"), rows - 8)
    on = "no MASK, BLOCK_M = 32, BLOCK_N = 16, BLOCK_D = 64"
    yield step(attention_case(*draw_qkv(1, 1, 32, 32, 64), on, edge="mask", blocks=(32, 16, 64)))
    yield from map(step, half_inputs())


def refused(attend):
    one = step(attention_case(*(x.half() for x in draw_qkv(1, 1, 16, 16, 16)), ""))
    return widened(Steps(attend), launch(*one.args))


EXERCISE = Exercise(
    task="Make the body of your loop a function, with and without a mask.",
    conditions=CONDITIONS,
    hints=(
        "It is the body of your loop of 5.4, in its order. Which two lines does MASK decide?",
        "rows = S_k if MASK else None goes to both load_tile. Under `if MASK:` compare key numbers, start_n + tl.arange(0, BLOCK_N), with "
        "last_seen[:, None].",
        's = tl.where(offs_n[None, :] <= last_seen[:, None], s, -float("inf")), then p, m, l, alpha = softmax_step(s, m, l), and '
        "acc = dot(p.to(v_tile.dtype), v_tile, acc * alpha[:, None]).",
    ),
    solution=attend,
    reasoning="MASK is a constant, so the compiler makes two functions of one text: one that compares, and one that doesn't. last_seen "
    "hides missing keys and causal ones by one comparison, because no row that exists sees past key S_k − 1.",
    more="This is forward.attend, which the package's kernel calls.",
    inputs=inputs,
    truth=truth,
    rule=STEP,
    mistakes=MISTAKES,
    parts=("m", "l", "acc"),
    launch=launch,
    adapt=Steps,
    tolerance=tolerance,
    refused=refused,
)
