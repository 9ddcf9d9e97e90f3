"""Chapter 12: where the forward kernel's lines stand in the official source, flash-attention at v2.8.3.

Names and line numbers alone, none of its code: `mark` marks the lines that a reader finds, `beside` links each line of
ours to its like, and `both` reads it from a checkout on the reader's disk.
`their_loop` does in PyTorch what its loop does. `under_way` says what a call of FlashAttention-3's step may meet.
"""

from __future__ import annotations

import math
import os
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fa_tutorial.source import source_of

VERSION = "2.8.3"
REPOSITORY = "https://github.com/Dao-AILab/flash-attention"
HOW = f"""No flash-attention {VERSION} found. From the course's folder, this puts one beside it:
    git clone --depth 1 --branch v{VERSION} {REPOSITORY} ../flash-attention
If it lies elsewhere, set FLASH_ATTENTION to its folder before you start Jupyter."""
KERNEL, LAUNCH, SOFTMAX, MASK, BACKWARD = (
    f"csrc/flash_attn/src/{name}.h"
    for name in ("flash_fwd_kernel", "flash_fwd_launch_template", "softmax", "mask", "flash_bwd_kernel")
)
FA4_SOFTMAX = "flash_attn/cute/softmax.py"


class Place(NamedTuple):
    """Lines first … last of a file, and a word of theirs: the function that is called, or the variable."""

    file: str
    first: int
    last: int
    word: str


# A line of ours, by its beginning, which is its only one -> where its like stands.
PLACES: dict[str, dict[str, tuple[Place, ...]]] = {
    "attend": {
        "rows = ": (Place(KERNEL, 269, 270, "Is_even_MN"), Place(KERNEL, 313, 315, "Is_even_MN")),
        "k_tile = ": (Place(KERNEL, 335, 335, "copy"),),
        "s = scale": (Place(KERNEL, 319, 322, "gemm"),),
        "if MASK": (Place(KERNEL, 302, 302, "masking_step"),),
        "s = tl.where": (Place(KERNEL, 328, 330, "apply_mask"),),
        "p, m, l, alpha": (Place(KERNEL, 342, 344, "softmax_rescale_o"),),
        "acc = acc * alpha": (Place(SOFTMAX, 160, 160, "acc_o_rowcol"),),
        "v_tile = ": (Place(KERNEL, 310, 310, "copy"),),
        "acc = dot": (Place(KERNEL, 347, 347, "convert_type"), Place(KERNEL, 367, 367, "gemm_rs")),
    },
    "softmax_step": {
        "m_new = ": (Place(SOFTMAX, 148, 148, "reduce_max"),),
        "shift = ": (Place(SOFTMAX, 76, 76, "max_scaled"), Place(SOFTMAX, 154, 156, "scores_max_cur")),
        "p = ": (Place(SOFTMAX, 162, 162, "scale_apply_exp2"), Place(SOFTMAX, 88, 88, "exp2f")),
        "alpha = ": (Place(SOFTMAX, 157, 157, "scores_scale"),),
        "return ": (Place(SOFTMAX, 158, 158, "row_sum"), Place(SOFTMAX, 165, 165, "reduce_sum")),
    },
    "flash_forward_kernel": {
        "row_blocks = ": (Place(LAUNCH, 63, 63, "num_m_block"),),
        "start_m = ": (Place(KERNEL, 1077, 1077, "m_block"),),
        "b, h = ": (Place(KERNEL, 1079, 1081, "bidb"),),
        "h_k = ": (Place(KERNEL, 148, 148, "h_h_k_ratio"),),
        "q_tile = ": (Place(KERNEL, 250, 251, "copy"),),
        "m = tl.full": (Place(SOFTMAX, 142, 142, "zero_init"),),
        "l = tl.zeros": (Place(SOFTMAX, 144, 144, "zero_init"),),
        "acc = tl.zeros": (Place(KERNEL, 283, 283, "clear"),),
        "last_seen = tl.full": (Place(KERNEL, 288, 288, "Mask"),),
        "full_n, end_n = ": (Place(KERNEL, 84, 84, "n_block_max"),),
        "if IS_CAUSAL": (Place(KERNEL, 85, 85, "Is_causal"),),
        "last_seen = offs_m": (Place(MASK, 173, 173, "col_idx_limit_right"),),
        "full_n = ": (Place(KERNEL, 298, 300, "n_masking_steps"),),
        "end_n = ": (Place(KERNEL, 86, 87, "n_block_max"),),
        "for start_n in range(0, full": (Place(KERNEL, 378, 378, "n_block"),),
        "for start_n in tl.range(full": (Place(KERNEL, 302, 302, "masking_step"),),
        "l_or_one = ": (Place(SOFTMAX, 172, 172, "quad_allreduce_"), Place(SOFTMAX, 179, 179, "inv_sum")),
        "store_tile(o": (Place(SOFTMAX, 183, 183, "acc_o_rowcol"), Place(KERNEL, 491, 493, "copy")),
        "lse = ": (Place(SOFTMAX, 180, 180, "lse"),),
        "tl.store(lse": (Place(KERNEL, 477, 477, "gLSE"),),
    },
}

