"""Chapter 11: calls of decoding kernels, which its page times on a GPU, and what it shows of the stored ones;
tools/measure measures these."""

import ast
from collections.abc import Callable
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from fa_tutorial import compiling
from fa_tutorial.bench import peers, results
from fa_tutorial.bench.cases import Shape
from fa_tutorial.bench.timing import randn
from fa_tutorial.decode import FP8, flash_decode
from fa_tutorial.exercises import catalogue
from fa_tutorial.figures import COLOURS, GREY
from fa_tutorial.forward import attend
from fa_tutorial.hardware import device
from fa_tutorial.source import defined, edited, source_of


def shape_of(B: int, S: int, S_q: int = 1) -> Shape:
    """64 query heads, 8 key heads, D = 128: the heads of many models of 70 billion parameters."""
    return Shape(B, 64, 8, S_q, S, 128, True)


def call_of(provider: str, shape: Shape) -> tuple[Callable[[], Any], int]:
    """A call of the provider, and the bytes of the keys and values that it reads.

    provider: "decode", "paged 16" for pages of 16 tokens, "fp8", "window 1024" for a window of the last 1,024 keys,
    "masked 1024" for a mask that shows these alone, or one of peers.PROVIDERS.
    """
    kind, _, number = provider.partition(" ")
    page = number if kind == "paged" else ""
    q = randn(shape.B, shape.H_q, shape.S_q, shape.D)
    pages = shape.B * shape.S_k // int(page or shape.S_k)  # a cache without pages is one page a sequence
    cache_shape = pages, shape.H_k, int(page or shape.S_k), shape.D
    if kind == "fp8":  # any positive numbers of the format will do
        k, v = (torch.randint(0, 100, cache_shape, dtype=torch.uint8, device=q.device).view(FP8) for _ in range(2))
    else:
        k, v = randn(*cache_shape), randn(*cache_shape)
    live_bytes = k.nbytes + v.nbytes
    if provider in peers.PROVIDERS:  # the one new token sees every key, as without a mask
        return partial(peers.provider(provider), q, k, v, False), live_bytes
    lengths = torch.full((shape.B,), shape.S_k, dtype=torch.int32, device=device())
    options: dict[str, Any] = {}
    if kind == "paged":
        options["block_table"] = torch.randperm(pages, device=device()).view(shape.B, -1).int()
    if kind in ("window", "masked"):
        live_bytes = live_bytes // shape.S_k * int(number)
    if kind == "window":
        options["window"] = (int(number) - 1, 0)  # the token's own key is one of them
    if kind == "masked":
        options["attn_mask"] = torch.arange(shape.S_k, device=device()) >= shape.S_k - int(number)
    if kind == "fp8":
        options["k_scale"] = options["v_scale"] = torch.full((shape.H_k,), 0.01, device=device())
    return partial(flash_decode, q, k, v, lengths, **options), live_bytes


def row(provider: str, S: int, B: int = 1, kernel: str = "decode", **more: Any) -> pd.Series:
    """The H200's stored time of one kernel at one size, ms and us, with its rate, gb_s."""
    wanted = {"chapter": 11, "kernel": kernel, "provider": provider, "B": B, "S_k": S, **more}
    found = results.select(results.load("h200")["kernels"], **wanted).iloc[0].copy()
    found["us"] = 1000 * found["ms"]
    return found


def us_by_splits(B: int, S: int) -> dict[int, float]:
    """The stored µs of a step of 11.3's kernel and the merge, L2 emptied by reading, by the number of splits."""
    wanted = {"chapter": 11, "kernel": "steps", "provider": "11.3", "B": B, "S_k": S}
    found = results.select(results.load("h200")["kernels"], **wanted).sort_values("splits")
    return dict(zip(found["splits"].astype(int), found["clean_us"], strict=True))


def body_of(kernel: Any) -> list[str]:
    """The lines of a kernel from its first statement on, without its signature and its docstring."""
    text = source_of(kernel)
    statements = ast.parse(text).body[0].body
    first = statements[1 if ast.get_docstring(ast.parse(text).body[0]) and len(statements) > 1 else 0]
    return text.splitlines()[first.lineno - 1 :]


