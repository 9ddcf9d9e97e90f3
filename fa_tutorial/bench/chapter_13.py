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


def hand_over(is_send_first: bool) -> int:
    """One of two ranks hands its number to the other. Returns the number that comes."""
    rank = dist.get_rank()
    mine, coming, other = torch.tensor(rank), torch.tensor(-1), 1 - rank
    if is_send_first:
        dist.send(mine, other)  # with gloo, returns when the other rank has taken it
        dist.recv(coming, other)
    else:
        works = dist.isend(mine, other), dist.irecv(coming, other)  # both return at once
        for work in works:
            work.wait()
    return coming.item()


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
KEYS_AT_ONCE = 32_768  # in a launch of a tile of a million tokens, where it gets its keys in pieces
CASES = (("NVLink", 131_072), ("host memory", 131_072), ("host memory", 262_144))  # images/explore/ring_clock.html's


def cases(rows: pd.DataFrame, way: str) -> list[tuple[str, float, float]]:
    """(its name, T_c, T_s) of each of CASES, with 16 key heads, in ms."""
    found = times_of(rows, way)
    found = found[found["H_k"].eq(16)].set_index(["link", "S"]).loc[list(CASES)]
    return [(f"{S:9,} {link:11}", case["T_c"], case["T_s"]) for (link, S), case in found.iterrows()]


def long_ones(rows: pd.DataFrame, way: str) -> pd.DataFrame:
    """times_of all cases that were measured five times and in which launches don't decide, by INDEX."""
    found = times_of(rows, way).sort_values(["link", "S", "H_k"], ascending=[True, True, False])
    return found[found["S"].between(LAUNCHES + 1, MILLION - 1)].set_index(INDEX)


def print_orders(rows: pd.DataFrame) -> None:
    """Forward in plain and in zigzag order: four GPUs, 16 key heads, over NVLink."""
    times = times_of(rows)
    print("forward, ms         plain    zigzag   ratio")
    for _, case in times[times["H_k"].eq(16) & times["link"].eq("NVLink")].iterrows():
        if LAUNCHES <= case["S"] < MILLION:
            plain, zigzag = case["plain order"], case["ring"]
            print(f"{case['S']:9,} tokens {plain:8,.1f} {zigzag:9,.1f} {plain / zigzag:7.2f}")


def visitors(rank: int) -> dict[str, int]:
    """How many of a rank's three visitors come from earlier ranks, and how many from later ones."""
    return {"earlier": rank, "later": 3 - rank}


def tiles_of(rank: int) -> float:
    """Ms of a rank's four tiles, each measured by itself on one GPU."""
    tiles = {"own": 1} | visitors(rank)
    return sum(n * part_of("ring_tile", name, LONG, counter=True)["ms"] for name, n in tiles.items())


def joins_of(rank: int, way: str = "ring_join") -> float:
    """Ms of a rank's three joins, each measured by itself on one GPU. way: a key of PASSES."""
    return sum(n * part_of(way, name, LONG)["ms"] for name, n in visitors(rank).items())


def print_parts(rows: pd.DataFrame) -> None:
    """Ms of a quarter of the heads on one GPU; of four tiles and three joins of the first rank and of the last; and of
    a run of all ranks that sends nothing."""
    alone = times_of(rows).set_index(INDEX).loc[("NVLink", LONG, 16), "computing alone"]
    quarter = part_of("ring_tile", "one GPU", LONG)["ms"]
    print("forward, ms   a quarter of   four  three          all four ranks,")
    print("                 the heads  tiles  joins     sum  sending nothing")
    for rank in (0, 3):
        told = quarter, tiles_of(rank), joins_of(rank), tiles_of(rank) + joins_of(rank), alone
        print(f"rank {rank}       ", "{:14,.1f} {:6,.1f} {:6.1f} {:7,.1f} {:16,.1f}".format(*told))


PASSES = {"ring_join": ("PyTorch's operations", 8.5), "ring_join_kernel": ("one kernel", 2.5)}  # of a float32 o


def print_joins() -> None:
    """Ms of the join of an earlier rank's part, by its passes at a copy's speed and measured; and of rank 3's joins."""
    copied = 2.5 / part_of("ring_join_copy", "earlier", LONG)["ms"]  # passes in a ms, by a copy of as many bytes
    print("an earlier rank's part, ms   passes   at a copy's speed   measured   rank 3's three joins")
    for way, (name, passes) in PASSES.items():
        measured = part_of(way, "earlier", LONG)["ms"]
        print(f"{name:26} {passes:8} {passes / copied:19.3f} {measured:10.3f} {joins_of(3, way):22.1f}")