# A line of ours, by its beginning -> how theirs differs from it.
DIFFERS = {
    "attend": {
        "rows = ": "only the first block's copies test for the end",
        "k_tile = ": "the *next* block's k, after q kᵀ",
        "s = scale": "without the scale",
        "if MASK": "a loop of its own, before the other",
        "s = tl.where": "windows and ALiBi, too",
        "p, m, l, alpha": "here comes the scale",
        "acc = acc * alpha": "inside `softmax_rescale_o`",
        "v_tile = ": "before q kᵀ",
    },
    "softmax_step": {
        "m_new = ": "of unscaled scores; the first block reads no old maximum",
        "p = ": "the scale comes here, in base 2",
        "alpha = ": "in base 2, and not in the first block",
        "return ": "of one thread's columns; the first block reads no old sum",
    },
    "flash_forward_kernel": {
        "m = tl.full": "no start value",
        "l = tl.zeros": "no start value",
        "full_n = ": "a number of blocks, fixed when it compiles",
        "for start_n in range(0, full": "the second loop, and it counts down",
        "for start_n in tl.range(full": "the first loop, and it counts down",
        "l_or_one = ": "first joins the sums of a row's four threads; a sum that is NaN counts as 0, too",
        "lse = ": "m times the scale, as m is unscaled; +∞ for a row that sees nothing",
    },
}


# A step of `attend` -> the lines of the forward's loop that do it: any of them will do.
STEPS: dict[str, set[int]] = {"load k": {335}, "q kᵀ": {319}, "times scale": {342, 343, 344}, "mask": {328},
                              "softmax_step": {342, 343, 344}, "acc · alpha": {344}, "load v": {310, 313},
                              "acc + p v": {367}}  # fmt: skip
# A step -> lines beside its own, and what these do
BESIDE = {
    "load k": ({334, 338}, "334 asks for a next block, and 338 closes the copy's group. Which line begins it?"),
    "load v": ({309, 311, 317}, "309 chooses one of two copies, and 317 closes its group. Which line begins one?"),
}
WAITS = {305, 306, 317, 332, 333, 338}  # of the forward's loop


def mark(lines: dict[str, int | list[int]], struck: Iterable[int]) -> str:
    """How many of the reader's lines are right, which aren't, and which of these stand in softmax.h; then how many
    waits are struck out, and what else is."""
    given = {step: {line} if isinstance(line, int) else set(line) for step, line in lines.items()}
    left = [step for step, right in STEPS.items() if not given.get(step) or not given[step] <= right]
    text = f"{len(STEPS) - len(left)} of {len(STEPS)} right{'; not yet: ' * bool(left)}{', '.join(left)}"
    if inside := [step for step in left if given.get(step, set()) & set(range(137, 168))]:
        text += f"\n{', '.join(inside)}: that is a line of softmax.h. Which line of this loop calls its function?"
    for step, (near, told) in BESIDE.items():
        if step in left and given.get(step, set()) & near:
            text += f"\n{step}: {told}"
    if 343 in given.get("acc · alpha", ()):
        text += "\nacc · alpha: 343 is the first block's call, and before the first block acc has nothing to rescale."
    if 342 in given.get("acc · alpha", ()):
        text += "\nacc · alpha: 342 begins a statement of two calls. Which of them has anything to rescale?"
    others = sorted(set(struck) - WAITS - {0})
    text += f"\n{len(set(struck) & WAITS)} of {len(WAITS)} waits struck out"
    return text + f"; no wait: {', '.join(map(str, others))}" * bool(others)