def windowed(split_heads: Any, bound: str) -> Any:
    """A split kernel like 11.3's, whose attend has a second bound in its mask."""
    seen = "offs_n[None, :] <= last_seen[:, None]"
    bounded = defined(edited(source_of(attend), (seen, f"({seen}) & ({bound})")), attend.fn.__globals__)["attend"]
    names = split_heads.fn.__globals__ | {"attend": bounded}
    return defined(source_of(split_heads), names)[split_heads.fn.__name__]


LAUNCH = """
import torch
from fa_tutorial.tiles import heads

q, k, o, lse = (torch.empty(n, 8, 8, 128, dtype=torch.float16) for n in (1, 16, 2, 2))
sizes, meta = (128, 128**-0.5), {"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_D": 128}

def shared(caches, tables, length, **more):
    def call():
        tensors = *map(heads, (q, *caches)), *tables, heads(o.float()), lse.float()[..., 0].contiguous()
        kernel[(8, 2)](*tensors, 8, 1, 8, length, *sizes, **meta, **more)
    return next(compiling.compile_calls(90, [("", call)])).shared
"""


def split_shared_bytes(split_heads: Any, block_m: int = 16) -> int:
    """Bytes of shared memory that a block of 11.3's kernel, or a reader's, takes on an H200 as the chapter launches it,
    or with a taller tile of q: in fp16, with D = 128 and tiles of 64 keys."""
    launch = edited(LAUNCH, ('"BLOCK_M": 16', f'"BLOCK_M": {block_m}'))
    code = f"{launch}\nprint(json.dumps(shared([k.view(1, 8, 128, 128)] * 2, (), 128)))\n"
    return compiling.of_a_kernel(split_heads, catalogue.find("11.3").solution, code)


def paged_shared_bytes(paged: Any, stages: tuple[int, ...]) -> list[int]:
    """The same of 11.5's kernel with pages of 64 keys, by num_stages."""
    code = f"""{LAUNCH}
pages, tables = k.view(2, 8, 64, 128), (torch.zeros(1, 2, dtype=torch.int32), torch.tensor([128], dtype=torch.int32))
print(json.dumps([shared([pages] * 2, tables, 2, PAGE_SIZE=64, num_stages=n) for n in {stages!r}]))
"""
    return compiling.of_a_kernel(paged, catalogue.find("11.5").solution, code)


def two_lanes(start: float, tiles: float, transfer: float, merge: float, measured: float) -> Figure:
    """The µs of a step: its start, the tiles beside the bytes, its merge; and what was measured."""
    figure, ax = plt.subplots(figsize=(8, 2.3), layout="constrained")
    end = start + max(tiles, transfer)
    bars = (
        (0.5, 0, start, 1.8, "start", "sky"),
        (0, start, tiles, 0.8, "tiles, one after another", "orange"),
        (1, start, transfer, 0.8, "bytes, at a copy's rate", "green"),
        (0.5, end, merge, 1.8, "merge", "purple"),
    )
    for y, left, us, high, name, colour in bars:
        ax.barh(y, us, high, left, color=COLOURS[colour], edgecolor="black", alpha=0.55)
        text = f"{name}\n{us:.1f}" if us < 12 else f"{name}: {us:.1f}"
        if name == "merge":  # a bar too small for its name
            ax.text(left + us + 0.4, y, text, va="center")
        else:
            ax.text(left + us / 2, y, text, ha="center", va="center")
    ax.axvline(measured, color="black", linestyle="--")
    ax.text(measured - 0.4, -0.75, f"measured: {measured:.1f}", ha="right", va="center")
    ticks = {"yticks": (0, 1), "yticklabels": ("SMs", "memory")}
    ax.set(xlabel="µs of a step", xlim=(0, end + merge + 5), ylim=(1.5, -1.1), **ticks)
    return figure


