"""Chapter 13: what each rank of a process group runs, other ways to share a sequence, and stored results."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import torch
import torch.distributed as dist
from matplotlib.figure import Figure
from torch.nn.functional import cross_entropy

from fa_tutorial import figures, hardware, processes, reference, ring
from fa_tutorial.arguments import check_attention
from fa_tutorial.attention import flash_attention
from fa_tutorial.bench import results
from fa_tutorial.bench.tables import mask
from fa_tutorial.source import defined, edited, source_of
from fa_tutorial.tiles import MAX_D

STORED = Path(__file__).with_name("ring.json")
NAMES = ("o", "lse", "dq", "dk", "dv")


def load() -> dict:
    """The stored results: "provenance", and "rows" as a DataFrame."""
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    return stored | {"rows": pd.DataFrame(stored["rows"], dtype=object)}


# ---------------------------------------------------------------- what a rank runs


def inputs(B: int, H_q: int, H_k: int, S: int, D: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """q, k, v and do of a whole sequence, the same in every process."""
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(B, H, S, D, generator=draw).to(dtype) for H in (H_q, H_k, H_k, H_q)]


def one_rank(shape: tuple[int, int, int, int, int], is_causal: bool) -> dict[str, torch.Tensor]:
    """One rank's program: shards of inputs(*shape), ring attention and its backward.

    Returns this rank's o, lse, dq, dk and dv, and the bytes that it sent: {"sent": [forward, backward]}.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    q, k, v, do = (ring.shard(x, rank, ranks).to(hardware.device()) for x in inputs(*shape))
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    counts = [ring.Passing.bytes_sent]
    o, lse = ring.ring_attention(q, k, v, is_causal=is_causal, return_lse=True)
    counts.append(ring.Passing.bytes_sent)
    o.backward(do)
    counts.append(ring.Passing.bytes_sent)
    sent = [after - before for before, after in itertools.pairwise(counts)]
    results = o, lse, q.grad, k.grad, v.grad
    return {name: x.detach().cpu() for name, x in zip(NAMES, results, strict=True)} | {"sent": sent}


def show(ranks: int, shape: tuple[int, int, int, int, int], is_causal: bool) -> bool:
    """Run one_rank in `ranks` processes, and print what each held and sent.

    Prints and returns whether all results are as accurate as plain attention's, too.
    """
    _, H_q, H_k, S, D = shape
    q, k, v, do = inputs(*shape)
    check_attention(q, k, v, max_d=MAX_D)  # once, where each rank would raise
    ring.shard(q, 0, ranks)
    sizes = f"{H_q} query heads on {H_k} key heads, D = {D}, {mask(is_causal)}"
    print(f"{ranks} processes, S = {S:,} in shards of {S // ranks:,}, {sizes}")
    parts = processes.run(one_rank, ranks, shape, is_causal)
    for rank, part in enumerate(parts):
        first, last = ring.shard(torch.arange(S), rank, ranks, dim=0).chunk(2)
        tokens = f"tokens {first[0]} to {first[-1]} and {last[0]} to {last[-1]}"
        print(f"rank {rank}: {tokens}; sent {part['sent'][0]:,} bytes forward, {part['sent'][1]:,} backward")
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    plain = reference.naive_attention(*leaves, is_causal)
    plain = [plain, None, *torch.autograd.grad(plain, leaves, do)]
    truth = [*reference.attention(q, k, v, is_causal), *reference.gradients(q, k, v, do, is_causal)]
    wrong = []
    for name, want, rough in zip(NAMES, truth, plain, strict=True):
        got = ring.unshard([part[name] for part in parts])
        try:
            if rough is None:
                reference.assert_lse_accurate(got, want, torch.float32)
            else:
                reference.assert_accurate(got, want, rough, factor=2.0 if name == "o" else 3.0)
        except AssertionError as error:
            wrong.append(f"{name}: {error}")
    print(f"{', '.join(NAMES)}: {'; '.join(wrong) or 'as accurate as plain attention on one device'}")
    return not wrong