def lines_of(kernel: Any) -> list[tuple[str, tuple[Place, ...]]]:
    """The statements of a kernel of PLACES, each on one line, without its docstring and comments that hold no equation,
    and each one's places."""
    places = PLACES[kernel.__name__]
    lines, open_code = [], ""
    for line in source_of(kernel).rpartition('"""')[2].splitlines():
        code, _, comment = line.replace("  # fmt: skip", "").partition("  # ")
        code = f"{open_code} {code.strip()}" if open_code else code
        open_code = code if code.count("(") > code.count(")") else ""
        if not code.strip() or open_code:
            continue
        equation = re.search(r"\([45]\.\d\)", comment)
        found = [where for start, where in places.items() if code.strip().startswith(start)]
        lines.append((f"{code}  # {equation[0]}" if equation else code, found[0] if found else ()))
    return lines


def numbers(place: Place) -> str:
    """flash_fwd_kernel.h:319–322"""
    last = "" if place.last == place.first else f"–{place.last}"
    return f"{Path(place.file).name}:{place.first}{last}"


def beside(kernel: Any):
    """The kernel's lines in a table, each beside what to look for in its like, a name that links to the lines, and how
    that differs.

    Returns an IPython.display.Markdown.
    """
    from IPython.display import Markdown

    differs = DIFFERS.get(kernel.__name__, {})
    rows = ["| yours | theirs | what differs |", "|---|---|---|"]
    for code, places in lines_of(kernel):
        start = code.lstrip()
        indented = "\u00a0" * (len(code) - len(start) - 4) + start.replace("|", "\\|")
        theirs = "<br>".join(f"[`{place.word}`]({permalink(place)}), {numbers(place)}" for place in places)
        how = next((text for begins, text in differs.items() if start.startswith(begins)), "")
        rows.append(f"| `{indented}` | {theirs} | {how} |")
    return Markdown("\n".join(rows))


def permalink(place: Place) -> str:
    """The address of a place's lines, at the version that was read."""
    return f"{REPOSITORY}/blob/v{VERSION}/{place.file}#L{place.first}-L{place.last}"


def checkout() -> Path | None:
    """A folder of flash-attention 2.8.3: $FLASH_ATTENTION, or flash-attention beside this folder or one above it."""
    near = (folder / "flash-attention" for folder in (Path.cwd(), *Path.cwd().parents))
    for folder in (Path(os.environ.get("FLASH_ATTENTION", "flash-attention")), *near):
        version = folder / "flash_attn" / "__init__.py"
        if version.is_file() and f'__version__ = "{VERSION}"' in version.read_text(encoding="utf-8"):
            return folder
    return None


def both(kernel: Any, width: int = 105) -> str:
    """The kernel's lines, each over its like in the reader's checkout, with … where `width` cuts one; how to get a
    checkout where there is none."""
    folder = checkout()
    if folder is None:
        return HOW
    rows = []
    for code, places in lines_of(kernel):
        rows.append(code)
        for place in places:
            theirs = (folder / place.file).read_text(encoding="utf-8").splitlines()[place.first - 1 : place.last]
            theirs = textwrap.dedent("\n".join(theirs)).splitlines()
            rows += [f"        │ {numbers(place)}", *(cut(f"        │     {line}", width) for line in theirs)]
    return "\n".join(rows)


def cut(line: str, width: int) -> str:
    """The line, of at most `width` characters: a longer one ends in …"""
    return line if len(line) <= width else f"{line[: width - 1]}…"


# ---------------------------------------------------------------- their loop, for exercise 12.2's softmax

BLOCK_N, SCALE = 16, 0.25


def copy(x, keys, clear):
    """A tile as a copy brings it; rows past the end are cleared, or stay what they were."""
    tile = torch.full((len(keys), x.shape[1]), 0.0 if clear else math.nan)
    here = keys < len(x)
    tile[here] = x[keys[here]]
    return tile


def by_thread(x):
    """[rows, columns] -> [rows, 4, columns / 4]: thread t of a row holds columns 2t and 2t + 1 of each eight."""
    return x.unflatten(1, (-1, 4, 2)).transpose(1, 2).flatten(2)