def print_million(rows: pd.DataFrame) -> None:
    """Of a million tokens: one GPU and four; a tile's ms and its SMs' frequency, of one GPU's run, of a later rank's
    keys, and of these by equal shares and in launches of KEYS_AT_ONCE."""
    case = rows[rows["S"].eq(MILLION)].set_index("provider")
    for way in ("forward", "backward"):
        one, four = case[f"{way}_ms"]["one GPU"], case[f"{way}_ms"]["ring"]
        times = f"{one:6,.0f} ms on one GPU, {four:5,.0f} on four"
        print(f"{MILLION:,} tokens, {way:8}: {times}: {one / four:.1f} times as fast")
    for words, provider, parts, how in (
        ("a sixteenth of one GPU's forward", "one GPU", 4, {}),
        ("a later rank's tile", "later", 1, {}),
        ("with equal shares", "later", 1, {"counter": False}),
        (f"in pieces of {KEYS_AT_ONCE:,} keys", "later", 1, {"keys_at_once": KEYS_AT_ONCE}),
    ):
        row = part_of("ring_tile", provider, MILLION, **{"counter": True} | how)  # one GPU's has a quarter of the heads
        print(f"{words:33}: {row['ms'] / parts:.0f} ms at {row['mhz']:,.0f} MHz and {row['watts']:.0f} W")


def part_of(kernel: str, provider: str, S: int, **wanted) -> pd.Series:
    """The stored row of one tile or join of a rank of four, measured on one GPU."""
    found = results.select(results.load("h200")["kernels"], chapter=13, kernel=kernel, provider=provider, S=S, **wanted)
    return (found if "keys_at_once" in wanted else found[found["keys_at_once"].isna()]).iloc[0]


def on_clock(
    way: str, T_c: float, T_s: float, ranks: int = 4, *, own: str = "first", messages: int = 2,
    is_held: bool = False, is_shared: bool = False,
) -> float:  # fmt: skip
    """How long a rank takes, in the units of T_c and T_s. images/explore/ring_clock.html draws it.

    way: "forward", or "backward", where dk and dv take 2 T_s. own: when the backward computes its own tile, "first" or
    "last". messages: how many dk and dv and k and v are, where they leave at one time. is_held: a message holds SMs,
    so that the second of two waits for the tile's end, unless the first outlasts it. is_shared: then a forward's
    program whose SM is held starts late with its whole share, in each tile but the own, which has a counter.
    """
    total = 0.0
    for tile, leaves in steps_of(way, own, T_c, T_s, ranks):
        sending = sum(leaves)
        is_late = is_held and messages == len(leaves) == 2 and leaves[0] < tile
        is_whole = is_held and is_shared and way == "forward" and total > 0
        total += tile + leaves[1] if is_late else tile + sending if is_whole else max(tile, sending)
    return total


def steps_of(way: str, own: str, T_c: float, T_s: float, ranks: int) -> list[tuple[float, list[float]]]:
    """A rank's steps: (its tile, 0 for none, and the messages that leave beside it, in this order)."""
    last = ranks - 1
    if way == "forward":
        return [(T_c, [T_s] * (step < last)) for step in range(ranks)]
    if own == "first":
        tiles = [(T_c, [2 * T_s] * (step > 0) + [T_s] * (step < last)) for step in range(ranks)]
        return [*tiles, (0.0, [2 * T_s])]
    visitors = [(T_c, [2 * T_s] * (step > 0) + [T_s] * (step < last - 1)) for step in range(last)]
    return [(0.0, [T_s]), *visitors, (T_c, [2 * T_s])]


def forward_sends(rows: pd.DataFrame) -> pd.DataFrame:
    """T_c and T_s of each case, and what sends add to the ms of its forward: by the clock, measured with equal shares
    and with the counter, and what programs that start late would add to equal shares."""
    found = long_ones(rows, "forward")
    sends = {"clock": {}, "late programs": {"is_held": True, "is_shared": True}}
    sends = {name: added(found, "forward", **how) for name, how in sends.items()}
    measured = {
        "equal shares": found["equal shares"] - found["equal shares alone"],
        "counter": found["ring"] - found["computing alone"],
    }
    return found[["T_c", "T_s"]].assign(**sends, **measured)


