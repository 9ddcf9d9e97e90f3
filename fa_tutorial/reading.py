"""Chapter 12: where the forward kernel's lines stand in the official source, flash-attention at v2.8.3.

Names and line numbers alone, none of its code: `beside` links each line of ours to its like, and `both` reads it from a
checkout on the reader's disk. `their_loop` and `their_backward` do in PyTorch what its loops do. `under_way` says what
a call of FlashAttention-3's step may meet.
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


def one_warp(softmax, q, k, v, last_seen, share, shared,
             acc_holds=0.0, clear_v=True, peel=True, masked=3, rescale=True, deleted=(), join=True,
             unset=math.nan):  # fmt: skip
    """A warp's rows of o, by FA2's loop. share: the rows that it copies of each tile. deleted: lines.
    unset: what registers hold that nobody has set.
    """
    row_max = torch.full((len(q),), unset)
    row_sum = torch.full((len(q), 4), unset)  # each of a row's four threads has its own
    acc = torch.full((len(q), v.shape[1]), acc_holds)  # change 1
    blocks = torch.arange(-(-len(k) // BLOCK_N) * BLOCK_N).split(BLOCK_N)[::-1]
    s = torch.full((len(q), BLOCK_N), unset)
    begun, closed = {}, {"k": copy(k, blocks[0], clear=False)}  # copies, and those of closed groups
    for step, keys in enumerate(blocks):
        if 304 not in deleted:  # change 10
            s = torch.zeros_like(s)
        if 305 not in deleted:  # change 7
            land(closed, share, shared)
        if 306 not in deleted:  # change 8
            yield
        begun["v"] = copy(v, keys, clear_v)  # 310 to 313; change 2
        if 317 not in deleted:  # change 11
            close(begun, closed)
        s = s + q @ shared["k"].T  # 319
        if step < masked:  # changes 4 and 5
            s = torch.where(keys <= last_seen, s, -math.inf)
        if 332 not in deleted:
            land(closed, share, shared)
        if 333 not in deleted:
            yield
        if step + 1 < len(blocks):
            begun["k"] = copy(k, blocks[step + 1], clear=False)  # 335
            if 338 not in deleted:  # change 12
                close(begun, closed)
        is_first = peel and step == 0  # change 3
        s, row_max, row_sum, scaled = softmax(  # p takes the place of s
            s, row_max, row_sum, acc, SCALE * math.log2(math.e), is_first
        )  # fmt: skip
        acc = (scaled if rescale else acc) + s @ shared["v"]  # 367; change 6
    of_column = torch.arange(acc.shape[1]) % 8 // 2  # the thread that divides it
    l = row_sum.sum(dim=1, keepdim=True) if join else row_sum[:, of_column]  # change 9
    yield acc / torch.where(l > 0, l, 1.0)  # softmax.h, 172 to 179


def close(begun, closed):
    """A fence: the next wait is for what the warp has begun to copy, too."""
    closed.update(begun)
    begun.clear()


def land(closed, share, shared):
    """A wait: what the warp has copied in closed groups is there, at the latest now."""
    for name, tile in closed.items():
        shared[name][share] = tile[share]
    closed.clear()


def their_loop(softmax, q, k, v, **change):
    """o of one block of rows. The first warp runs to its next barrier, and only then the second."""
    shared = {name: torch.full((BLOCK_N, x.shape[1]), math.nan) for name, x in (("k", k), ("v", v))}
    last_seen = torch.arange(len(q))[:, None] + len(k) - len(q)
    halves = (slice(0, 16), slice(0, 8)), (slice(16, 32), slice(8, 16))  # of the rows, and of a tile
    warps = [
        one_warp(softmax, q[rows], k, v, last_seen[rows], share, shared, **change)
        for rows, share in halves
    ]  # fmt: skip
    *_, o = zip(*warps, strict=True)  # from barrier to barrier; the last yields are rows of o
    return torch.cat(o)


# ---------------------------------------------------------------- their backward, for exercise 12.3's step


def their_backward(step, q, k, v, do, lse, delta):
    """dq, dk and dv by FA2's loop around a step, under a causal mask."""
    S_q, S_k = len(q), len(k)
    dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
    for keys in torch.arange(S_k).split(BLOCK_N):  # a program each
        first_m = max(0, int(keys[0]) + S_q - S_k) // BLOCK_N * BLOCK_N  # m_block_min
        for rows in reversed(torch.arange(first_m, S_q).split(BLOCK_N)):
            seen = keys <= rows[:, None] + S_k - S_q
            tiles = q[rows], k[keys], v[keys], do[rows], lse[rows], delta[rows]
            dq_step, dk_step, dv_step = step(*tiles, seen, SCALE * math.log2(math.e))
            dq[rows], dk[keys], dv[keys] = dq[rows] + dq_step, dk[keys] + dk_step, dv[keys] + dv_step
    return SCALE * dq, SCALE * dk, dv


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
