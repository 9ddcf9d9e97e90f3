"""Chapter 9: the loops of its exercises in ladder's kernel, as they are written; of each a form with stamps, one whose
consumer 1 begins late, and some whose consumer 1 does less.

Takes what `ladder` takes, without a mask.
"""

import math
from functools import cache

import torch

from fa_tutorial import hardware
from fa_tutorial.bench.chapter_9 import SCORES, STAMPS, SUM, loop_of
from fa_tutorial.source import defined, edited, source_of

hardware.require_triton("Chapter 9's measurements")
from triton.experimental import gluon  # noqa: E402
from triton.experimental.gluon import language as gl  # noqa: E402

from fa_tutorial.hopper import ladder  # noqa: E402

N_STAMPS = gl.constexpr(len(STAMPS))
TILES = "        mbarrier.wait(full.index(stage), parity)\n"
BOTH = "        s, acc, p = warpgroup_mma_wait(0, [s, acc, p])\n"
SECOND = "        s = warpgroup_mma_wait(0, [s])\n"


@gluon.jit
def store_clock(stamps_ptr, i, n: gl.constexpr, after):
    """Store the SM's clock as block i's n-th of STAMPS, once `after`, [64], has been computed."""
    clock = gl.inline_asm_elementwise(
        "mov.u64 $0, %clock64; // $1", "=l,f", [after], dtype=gl.int64, is_pure=False, pack=1
    )
    row = gl.arange(0, 64, after.type.layout)
    gl.store(stamps_ptr + i * N_STAMPS + n + row, clock, mask=row == 0)


def stamp(n: int, after: str, block: str = "i") -> str:
    """The line that stores a block's n-th of STAMPS."""
    return f"        store_clock(stamps_ptr, {block}, {n}, {after})\n"


def behind(line: str, n: int, after: str) -> tuple[str, str, int]:
    return line, line + stamp(n, after), 1


SOFTMAX = "        p_new, m, l, alpha = softmax_step(s, m, l, scale_log2)\n"
# Where a loop's stamps are stored: behind these lines, and WITHOUT_TWO_STOPS. Of the half
# overlapped loop, by turns or not, none, as its second wait lies inside the softmax.
STAMPED = {
    "two stops": (
        behind(TILES, 0, "m"), ("  # [64, 128]\n        p, m", f"\n{stamp(2, 'm')}        p, m", 1),
        behind("        p, m, l, alpha = softmax_step(s, m, l, scale_log2)\n", 3, "l"),
        behind("        p = left_operand(p, acc, v.dtype)\n", 5, "l"),
        behind("        acc = warpgroup_mma_wait(0, [acc])  # [64, D]\n", 6, "l"),
    ),
    "one stop": (behind(BOTH, 2, "m"), behind(SOFTMAX, 3, "l")),
    "overlapped": (behind(SECOND, 2, "m"), behind(SOFTMAX, 3, "l"), behind(SUM, 4, "l")),
}  # fmt: skip
STAMPED["two stops, by turns"] = STAMPED["two stops"]
WITHOUT_TWO_STOPS = (
    (TILES, stamp(5, "l", "i - 1") + TILES + stamp(0, "m"), 1), (SCORES, stamp(1, "m") + SCORES, 1),
)  # fmt: skip

# In place of softmax_step, whose maximum gets a stamp, too: "softmax" and "end" store when it and the sum are there.
MAXIMUM = (
    behind(BOTH, 2, "m"),
    (SOFTMAX, "        m_new = gl.maximum(m, gl.max(s, axis=1) * scale_log2)\n" + stamp(3, "m_new")
     + "        p_new = gl.exp2(s * scale_log2 - m_new[:, None])\n        alpha = gl.exp2(m - m_new)\n"
     + "        l = alpha * l + gl.sum(p_new, axis=1)\n        m = m_new\n" + stamp(4, "l"), 1),
)  # fmt: skip

WAITS = """
    if C == 1:
        begin = gl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=gl.int64, is_pure=False, pack=1)
        now = begin
        while now - begin < {}:
            now = gl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l", [], dtype=gl.int64, is_pure=False, pack=1)
"""


STAGES = "    STAGES: gl.constexpr = k.shape[0]\n"
# What consumer 1 does in place of the loop.
INSTEAD = {
    "only releases its tiles": """    if C == 1:
        for i in range(blocks):
            mbarrier.wait(full.index(i % STAGES), i // STAGES % 2)
            mbarrier.arrive(empty.index(i % STAGES), count=1)
        return l, acc
""",
    "only multiplies": """    if C == 1:
        p, s = left_operand(zeros, acc, v.dtype), zeros
        for i in range(blocks):
            mbarrier.wait(full.index(i % STAGES), i // STAGES % 2)
            s = warpgroup_mma(q, k.index(i % STAGES).permute((1, 0)), s, is_async=True)
            acc = warpgroup_mma(p, v.index(i % STAGES), acc, is_async=True)
            s, acc, p = warpgroup_mma_wait(0, [s, acc, p])
            mbarrier.arrive(empty.index(i % STAGES), count=1)
        return l + gl.sum(s, axis=1), acc
""",
}