def backward_sends(rows: pd.DataFrame, own: str) -> pd.DataFrame:
    """What sends add to the ms of each case's backward, with the own tile "first" or "last": by the clock, with a
    second message that waits for its tile's end, measured with two messages and with one, and, with the own tile last,
    the package's, which is that with one message in another measurement of the same run."""
    found = long_ones(rows, "backward")
    sends = {
        "clock": added(found, "backward", own=own),
        "late second": added(found, "backward", own=own, is_held=True),
    }
    for name in ("two messages", "one message"):
        sends[name] = found[f"own tile {own}, {name}"] - found["computing alone"]
    if own == "last":
        sends["one, again"] = found["ring"] - found["computing alone"]
    return pd.DataFrame(sends, index=found.index)


def added(found: pd.DataFrame, way: str, **how) -> list[float]:
    """What sends add to four tiles of each case, on the clock."""
    return [on_clock(way, T_c, T_s, **how) - 4 * T_c for T_c, T_s in zip(found["T_c"], found["T_s"], strict=True)]


MODELS = {  # of what is measured
    "equal shares": "late programs", "counter": "clock",
    "two messages": "late second", "one message": "clock", "one, again": "clock",
}  # fmt: skip


def print_sends(tables: dict[str, pd.DataFrame]) -> None:
    """What sends add to the ms of each case over the host's memory, each model before what it tells; and the most that
    they add over NVLink.

    tables: forward_sends or backward_sends, by what their programs share.
    """
    print("ms that sends add, over the host's memory")
    for words, table in tables.items():
        names = [name for name in MODELS if name in table]
        others, clocked = (
            [name for name in names if (MODELS[name] == "clock") == is_clock] for is_clock in (False, True)
        )
        columns = ["clock", *clocked, MODELS[others[0]], *others]
        print(f"{words:22}", *(f"{name:>13}" for name in columns))
        for (S, H_k), case in table.loc["host memory"].iterrows():
            print(f"{S:9,} tokens, G = {16 // H_k}", *(f"{case[name]:13.1f}" for name in columns))
        print(f"over NVLink, at most   {'':13}", *(f"{table.loc['NVLink'][name].max():13.1f}" for name in columns[1:]))


def print_alone(rows: pd.DataFrame) -> None:
    """Forward ms with the counter and with equal shares, without sends and with them: 262,144 tokens over the host's
    memory."""
    case = times_of(rows).set_index(INDEX).loc["host memory", 262_144, 16]
    for words, counter, shares in (
        ("without sends", "computing alone", "equal shares alone"),
        ("with sends", "ring", "equal shares"),
    ):
        print(f"262,144 tokens, {words:13}: counter {case[counter]:.1f} ms, equal shares {case[shares]:.1f}")


LOOKS = {  # programs and their models
    "late programs": "vermilion", "late second": "vermilion", "equal shares": "vermilion", "two messages": "vermilion",
    "clock": "blue", "counter": "blue", "one message": "blue", "one, again": "blue",
}  # fmt: skip
MARKERS = {"marker": "s", "fillstyle": "none"}, {"marker": "o", "fillstyle": "full"}  # for another model, for the clock


