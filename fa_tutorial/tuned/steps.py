"""Chapter 8's forward, one step at a time: edits that turn the text of chapter 5's kernel into that of forward_kernel.

A step is shown as its diff and run as the kernel that its text makes, so what you see is what is measured.
"""

from __future__ import annotations

import ast
import difflib
import functools
import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import torch

from fa_tutorial import forward as chapter_5
from fa_tutorial.hardware import card_of, require_triton
from fa_tutorial.source import defined, edited, source_of
from fa_tutorial.tiles import TileConfig, heads, padded_d
from fa_tutorial.tuned import forward
from fa_tutorial.tuned.descriptors import can_use_tma, descriptor_template
from fa_tutorial.tuned.launching import signature_of

triton = require_triton("Chapter 8 (fa_tutorial.tuned)")

TILE = TileConfig(64, 64, 4, 3)  # with which the steps are compared
LARGER = {64: TileConfig(64, 128, 4, 2), 128: TileConfig(128, 64, 4, 2)}  # by D: a tile that needs more registers
STORED = Path(__file__).with_name("steps_sm90.json")  # what ptxas makes of each: python -m fa_tutorial.sass
GUARD = 'tl.where(m_new == -float("inf"), 0.0, m_new)'
# In the order of the chapter: step -> its edits, as source.edited takes them.
STEPS: dict[str, list[tuple]] = {
    "base 2": [
        ("softmax_step(s, m, l)", "softmax_step(s, m, l, scale_log2)"),
        ("tl.maximum(m, tl.max(s, axis=1))", "tl.maximum(m, tl.max(s, axis=1) * scale_log2)"),
        ("tl.exp(s - shift[:, None])", "tl.exp2(s * scale_log2 - shift[:, None])"),
        ("tl.exp(m - shift)", "tl.exp2(m - shift)"),
        ("S_k, D, scale,\n", "S_k, D, scale_log2,\n"),
        ("s = scale * dot(q_tile, tl.trans(k_tile))", "s = dot(q_tile, tl.trans(k_tile))"),
        ("    last_seen = tl.full", "    scale_log2 = scale * LOG2_E\n    last_seen = tl.full"),
        ("lse = m + tl.log(l_or_one)", 'lse = tl.where(l == 0.0, -float("inf"), (m + tl.log2(l_or_one)) * LN_2)'),
    ],
    "one division": [
        (
            "    store_tile(o, acc / l_or_one[:, None],",
            "    o_tile = acc * (1.0 / l_or_one)[:, None]\n    store_tile(o, o_tile,",
        ),
    ],
    "guard": [
        (
            "    p, m, l, alpha = softmax_step(s, m, l, scale_log2)\n",
            "    m_new = tl.maximum(m, tl.max(s, axis=1) * scale_log2)  # [BLOCK_M]\n    shift = m_new\n"
            f"    if MASK:  # only here can a row have seen nothing yet\n        shift = {GUARD}\n"
            "    p = tl.exp2(s * scale_log2 - shift[:, None])  # [BLOCK_M, BLOCK_N]\n    alpha = tl.exp2(m - shift)  # [BLOCK_M]\n",
        ),
        ("return m, l, acc", "return m_new, alpha * l + tl.sum(p, axis=1), acc"),
    ],
    "round up": [
        (
            "    m_new = tl.maximum(m, tl.max(s, axis=1) * scale_log2)  # [BLOCK_M]\n    shift = m_new",
            "    row_max = tl.max(s, axis=1)  # [BLOCK_M]\n"
            "    m_new = tl.maximum(m, tl.maximum(row_max * (scale_log2 * UP), row_max * (scale_log2 * DOWN)))\n    shift = m_new",
        ),
    ],
    "descriptors": [
        ("    rows = S_k if MASK else None\n", ""),
        ("start_n, rows, D,", "start_n, S_k, D,"),
    ],
    "load ahead": [
        ("    for start_n in range(0,", "    TAIL_STAGES: tl.constexpr = None if IS_CAUSAL else 1\n    for start_n in range(0,"),
        ("num_stages=1)", "num_stages=TAIL_STAGES)"),
    ],
    "order": [
        ("H_q, H_k, S_q, S_k, D, scale, IS", "H_q, H_k, heads_at_once, S_q, S_k, D, scale,\n                         IS"),
        (
            "    start_m = tl.program_id(0) % row_blocks * BLOCK_M\n    batch_head = tl.program_id(0) // row_blocks\n",
            "    batch_head, row_block = grouped_tile_device(\n"
            "        tl.program_id(0), tl.num_programs(0) // row_blocks, row_blocks, heads_at_once)\n"
            "    if IS_CAUSAL:\n        row_block = row_blocks - 1 - row_block\n    start_m = row_block * BLOCK_M\n",
        ),
    ],
}
SKIPPED = re.compile(
    r"(?:, \(4.1\)|  # (?:fmt: skip|a tile without a mask is full.*|a few tiles: .*|\(\d.*|keys before full .*|.*its m is −inf))$",
    re.MULTILINE,
)