def attend_of(name: str, stamped: bool, maximum: bool, instead: str) -> str:
    """loop_of(name), called attend, with `turns`, stamps_ptr and C behind its arguments; `stamped`: with stamps;
    `maximum`: those of MAXIMUM; instead: one of INSTEAD, or none."""
    text = loop_of(name)
    head = text[: text.index("):")]
    more = ", turns, stamps_ptr, C: gl.constexpr"
    text = text.replace(head, head.replace("turns, ", "").removesuffix(", C") + more, 1)
    text = text.replace("def attend_overlapped(", "def attend(")
    stamps = MAXIMUM if maximum else STAMPED[name] if stamped else ()
    text = edited(text, *stamps, *(() if not stamped or name.startswith("two stops") else WITHOUT_TWO_STOPS))
    return edited(text, (STAGES, STAGES + INSTEAD[instead], 1)) if instead else text


@cache
def module_of(name: str, stamped: bool, late: int, maximum: bool, instead: str) -> dict:
    """The names of `ladder` with one of LOOP_CHANGES as attend, with turns, stamps, and a consumer 1 that begins late,
    or does one of INSTEAD."""
    text = source_of(ladder)
    start, end = (text.index(f"@gluon.jit\ndef {part}(") for part in ("attend", "consumer"))
    text = f"{text[:start]}{attend_of(name, stamped, maximum, instead)}\n\n\n{text[end:]}"
    edits = [
        ("             C: gl.constexpr, ATTEND", "             turns, stamps_ptr, C: gl.constexpr, ATTEND", 1),
        ("acc, scale_log2, blocks)\n    offs_m", "acc, scale_log2, blocks, turns, stamps_ptr, C)\n    offs_m", 1),
        ("scale_log2, 0, ATTEND", "scale_log2, turns, stamps_ptr, 0, ATTEND", 1),
        ("scale_log2, 1, ATTEND", "scale_log2, turns, stamps_ptr, 1, ATTEND", 1),
        ("o_ptr, S, scale_log2,\n", "o_ptr, S, scale_log2, stamps_ptr,\n", 1),
        ("    mbarrier.init(q_full, count=1)\n",
         "    turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())\n"
         "    mbarrier.init(turns.index(0), count=1)\n    mbarrier.init(turns.index(1), count=1)\n"
         "    mbarrier.init(q_full, count=1)\n", 1),
    ]  # fmt: skip
    if stamped:
        row = "    stamps_ptr += (gl.program_id(0) * 2 + C) * blocks * N_STAMPS\n"
        edits.append(("    mbarrier.wait(q_full, 0)\n", f"{row}    mbarrier.wait(q_full, 0)\n", 1))
    if late:
        edits.append(("    l, acc = ATTEND(", f"{WAITS.format(late)}    l, acc = ATTEND(", 1))
    names = {"__name__": ladder.__name__, "store_clock": store_clock, "N_STAMPS": N_STAMPS}
    return defined(edited(text, *edits), names)


def flash_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _: bool, scale: float, *, loop: str, stages: int = 3,
    stamps: torch.Tensor | None = None, late: int = 0, maximum: bool = False, instead: str = "",
) -> torch.Tensor:  # fmt: skip
    """o, full, by ladder's kernel with one of LOOP_CHANGES. stamps: (B · H · S // ROWS, 2, S // ROWS, N_STAMPS) int64
    for the clock, of which row 0 gets "packed" alone; `maximum`: those of MAXIMUM. Consumer 1 begins `late` cycles
    late, or does one of INSTEAD."""
    if loop in ("two stops", "half overlapped") and not late and stamps is None:
        attend = ladder.attend if loop == "two stops" else ladder.attend_overlapped
        return ladder.flash_forward(q, k, v, scale, attend=attend, stages=stages)
    names = module_of(loop, stamps is not None, late, maximum, instead)
    B, H, S, D = q.shape
    o = torch.empty_like(q)
    tiles = [ladder.descriptor(x.view(-1, D)) for x in (q, k, v)]
    programs, scale_log2 = B * H * S // ladder.ROWS.value, scale * math.log2(math.e)
    names["forward_kernel"][(programs,)](
        *tiles, o, S, scale_log2, stamps, STAGES=stages, ATTEND=names["attend"], num_warps=4
    )
    return o