def plot_sends(tables: dict[str, pd.DataFrame]) -> Figure:
    """What sends add to the ms of each case over the host's memory, by the models and measured. tables: as print_sends,
    one a panel."""
    tables = {words: table.loc["host memory"] for words, table in tables.items()}
    figure = Figure(figsize=(9, 2.9))
    axes = figure.subplots(1, len(tables), sharex=True, sharey=True, squeeze=False)[0]
    for ax, (words, table) in zip(axes, tables.items(), strict=True):
        programs = [name for name in MODELS if name in table]
        first = {"clock": 0.17} | {MODELS[programs[0]]: -0.17}  # each model, and what it tells, in a line of its own
        for name in programs:
            model, colour = MODELS[name], figures.COLOURS[LOOKS[name]]
            for y, (_, case) in enumerate(table.iterrows()):
                at = y + first[model]
                ax.plot([case[model], case[name]], [at, at], color=colour, linestyle="-", linewidth=1)
                ax.plot(case[model], at, "|", color=colour, markersize=11, markeredgewidth=2.5)
                ax.plot(case[name], at, color=colour, markersize=6, **MARKERS[model == "clock"])
        for y in range(1, len(table)):
            ax.axhline(y - 0.5, color="#DDDDDD", linestyle="-", linewidth=0.8)
        ax.grid(visible=False, axis="y")
        ax.set(title=words if len(tables) > 1 else "", xlabel="ms that sends add", ylim=(len(table) - 0.5, -0.5))
        ax.set_yticks(range(len(table)), [f"{S:,} tokens, G = {16 // H_k}" for S, H_k in table.index])
        ax.tick_params(axis="y", length=0)
    ax = axes[0]
    for model in (MODELS[programs[0]], "clock"):
        told = " and ".join(name for name in programs if MODELS[name] == model and name != "one, again")
        look = {"color": figures.COLOURS[LOOKS[model]], "linestyle": "none"}
        ax.plot([], [], "|", markersize=11, markeredgewidth=2.5, label=f"model: {model}", **look)
        ax.plot([], [], markersize=6, label=f"measured: {told}", **look, **MARKERS[model == "clock"])
    figure.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure


def print_noise(rows: pd.DataFrame) -> None:
    """How far two measurements of the package's backward are apart at most."""
    found = long_ones(rows, "backward")
    apart = (found["ring"] - found["own tile last, one message"]).abs()
    shares = apart / found["ring"]
    print(f"one message, measured twice: up to {apart.max():.1f} ms apart, and up to {shares.max():.0%}")


WAYS = {"ring": ("blue", "-", "o"), "all-gather": ("orange", "--", "s"), "Ulysses": ("vermilion", "-.", "^")}