def plain(function: Callable | str) -> str:
    """The text of a jitted function, or this text of one, without its docstring, and without remarks that a step would make wrong."""
    lines = source_of(function).splitlines()
    [definition] = ast.parse("\n".join(lines)).body
    docstring = definition.body[0]
    del lines[docstring.lineno - 1 : docstring.end_lineno]
    return SKIPPED.sub("", "\n".join(lines))


def source(step: str = "") -> str:
    """The kernel's text after `step`; "" for chapter 5's."""
    if not step:
        return "\n\n\n".join(map(plain, (chapter_5.softmax_step, chapter_5.attend, chapter_5.flash_forward_kernel))) + "\n"
    text = edited(source(before(step)), *STEPS[step])
    if step == "guard":  # nobody calls it any more
        text = text[text.index("@triton.jit", 1) :]
    return text


def fingerprint() -> str:
    """Of the texts of all steps: what STORED counts is out of date when it changes."""
    code = [ast.unparse(ast.parse(source(step))) for step in ("", *STEPS)]  # without comments
    return hashlib.sha256("".join(code).encode()).hexdigest()[:16]


def before(step: str) -> str:
    names = ["", *STEPS]
    return names[names.index(step) - 1]


def diff(step: str) -> str:
    """What `step` changes from attend on. softmax_step is left out: in base 2 it is exercise 8.2, and "guard" drops it."""
    return changes(*(text[text.index("@triton.jit\ndef attend") :] for text in (source(before(step)), source(step))))


def changes(old: str, new: str) -> str:
    """A unified diff with a line of context, and an empty line between its parts."""
    lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), n=1, lineterm=""))[2:]
    return "\n".join("" if line.startswith("@@") else line for line in lines).strip("\n")


def show(step: str) -> None:
    """Show diff(step) in a notebook, coloured."""
    _display(diff(step))


def show_between(old: Callable | str, new: Callable | str) -> None:
    """Show the diff of two jitted functions, or of two texts."""
    _display(changes(*(text if isinstance(text, str) else plain(text) for text in (old, new))))


def _display(text: str) -> None:
    from IPython.display import Markdown, display

    display(Markdown(f"```diff\n{text}\n```"))


def kernel(step: str = "", **functions: Callable):
    """The kernel after `step`. functions: jitted functions that take the place of its own, softmax_step for one."""
    names = list(STEPS)[: list(STEPS).index(step) + 1] if step else []
    edits = tuple(tuple(map(tuple, STEPS[name])) for name in names)  # a step that is edited again is made again
    return _kernel(step, edits, tuple(functions.items()))


@functools.cache  # while it is timed, a call must not take longer than its kernel
def _kernel(step: str, edits: tuple, functions: tuple):
    file = f"<chapter 8, {step or 'chapter 5'}{''.join(f', your {name}' for name, _ in functions)}>"
    names = vars(chapter_5) | {name: getattr(forward, name) for name in ("LOG2_E", "LN_2", "UP", "DOWN", "grouped_tile_device")}
    names = defined(source(step), names, file)
    names.update(functions)  # a kernel looks its functions up when it is first launched
    return names["flash_forward_kernel"]


def flash_forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool, scale: float,
                  *, step: str, tile: TileConfig | None = None) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """chapter_5.flash_forward by the kernel after `step`, for what forward.applies to. tile: chapter 5's unless given."""
    (B, H_q, S_q, D), (H_k, S_k) = q.shape, k.shape[1:3]
    o = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = torch.empty((B, H_q, S_q), dtype=torch.float32, device=q.device)
    tile = tile or chapter_5.choose_config(D, q.dtype, card_of(q).shared_memory)
    done = list(STEPS).index(step) if step else -1
    tma = done >= list(STEPS).index("descriptors") and can_use_tma(signature_of(q, k, v))
    rows = (tile.block_m, tile.block_n, tile.block_n, tile.block_m)
    tensors = [descriptor_template(x, n)(x) if tma else heads(x) for x, n in zip((q, k, v, o), rows, strict=True)]
    at_once = (forward.heads_at_once(S_k),) if done >= list(STEPS).index("order") else ()
    kernel(step)[(triton.cdiv(S_q, tile.block_m) * B * H_q,)](
        *tensors, lse, H_q, H_k, *at_once, S_q, S_k, D, scale, IS_CAUSAL=is_causal, BLOCK_D=padded_d(D), **tile.launch()
    )
    return o, lse