def two_limits(
    points: dict[int, tuple[int, float]], larger: dict[int, tuple[int, float]], pull: float, copy: float, sms: int = 132
) -> Figure:
    """GB/s by the number of programs, beside what the SMs pull and what the memory gives.

    points: (programs, GB/s) of one sequence, B = 1, by splits; larger: the same of several, by B. pull: GB/s of an SM
    with a program. copy: GB/s of a copy.
    """
    figure, ax = plt.subplots(figsize=(8, 3.4), layout="constrained")
    look = {"textcoords": "offset points", "va": "center"}
    ax.loglog([8, sms, 600], [8 * pull, sms * pull, sms * pull], "--", color=COLOURS["vermilion"])
    ax.annotate(f"the SMs, at {pull:.0f} GB/s each", (32, 430), (0, 0), color=COLOURS["vermilion"], **look)
    ax.axhline(copy, linestyle=":", color="black")
    ax.annotate("the memory, at a copy's rate", (8, copy), (0, 9), **look)
    ax.loglog(*zip(*points.values(), strict=True), "o", color=COLOURS["blue"])
    for splits, place in points.items():
        name = f"{splits} splits" if splits > 1 else "B = 1, 1 split"
        ax.annotate(name, place, (9, -8), color=COLOURS["blue"], **look)
    ax.loglog(*zip(*larger.values(), strict=True), "^", color=COLOURS["green"], markersize=8)
    for B, place in larger.items():
        ax.annotate(f"B = {B}", place, (0, 13), color=COLOURS["green"], ha="center", **look)
    ax.axvline(sms, color=GREY, linewidth=1)
    ax.annotate(f"{sms} SMs", (sms, 190), (-5, 0), ha="right", **look)
    ax.set(xlabel="programs", ylabel="GB/s", ylim=(150, 9000))
    ax.set_xticks([8, 16, 32, 64, 128, 256, 512], ["8", "16", "32", "64", "128", "256", "512"])
    ax.set_yticks([250, 500, 1000, 2000, 4000], ["250", "500", "1,000", "2,000", "4,000"])
    ax.minorticks_off()
    return figure


def by_splits(cases: list[tuple[int, int, dict[int, float], dict[int, int]]], sms: int = 132) -> Figure:
    """(11.3) by the number of splits, with one slot on each SM and with three, above the measured µs.

    cases: (B, a head's tiles, µs by splits, the chosen splits by slots), with 8 key heads each.
    """
    figure, axes = plt.subplots(2, len(cases), figsize=(9, 4.6), sharex="col", layout="constrained")
    looks = {sms: ("one slot an SM", "blue", "-", "o"), 3 * sms: ("three slots", "vermilion", "--", "s")}
    for (B, tiles, us, chosen), (above, below) in zip(cases, axes.T, strict=True):
        possible = np.arange(min(us), max(us) + 1)
        part = -(-tiles // possible)
        programs = 8 * B * -(-tiles // part)  # whose part has keys
        for slots, (name, colour, line, _) in looks.items():
            above.plot(possible, part * -(-programs // slots), line, color=COLOURS[colour], label=name)
        below.plot(list(us), list(us.values()), ".-", color="black", linewidth=0.8, markersize=9)
        for slots, splits in chosen.items():
            _, colour, line, mark = looks[slots]
            look = {"color": COLOURS[colour], "markersize": 11, "fillstyle": "none", "markeredgewidth": 2}
            below.plot(splits, us[splits], mark, label=f"{splits}: your choice with {slots} slots", **look)
            for ax in (above, below):
                ax.axvline(splits, color=COLOURS[colour], linestyle=line, linewidth=0.8, alpha=0.6)
        above.set(title=f"B = {B}, {tiles} tiles a head", ylim=(0, None))
        below.set(xlabel="splits")
        below.margins(y=0.15)
        below.legend(fontsize="small")
    axes[0, 0].set(ylabel="tiles of the\nbusiest slot, (11.3)")
    axes[1, 0].set(ylabel="measured µs")
    axes[0, 0].legend(fontsize="small")
    return figure