def plot_ways(ways: Callable, rows: pd.DataFrame) -> Figure:
    """How many times as fast as one GPU four are, forward, against x = T_c / T_s: exercise 13.8's `ways`, and measured.

    rows: load()'s, of which long_ones.
    """
    times = long_ones(rows, "forward").reset_index()
    figure = Figure(figsize=(9, 3.8))
    shares = [2 ** (i / 8) for i in range(-24, 33)]
    for ax, H_k in zip(figure.subplots(1, 2, sharey=True), (16, 4), strict=True):
        here = times[times["H_k"].eq(H_k)]
        for i, (way, (colour, line, marker)) in enumerate(WAYS.items()):
            look = {"color": figures.COLOURS[colour]}
            speeds = [16 * share / ways(share, 1.0, 4, 16 // H_k)[i] for share in shares]
            ax.plot(shares, speeds, linestyle=line, **look)
            ax.plot([], [], marker, linestyle=line, label=way, **look)
            for link, fill in (("host memory", "full"), ("NVLink", "none")):
                one = here[here["link"].eq(link)]
                ax.plot(one["x"], one["one GPU"] / one[way], marker, fillstyle=fill, **look)
        for S, x, lowest in zip(here["S"], here["x"], (here["one GPU"] / here[[*WAYS]].max(axis=1)), strict=True):
            label = ax.annotate(f"{S:,}", (x, lowest), (0, -9), textcoords="offset points", fontsize=10)
            label.set(ha="center", va="top", bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})
        ax.set_title(f"G = {16 // H_k}")
        ax.set_xscale("log", base=2)
        ax.set_xticks([1 / 8, 1 / 2, 2, 8], ["1/8", "1/2", "2", "8"])
        ax.minorticks_off()
        ax.set_xlabel("$x = T_c / T_s$")
        ax.plot([], [], color="grey", label="line: the clock")
        ax.plot([], [], "o", color="grey", label="full: host memory")
        ax.plot([], [], "o", color="grey", fillstyle="none", label="open: NVLink")
        ax.set_ylim(0, 4.3)
    figure.axes[0].set_ylabel("4 GPUs: times as fast as one")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center")
    return figure


def in_order(times: pd.DataFrame) -> pd.DataFrame:
    """The rows of times_of in which x decides and each way was measured: by G, and then by x."""
    times = times[(times["S"] > LAUNCHES) & times["Ulysses"].notna()]
    return times.sort_values(["H_k", "x"], ascending=[False, True])


def print_ways(ways: Callable, rows: pd.DataFrame) -> None:
    """Forward ms of each way on four GPUs, by exercise 13.8's `ways` and measured, where launches don't decide; and of
    Ulysses' exchanges alone."""
    names = "   ring all-gather Ulysses its sends"
    print(f"{'':33}clock{'':33}measured")
    print(f"{'forward, ms':21} {'G':>2} {'x':>6}{names}  {names}")
    for _, case in in_order(times_of(rows)).iterrows():
        group = 16 // case["H_k"]
        clock = ways(case["T_c"], case["T_s"], 4, group)
        clock, measured = (*clock, clock[2] - 4 * case["T_c"]), [case[name] for name in (*WAYS, "exchanging alone")]
        told = "  ".join("{:7.1f} {:10.1f} {:7.1f} {:9.1f}".format(*times) for times in (clock, measured))
        print(f"{case['S']:9,} {case['link']:11} {group:2} {case['x']:6.2f}{told}")


def print_new_joins(rows: pd.DataFrame) -> None:
    """Forward ms over NVLink: the ring, the ring less what rank 3's joins save by one kernel, and Ulysses."""
    saved = joins_of(3) - joins_of(3, "ring_join_kernel")
    print("forward, ms, over NVLink      ring, measured   with the kernel, calculated   Ulysses, measured")
    for (S, H_k), case in long_ones(rows, "forward").loc["NVLink"].iterrows():
        told = case["ring"], case["ring"] - saved * S / LONG, case["Ulysses"]  # as many more rows, as much longer
        print(f"{S:9,} tokens, G = {16 // H_k}", "{:20.1f} {:29.1f} {:19.1f}".format(*told))


def print_training(rows: pd.DataFrame) -> None:
    """Ms of forward and backward together, and the most GB on a GPU, by the ring and by Ulysses."""
    forward, backward = (times_of(rows, way).set_index(INDEX) for way in ("forward", "backward"))
    peaks = rows[rows["ranks"].eq(4)].pivot(index=INDEX, columns="provider", values="peak_bytes").astype(float) / 1e9
    print(f"{'forward and backward':50}ms    peak memory, GB")
    print(f"{'':37}  x        ring  Ulysses        ring  Ulysses")
    for _, case in in_order(forward.reset_index()).iterrows():
        here, names = (case["link"], case["S"], case["H_k"]), ["ring", "Ulysses"]
        if (back := backward.loc[here]).notna()["Ulysses"]:
            print(f"{case['S']:9,} {case['link']:13} G = {16 // case['H_k']} {case['x']:9.2f}", end="")
            print("{:12.1f}{:9.1f}{:12.1f}{:9.1f}".format(*(case + back)[names], *peaks.loc[here][names]))


def print_short(rows: pd.DataFrame) -> None:
    """Forward ms of one GPU and of each way on four, over NVLink, where launches decide; PyTorch's context_parallel
    beside the ring, on two GPUs."""
    times = times_of(rows)
    print("forward, ms, over NVLink    one GPU     ring  all-gather  Ulysses")
    for _, case in times[(times["S"] <= LAUNCHES) & times["link"].eq("NVLink")].iterrows():
        print(f"{case['S']:9,} tokens     ", "".join(f"{case[name]:11.2f}" for name in ("one GPU", *WAYS)))
    peer = rows[rows["backend"].eq("CUDNN_ATTENTION")].iloc[0]
    print(f"\n131,072 tokens, 2 GPUs: ring {peer['ring_forward_ms']:.1f}, context_parallel {peer['forward_ms']:.1f}")


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


def train_step() -> tuple[torch.Tensor, torch.Tensor]:
    """One rank's step: the gradient of all weights, before and after the sum over the ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model, whole = Model().to(hardware.device()), text()
    S = whole.shape[1] - 1  # a multiple of 2 · ranks
    tokens, targets = (ring.shard(x, rank, ranks, dim=1) for x in (whole[:, :-1], whole[:, 1:]))
    positions = ring.shard(torch.arange(S, device=whole.device), rank, ranks, dim=0)
    logits = model(tokens, positions, ring.ring_attention)  # in place of flash_attention
    loss = cross_entropy(logits[0], targets[0], reduction="sum") / S  # S, not S / ranks
    loss.backward()
    before = model.gradient()
    for weight in model.parameters():
        dist.all_reduce(weight.grad)  # the sum over all ranks; DistributedDataParallel averages
    return before, model.gradient()


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