def their_loop(softmax, q, k, v,
               acc_holds=0.0, clear_v=True, peel=True, masked=3, rescale=True, waits=(305, 332),
               join=True, unset=math.nan):  # fmt: skip
    """o of one block of rows, by FA2's loop. unset: what registers hold that nobody has set."""
    S_q, S_k = len(q), len(k)
    last_seen = torch.arange(S_q)[:, None] + S_k - S_q
    row_max = torch.full((S_q,), unset)
    row_sum = torch.full((S_q, 4), unset)  # each of a row's four threads has its own
    acc = torch.full((S_q, v.shape[1]), acc_holds)  # 1
    blocks = torch.arange(-(-S_k // BLOCK_N) * BLOCK_N).split(BLOCK_N)[::-1]
    shared = dict.fromkeys("kv", torch.full((BLOCK_N, k.shape[1]), math.nan))
    copies = {"k": copy(k, blocks[0], clear=False)}  # under way until the next wait
    for step, keys in enumerate(blocks):
        if 305 in waits:  # 7
            shared.update(copies)
        copies["v"] = copy(v, keys, clear_v)  # 2
        s = q @ shared["k"].T
        if step < masked:  # 4, 5
            s = torch.where(keys <= last_seen, s, -math.inf)
        if 332 in waits:  # 8
            shared.update(copies)
        if step + 1 < len(blocks):
            copies["k"] = copy(k, blocks[step + 1], clear=False)
        is_first = peel and step == 0  # 3
        p, row_max, row_sum, scaled = softmax(
            s, row_max, row_sum, acc, SCALE * math.log2(math.e), is_first
        )  # fmt: skip
        acc = (scaled if rescale else acc) + p @ shared["v"]  # 6
    of_column = torch.arange(acc.shape[1]) % 8 // 2  # the thread that divides it
    l = row_sum.sum(dim=1, keepdim=True) if join else row_sum[:, of_column]  # 9: line 172
    return acc / torch.where(l > 0, l, 1.0)  # line 179


# ---------------------------------------------------------------- FA3's step, for exercise 12.5

MATMULS = "gemm q kᵀ", "gemm p v"
# A call of fwd_step -> what it reads, and what it changes. k and v: the buffers, which the producer overwrites as soon
# as they are given back.
FA3_CALLS = {
    "gemm q kᵀ": ("q k", "s"),
    "gemm p v": ("p v acc", "acc"),
    "mask_fn": ("s", "s"),
    "max_get_scale": ("s m l", "m alpha l"),
    "online_softmax": ("s m l", "s l"),
    "convert_type_out": ("s", "p"),
    "rescale_o": ("acc alpha", "acc"),
    "release k": ("", "k"),
    "release v": ("", "v"),
}


def under_way(step: Iterable[str]) -> list[tuple[str, list[str], str]]:
    """Each call of FA3's step, the matmuls that may be under way during it in the worst case, until a wait says that
    they have ended, and what goes wrong then, "" for nothing.
    """
    rows, running = [], []
    for call in step:
        if call.startswith("warpgroup_wait"):
            running = running[max(0, len(running) - int(call[-2])) :]  # they end in their order
        clashes = (met(call, matmul) for matmul in running if call not in MATMULS)
        rows.append((call, running, next(filter(None, clashes), "")))
        if call in MATMULS:
            running = [*running, call]
    return rows


def met(call: str, matmul: str) -> str:
    """What a call changes or reads of what a matmul under way reads or writes, in words; "" for nothing."""
    (reads, changes), (its_reads, its_changes) = (
        [set(names.split()) for names in FA3_CALLS.get(name, ("", ""))] for name in (call, matmul)
    )
    for does, names in (("changes", changes & (its_reads | its_changes)), ("reads", reads & its_changes)):
        for name in sorted(names):
            return f"{does} {name}, which {matmul} may still {'write' if name in its_changes else 'read'}"
    return ""


def worst_case(step: Iterable[str]) -> str:
    """A line for each call of FA3's step: which matmuls may be under way during it, and what goes wrong then."""
    lines = []
    for call, running, clash in under_way(step):
        names = ", ".join(name.removeprefix("gemm ") for name in running)
        lines.append(f"{call:18} {names:10} {'✗ ' * bool(clash)}{clash}".rstrip())
    return "\n".join(lines)