def hand_over() -> int:
    """One of two ranks hands its number to the other. Returns the number that comes."""
    rank = dist.get_rank()
    mine, coming, other = torch.tensor(rank), torch.tensor(-1), 1 - rank
    dist.send(mine, other)  # with gloo, returns when the other rank has taken it
    dist.recv(coming, other)
    return coming.item()


def meet(text: str) -> list[int]:
    """Whose keys this rank computes with. text: the source of an answer to exercise 13.9, which this process runs."""
    pass_around = defined(text, {"torch": torch})["pass_around"]
    return pass_around(torch.tensor([dist.get_rank()]), dist, torch.Tensor.item)


# ---------------------------------------------------------------- stored times

INDEX = ["link", "S", "H_k"]


def times_of(rows: pd.DataFrame, way: str = "forward") -> pd.DataFrame:
    """Ms of four GPUs, a row for each of INDEX, a column a provider. T_c: a tile, a sixteenth of one GPU's time. T_s: a
    shard's k and v on the link alone. x = T_c / T_s, and W in byte/s.

    rows: load()'s. way: "forward" or "backward".
    """
    rows = rows[rows["ranks"].eq(4)]
    found = rows.pivot(index=INDEX, columns="provider", values=f"{way}_ms").astype(float)
    T_s = rows[rows["provider"].eq("sending alone")].set_index(INDEX)["forward_ms"].astype(float) / 3
    found = found.assign(T_c=found["one GPU"] / 16, T_s=T_s).reset_index()
    message = 2 * found["H_k"].astype(float) * (found["S"] // 4) * 128 * 2  # bytes
    return found.assign(x=found["T_c"] / found["T_s"], W=1e3 * message / found["T_s"])


LAUNCHES = 32_768  # in sequences up to so long they decide, not x
LONG = 131_072  # tokens of the running case
MILLION = 1_048_576
NVLINK = [("NVLink", LONG, 16), ("NVLink", LONG, 4)]
HOST = [("host memory", S, H_k) for S, H_k in ((65_536, 16), (LONG, 16), (LONG, 4), (262_144, 16))]
CLOCKED = [NVLINK[0], *HOST[1:]]  # images/explore/ring_clock.html's
CHOICES = [("NVLink", 8_192, 16), ("host memory", 32_768, 16), HOST[1], HOST[3], HOST[2], *NVLINK]


def name_of(case: tuple[str, int, int]) -> str:
    """case: of INDEX."""
    link, S, H_k = case
    return f"{S:7,} tokens, {link}, G = {16 // H_k}"


def long_ones(rows: pd.DataFrame, way: str) -> pd.DataFrame:
    """times_of all cases that were measured five times and in which launches don't decide, by INDEX."""
    found = times_of(rows, way)
    return found[found["S"].between(LAUNCHES + 1, MILLION - 1)].set_index(INDEX)


def print_orders(rows: pd.DataFrame) -> None:
    """Forward in plain and in zigzag order, beside a quarter of one GPU's: four GPUs, 16 key heads, over NVLink. The
    ratio only where it isn't launches'."""
    times = times_of(rows)
    print("forward, ms     one GPU / 4   plain order   zigzag order   plain / zigzag")
    for _, case in times[times["H_k"].eq(16) & times["link"].eq("NVLink")].iloc[::-1].iterrows():
        if case["S"] < MILLION:
            ratio = f"{case['plain order'] / case['ring']:.2f}" if case["S"] > LAUNCHES else ""
            told = case["one GPU"] / 4, case["plain order"], case["ring"], ratio
            print(f"{case['S']:7,} tokens {{:11.1f}} {{:13.1f}} {{:14.1f}} {{:>16}}".format(*told).rstrip())


def visitors(rank: int) -> dict[str, int]:
    """How many of a rank's three visitors come from earlier ranks, and how many from later ones."""
    return {"earlier": rank, "later": 3 - rank}


def tiles_of(rank: int) -> float:
    """Ms of a rank's four tiles, each measured by itself on one GPU."""
    tiles = {"own": 1} | visitors(rank)
    return sum(n * part_of("ring_tile", name, counter=True)["ms"] for name, n in tiles.items())


def joins_of(rank: int, way: str = "ring_join") -> float:
    """Ms of a rank's three joins, each measured by itself on one GPU. way: a key of TRIPS."""
    return sum(n * part_of(way, name)["ms"] for name, n in visitors(rank).items())


def print_parts() -> None:
    """Forward ms of a quarter of the heads on one GPU, and of the last rank's tiles and joins by PyTorch."""
    print(f"forward, {LONG:,} tokens                  ms")
    for words, ms in (
        ("a quarter of the heads, on one GPU", part_of("ring_tile", "one GPU")["ms"]),
        ("rank 3's four tiles", tiles_of(3)),
        ("rank 3's three joins, by PyTorch", joins_of(3)),
    ):
        print(f"{words:34} {ms:6.1f}")


TRIPS = {  # of a float32 o
    "ring_join": ("PyTorch: two products, sum, copy", (2, 1.5, 3, 2)),
    "ring_join_kernel": ("one kernel: o, part, o", (1, 0.5, 1)),
}


def print_joins(rows: pd.DataFrame) -> None:
    """Ms of the join of an earlier rank's part, by its trips at a copy's speed and measured; of rank 3's joins; and of
    its tiles and joins, beside a run of all four ranks that sends nothing."""
    copied = 2.5 / part_of("ring_join_copy", "earlier")["ms"]  # trips in a ms, by a copy of as many bytes
    print(f"{'one join of rank 3, ms':32}{'trips':>16}   at a copy's speed   measured   all three joins")
    for way, (name, trips) in TRIPS.items():
        measured, told = part_of(way, "earlier")["ms"], " + ".join(f"{n:g}" for n in trips)
        print(f"{name:32}{told:>16}{sum(trips) / copied:20.3f}{measured:11.3f}{joins_of(3, way):18.1f}")
    alone = times_of(rows).set_index(INDEX).loc[NVLINK[0], "computing alone"]
    both = tiles_of(3) + joins_of(3, "ring_join_kernel")
    print(f"\nrank 3's tiles and the kernel's joins: {both:.1f} ms. All four ranks, sending nothing: {alone:.1f} ms")


def part_of(kernel: str, provider: str, **wanted) -> pd.Series:
    """The stored row of one tile or join of a rank of four with LONG tokens, measured on one GPU."""
    kernels = results.load("h200")["kernels"]
    return results.select(kernels, chapter=13, kernel=kernel, provider=provider, S=LONG, **wanted).iloc[0]


def on_clock(way: str, T_c: float, T_s: float, ranks: int = 4, *, own: str = "first", is_late: bool = False) -> float:
    """How long a rank takes, in the units of T_c and T_s. images/explore/ring_clock.html draws it.

    way: "forward", or "backward", where dk and dv take 2 T_s. own: when the backward computes its own tile, "first" or
    "last". is_late: in a forward's tiles but the own, a program starts after the message, with its whole share.
    """
    total = 0.0
    for tile, sending in steps_of(way, own, T_c, T_s, ranks):
        total += tile + sending if is_late and total > 0 else max(tile, sending)
    return total


def steps_of(way: str, own: str, T_c: float, T_s: float, ranks: int) -> list[tuple[float, float]]:
    """A rank's steps: (its tile, 0 for none, and the messages that leave beside it)."""
    last = ranks - 1
    if way == "forward":
        return [(T_c, T_s * (step < last)) for step in range(ranks)]
    if own == "first":
        tiles = [(T_c, 2 * T_s * (step > 0) + T_s * (step < last)) for step in range(ranks)]
        return [*tiles, (0.0, 2 * T_s)]
    visitors = [(T_c, 2 * T_s * (step > 0) + T_s * (step < last - 1)) for step in range(last)]
    return [(0.0, T_s), *visitors, (T_c, 2 * T_s)]


def forward_sends(rows: pd.DataFrame) -> pd.DataFrame:
    """What sends add to the ms of each case's forward, by models and measured."""
    found = long_ones(rows, "forward")
    sends = {
        ("models", "clock"): added(found, "forward"),
        ("models", "late programs"): added(found, "forward", is_late=True),
        ("measured", "equal shares"): found["equal shares"] - found["equal shares alone"],
        ("measured", "counter"): found["ring"] - found["computing alone"],
    }
    return pd.DataFrame(sends, index=found.index)


def backward_sends(rows: pd.DataFrame) -> pd.DataFrame:
    """What sends add to the ms of each case's backward, on the clock and measured, with the own tile first and last."""
    found = long_ones(rows, "backward")
    sends = {}
    for own in ("first", "last"):
        group = f"own tile {own}"
        sends[group, "clock"] = added(found, "backward", own=own)
        for name in ("two messages", "one message"):
            sends[group, name] = found[f"{group}, {name}"] - found["computing alone"]
    return pd.DataFrame(sends, index=found.index)


def added(found: pd.DataFrame, way: str, **how) -> list[float]:
    """What sends add to four tiles of each case, on the clock."""
    return [on_clock(way, T_c, T_s, **how) - 4 * T_c for T_c, T_s in zip(found["T_c"], found["T_s"], strict=True)]


def print_sends(table: pd.DataFrame) -> None:
    """What sends add to the ms of each case of HOST and NVLINK. table: forward_sends' or backward_sends'."""
    wide = {group: sum(len(name) + 2 for name in table[group]) for group, _ in table}
    print(f"{'ms that sends add':34}", *(f"{group:>{w}}" for group, w in wide.items()), sep="")
    print(" " * 34, *(f"{name:>{len(name) + 2}}" for _, name in table), sep="")
    for case in HOST + NVLINK:
        told = (f"{ms:{len(name) + 2}.1f}" for (_, name), ms in table.loc[case].items())
        print(f"{name_of(case):34}", *told, sep="")


def print_alone(rows: pd.DataFrame) -> None:
    """Forward ms with equal shares and with the counter, without sends and with them."""
    times = times_of(rows).set_index(INDEX)
    print(f"{'forward, ms':36}{'without sends':>23}{'with sends':>26}")
    print(" " * 36 + "   equal shares   counter" * 2)
    for case in [*HOST, *NVLINK, ("NVLink", MILLION, 16)]:
        pairs = "equal shares alone", "computing alone", "equal shares", "ring"
        told = times.loc[case, [*pairs]]
        print(f"{name_of(case):36}", "{:15.1f}{:10.1f}{:16.1f}{:10.1f}".format(*told), sep="")


def print_noise(rows: pd.DataFrame) -> None:
    """How far two measurements of the package's backward are apart at most."""
    found = long_ones(rows, "backward")
    apart = (found["ring"] - found["own tile last, one message"]).abs().max()
    print(f"own tile last and one message, measured twice: at most {apart:.1f} ms apart")
    print("own tile first and one message: of an earlier run")


WAYS = {"ring": ("blue", "-", "o"), "all-gather": ("orange", "--", "s"), "Ulysses": ("vermilion", "-.", "^")}


def training(ways: Callable, T_c: float, T_s: float, ranks: int, G: int) -> tuple[float, float]:
    """Exercise 13.8's `ways` for forward and backward of a ring, the own tile last, and of Ulysses, whose gradients
    travel as q, k, v and o do. A tile's backward takes as long as LONG tokens' over NVLink."""
    ring_forward, _, ulysses = ways(T_c, T_s, ranks, G)
    T_b = BACKWARD_TILE * T_c
    return ring_forward + on_clock("backward", T_b, T_s, ranks, own="last"), 2 * ulysses + ranks * (T_b - T_c)


BACKWARD_TILE = 2.59  # times as long as its forward: 17.0 by 6.6 ms


def plot_ways(ways: Callable, rows: pd.DataFrame) -> Figure:
    """How many times as fast as one GPU four are, forward, and forward and backward, against x = T_c / T_s: exercise
    13.8's `ways`, and measured.

    rows: load()'s, of which long_ones.
    """
    forward, backward = (long_ones(rows, way) for way in ("forward", "backward"))
    both = (forward + backward[["one GPU", "ring", "Ulysses"]]).assign(x=forward["x"])
    figure = Figure(figsize=(9, 7.6))
    shares = [2 ** (i / 8) for i in range(-24, 33)]
    grid = figure.subplots(2, 2, sharex=True, sharey=True)
    for row, (words, times) in enumerate({"forward": forward, "forward and backward": both}.items()):
        for ax, H_k in zip(grid[row], (16, 4), strict=True):
            G = 16 // H_k
            here = times.reset_index()
            here = here[here["H_k"].eq(H_k)]
            for i, (way, (colour, line, marker)) in enumerate(WAYS.items()):
                look = {"color": figures.COLOURS[colour]}
                if row == 0:
                    speeds = [16 * share / ways(share, 1.0, 4, G)[i] for share in shares]
                elif way == "all-gather":
                    continue  # whose backward nobody measured
                else:
                    one = 16 * (1 + BACKWARD_TILE)
                    speeds = [one * share / training(ways, share, 1.0, 4, G)[i // 2] for share in shares]
                ax.plot(shares, speeds, linestyle=line, **look)
                speed = here["one GPU"] / here[way]
                edge = {"markersize": 8, "markeredgecolor": "white", "markeredgewidth": 0.7}
                ax.plot(here["x"], speed, marker, **edge, **look)
                ax.plot([], [], marker, linestyle=line, label=way, **look)
            for x in here["x"]:
                ax.axvline(x, color="grey", linestyle=":", linewidth=1, zorder=0)
            name = ax.text(0.97, 0.05, f"R = 4, G = {G}", transform=ax.transAxes, ha="right", fontsize=13)
            name.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1})
            ax.set_xscale("log", base=2)
            ax.set_xticks([1 / 8, 1 / 2, 2, 8], ["1/8", "1/2", "2", "8"])
            ax.minorticks_off()
            ax.grid(visible=False, axis="x")
            ax.set_ylim(0, 4.3)
            if row == 0:
                top = ax.secondary_xaxis("top")
                names = [f"{S:,} {link}" for S, link in zip(here["S"], here["link"], strict=True)]
                top.set_xticks([*here["x"]], names, rotation=65, ha="left", rotation_mode="anchor", fontsize=9)
                top.minorticks_off()
            else:
                ax.set_xlabel("$x = T_c / T_s$")
        grid[row, 0].set_ylabel(f"{words},\ntimes as fast as one GPU")
    grid[0, 0].plot([], [], color="grey", label="line: your clock")
    grid[0, 0].plot([], [], "o", color="grey", label="mark: four H200s")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside right center")
    return figure


def crossing(ways: Callable, ranks: int, G: int, way: str) -> float:
    """The least x, in hundredths, with which a ring is as fast as Ulysses by exercise 13.8's `ways`. way: "forward" or
    "training"."""
    for x in (i / 100 for i in range(1, 1_000)):
        ring_s, *_, ulysses_s = ways(x, 1.0, ranks, G) if way == "forward" else training(ways, x, 1.0, ranks, G)
        if ring_s <= ulysses_s + 1e-9:
            return x if x > 0.01 else 0.0
    return float("inf")


def print_crossings(ways: Callable) -> None:
    """From which x on a ring is as fast as Ulysses by exercise 13.8's `ways`."""
    print(f"from which x on a ring wins{'forward':>12}{'forward and backward':>34}")
    print(" " * 17 + "".join(f"{f'G = {G}':>9}" for G in (1, 4, 8)) * 2)
    for ranks in (4, 8):
        told = [crossing(ways, ranks, G, way) for way in ("forward", "training") for G in (1, 4, 8)]
        print(f"{f'{ranks} GPUs':17}", *(f"{x:9.2f}" for x in told), sep="")


def print_exchanges(ways: Callable, rows: pd.DataFrame) -> None:
    """Ms of Ulysses' exchanges: by exercise 13.8's `ways`, by themselves, and what they add to a forward's tiles."""
    times = long_ones(rows, "forward")
    print("ms that Ulysses' exchanges take       your clock   alone   in the forward")
    for case in HOST + NVLINK:
        found = times.loc[case]
        clocked = ways(found["T_c"], found["T_s"], 4, 16 // case[2])[2] - 4 * found["T_c"]
        told = clocked, found["exchanging alone"], found["Ulysses"] - 4 * found["T_c"]
        print(f"{name_of(case):36}", "{:12.1f}{:8.1f}{:17.1f}".format(*told), sep="")


def print_choice(rows: pd.DataFrame) -> None:
    """Ms of one GPU and of each way on four, for each of CHOICES: forward, and forward and backward together. x only
    where it isn't launches that decide."""
    forward, backward = (times_of(rows, way).set_index(INDEX) for way in ("forward", "backward"))
    both = forward + backward[["one GPU", "ring", "Ulysses"]]
    print(f"{'':45}forward, ms{'':26}forward and backward, ms")
    print(f"{'':36}{'x':>5}   one GPU   ring  all-gather  Ulysses   one GPU    ring  Ulysses")
    for case in CHOICES:
        x = f"{forward.loc[case, 'x']:.2f}" if case[1] > LAUNCHES else ""
        told = [x] + [forward.loc[case, name] for name in ("one GPU", *WAYS)]
        told += [both.loc[case, name] for name in ("one GPU", "ring", "Ulysses")]
        print(f"{name_of(case):35}", "{:>5} {:9.1f} {:6.1f} {:11.1f} {:8.1f} {:9.1f} {:7.1f} {:8.1f}".format(*told))


def print_memory(rows: pd.DataFrame) -> None:
    """The most GB that a GPU holds, with q, k, v and do: of one GPU and of each way on four. The link
    changes nothing."""
    rows = rows[rows["ranks"].eq(4) & rows["link"].eq("host memory")]
    forward, both = (
        rows.pivot(index=INDEX, columns="provider", values=name).astype(float) / 1e9
        for name in ("forward_peak_bytes", "peak_bytes")
    )
    print(f"{'GB on each GPU':23}{'forward':>13}{'forward and backward':>50}")
    print(f"{'':23}   one GPU   ring  all-gather  Ulysses   one GPU    ring  Ulysses")
    for case in HOST[1:]:
        told = [forward.loc[case, name] for name in ("one GPU", *WAYS)]
        told += [both.loc[case, name] for name in ("one GPU", "ring", "Ulysses")]
        name = f"{case[1]:,} tokens, G = {16 // case[2]}"
        print(f"{name:23}", "{:9.1f} {:6.1f} {:11.1f} {:8.1f} {:9.1f} {:7.1f} {:8.1f}".format(*told))
    print("all-gather and Ulysses: less a buffer that the measurement held, one rank's k and v")


def print_peer(rows: pd.DataFrame) -> None:
    """PyTorch's context_parallel, with two backends of SDPA, beside the ring, forward, on two GPUs."""
    peer = rows[rows["provider"].eq("context_parallel")].set_index("backend")
    cudnn, flash = (peer.loc[f"{name}_ATTENTION"] for name in ("CUDNN", "FLASH"))
    ring_ms = cudnn["ring_forward_ms"]  # of 2026-11-27, before merge_kernel
    told = f"context_parallel {cudnn['forward_ms']:.1f} with cuDNN, {flash['forward_ms']:.1f} with FLASH_ATTENTION"
    print(f"{LONG:,} tokens, forward, on two GPUs: ring, joined by PyTorch, {ring_ms:.1f} ms, {told}")


def print_million(rows: pd.DataFrame) -> None:
    """Seconds of a million tokens, forward and backward, on one GPU and on four."""
    case = rows[rows["S"].eq(MILLION)].set_index("provider")
    one, four = ((case.loc[name, "forward_ms"] + case.loc[name, "backward_ms"]) / 1e3 for name in ("one GPU", "ring"))
    print(f"{MILLION:,} tokens, forward and backward, once: {one:.1f} s on one GPU, {four:.1f} s on four")


# ---------------------------------------------------------------- a step of training


class Model(torch.nn.Module):
    """One layer: 32 different tokens, 2 heads, D = 16. The same weights in every process."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.token, self.place = torch.nn.Embedding(32, 32), torch.nn.Embedding(64, 32)
        self.qkv, self.logits = torch.nn.Linear(32, 96), torch.nn.Linear(32, 32)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, attend: Callable) -> torch.Tensor:
        x = self.token(tokens) + self.place(positions)
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4)  # (B, H, S, D)
        return self.logits(attend(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

    def gradient(self) -> torch.Tensor:
        """That of all weights, one after the other."""
        return torch.cat([weight.grad.flatten().cpu() for weight in self.parameters()])


def text() -> torch.Tensor:
    """(1, 65) tokens, the same in every process: 64 to read, each with the next one as its target."""
    return torch.randint(0, 32, (1, 65), generator=torch.Generator().manual_seed(0)).to(hardware.device())


def train_step() -> torch.Tensor:
    """One rank's step: the gradient of all weights, summed over the ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model, whole = Model().to(hardware.device()), text()
    S = whole.shape[1] - 1  # a multiple of 2 · ranks
    tokens, targets = (ring.shard(x, rank, ranks, dim=1) for x in (whole[:, :-1], whole[:, 1:]))
    positions = ring.shard(torch.arange(S, device=whole.device), rank, ranks, dim=0)
    logits = model(tokens, positions, ring.ring_attention)  # in place of flash_attention
    loss = cross_entropy(logits[0], targets[0], reduction="sum") / S  # S, not S / ranks
    loss.backward()
    for weight in model.parameters():
        dist.all_reduce(weight.grad)  # the sum over all ranks; DistributedDataParallel averages
    return model.gradient()


def train_step_with(*edits: tuple[str, str]) -> torch.Tensor:
    """What train_step gives after these changes of its text, (old, new)."""
    return defined(edited(source_of(train_step), *edits), globals())["train_step"]()


def whole_step() -> torch.Tensor:
    """The same gradient by one process, of the whole sequence and plain attention."""
    model, whole = Model().to(hardware.device()), text()
    logits = model(whole[:, :-1], torch.arange(whole.shape[1] - 1, device=whole.device), reference.naive_attention)
    cross_entropy(logits[0], whole[0, 1:]).backward()
    return model.gradient()


# ---------------------------------------------------------------- other ways to share a sequence, forward alone


@torch.no_grad()
def all_gather_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention of zigzag shards, with all of k and v on every rank (Llama 3; Dubey et al., 2024, section
    3.3.2).

    Arguments and result as ring_attention's with is_causal.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    parts = [torch.empty_like(kv := torch.stack((k, v))) for _ in range(ranks)]
    dist.all_gather(parts, kv)
    k, v = ring.unshard(parts, dim=3)
    chunk = q.shape[2] // 2
    ends = (rank + 1) * chunk, (2 * ranks - rank) * chunk  # a chunk of q sees the keys up to its own end
    chunks = zip(q.chunk(2, 2), ends, strict=True)
    return torch.cat([flash_attention(x, k[:, :, :end], v[:, :, :end], is_causal=True) for x, end in chunks], 2)


def ulysses_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention of shards in plain order: each rank gets some heads of the whole sequence (Jacobs et al., 2023).

    q, k, v: (B, H, S / ranks, D), H_q and H_k multiples of the number of ranks. Returns o like q, with its gradients.
    """
    return to_tokens(flash_attention(*map(to_heads, (q, k, v)), is_causal=True))


def to_heads(x: torch.Tensor) -> torch.Tensor:
    """(B, H, S / ranks, D), some tokens of all heads: (B, H / ranks, S, D), all tokens of some heads."""
    return torch.cat([*AllToAll.apply(torch.stack(x.chunk(dist.get_world_size(), dim=1)))], dim=2)


def to_tokens(x: torch.Tensor) -> torch.Tensor:
    """The way back from to_heads."""
    return torch.cat([*AllToAll.apply(torch.stack(x.chunk(dist.get_world_size(), dim=2)))], dim=1)


class AllToAll(torch.autograd.Function):
    """x[i] goes to rank i, and rank i's part for this one comes. So do the gradients."""

    @staticmethod
    def forward(ctx, x):
        received = torch.empty_like(x)
        dist.all_to_all_single(received, x)
        return received

    @staticmethod
    def backward(ctx, dx):
        return AllToAll.apply(dx.contiguous())
