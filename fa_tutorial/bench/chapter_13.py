"""Chapter 13: what each rank of a process group runs, other ways to share a sequence, and stored results."""

from __future__ import annotations

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
    kind = "causal" if is_causal else "full"
    print(
        f"{ranks} processes, S = {S:,} in shards of {S // ranks:,}, {H_q} query heads on {H_k} key heads, D = {D}, "
        f"{kind}"
    )
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


def forward_times(rows: pd.DataFrame) -> pd.DataFrame:
    """Forward ms on four GPUs, a row for each link, S and H_k, a column a provider; x = T_c / T_s, and W in byte/s.

    rows: load()'s. T_s and W are those of a row's own messages.
    """
    rows = rows[rows["ranks"].eq(4)]
    times = rows.pivot(index=["link", "S", "H_k"], columns="provider", values="forward_ms").astype(float).reset_index()
    T_s = times["sending alone"] / 3
    message = 2 * times["H_k"].astype(float) * (times["S"] // 4) * 128 * 2  # bytes
    return times.assign(x=times["computing alone"] / 4 / T_s, W=1e3 * message / T_s)


def print_orders(rows: pd.DataFrame) -> None:
    """The time in plain order over that in zigzag order, and zigzag order's forward with and without sends: four GPUs,
    16 key heads, over NVLink."""
    rows = rows[rows["H_k"].eq(16) & rows["ranks"].eq(4) & rows["link"].eq("NVLink")]
    times = rows.pivot(index="S", columns="provider", values=["forward_ms", "backward_ms"]).astype(float)
    print("                      plain / zigzag       zigzag, forward ms")
    print("                    forward  backward    with sends   without")
    for S in times.index:
        found = times.loc[S]
        forward, backward = (found[way, "plain order"] / found[way, "ring"] for way in ("forward_ms", "backward_ms"))
        with_sends, without = found["forward_ms", "ring"], found["forward_ms", "computing alone"]
        print(f"{S:9,} tokens {forward:10.2f} {backward:9.2f} {with_sends:13,.1f} {without:9,.1f}")


CASES = (("NVLink", 131_072), ("NVLink", 1_048_576), ("host memory", 131_072), ("host memory", 262_144))


def parts(rows: pd.DataFrame, way: str, provider: str) -> pd.DataFrame:
    """Where the ms of four GPUs go, a row for each case, with 16 key heads.

    rows: load()'s. way: "forward" or "backward". provider: "ring", which uses the counter, or "equal shares".
    """
    rows = rows[rows["H_k"].eq(16) & rows["ranks"].eq(4)]
    ms = rows.pivot(index=["link", "S"], columns="provider", values=f"{way}_ms").astype(float).loc[list(CASES)]
    T_s = forward_times(rows).set_index(["link", "S"])["sending alone"].loc[list(CASES)] / 3
    alone = ms["equal shares alone" if provider == "equal shares" else "computing alone"]
    quarter = ms["one GPU"] / 4
    return pd.DataFrame({
        "T_c": alone / 4, "T_s": T_s, "quarter of one GPU": quarter, "+ tiles, joins": alone - quarter,
        "+ sends": ms[provider] - alone, "= measured": ms[provider],
    })  # fmt: skip


def print_parts(rows: pd.DataFrame, way: str, provider: str) -> None:
    """The table of parts(rows, way, provider)."""
    found = parts(rows, way, provider)
    print(f"{way + ', ms':21}", *(f"{name:>{max(len(name), 7)}}" for name in found), sep="   ")
    for (link, S), case in found.iterrows():
        numbers = (f"{ms:{max(len(name), 7)},.1f}".replace("-", "−") for name, ms in case.items())
        print(f"{S:9,} {link:11}", *numbers, sep="   ")


def plot_parts(rows: pd.DataFrame) -> Figure:
    """The forward's parts with equal shares and with the counter, over a quarter of one GPU's time."""
    figure = Figure(figsize=(8.4, 3.8))
    ax = figure.subplots()
    shares = {"equal shares": parts(rows, "forward", "equal shares"), "counter": parts(rows, "forward", "ring")}
    colours = {"quarter of one GPU": "sky", "+ tiles, joins": "orange", "+ sends": "vermilion"}
    places, labels = [], []
    for i, (link, S) in enumerate(CASES):
        for j, (name, found) in enumerate(shares.items()):
            case, place, left = found.loc[link, S], 2.6 * i + j, 0.0
            for part, colour in colours.items():
                width = case[part] / case["quarter of one GPU"]
                label = part.removeprefix("+ ") if not places else None
                ax.barh(place, width, 0.8, left, color=figures.COLOURS[colour], label=label)
                left += width
            ax.text(left + 0.02, place, f"{case['= measured']:,.1f} ms", va="center")
            places.append(place)
            labels.append(f"{S:,} tokens, {link}: {name}" if j == 0 else name)
    ax.set_yticks(places, labels)
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")
    ax.set_xlim(0, 2.6)
    ax.set_xlabel("forward / a quarter of one GPU's forward")
    figure.legend(loc="outside upper center", ncols=3)
    return figure


def print_tiles(kernels: pd.DataFrame) -> None:
    """Rank 1's tiles of a million tokens, each repeated by itself on one GPU; its four tiles and three joins in all.

    kernels: those of results.load().
    """
    found = kernels[kernels["kernel"].isin(["ring_tile", "ring_join"]) & kernels["S"].eq(1_048_576)]
    found = found.set_index(["kernel", "provider", "counter"]).sort_index()
    meets = {"own": 1, "earlier": 1, "later": 2}  # ranks 1, 0, and 3 and 2
    joins = sum(meets[owner] * found.loc[("ring_join", owner)]["ms"].item() for owner in ("earlier", "later"))
    print("1,048,576 tokens         own tile     earlier keys       later keys     4 tiles  3 joins")
    print("rank 1 of 4           TFLOP/s    MHz   TFLOP/s    MHz   TFLOP/s    MHz       ms       ms")
    for counter in (False, True):
        tiles = {owner: found.loc[("ring_tile", owner, counter)] for owner in meets}
        speeds = "".join(f"{tile['tflops']:10.0f} {tile['mhz']:6,}" for tile in tiles.values())
        ms = sum(meets[owner] * tile["ms"] for owner, tile in tiles.items())
        print(f"{'counter' if counter else 'equal shares':18} {speeds} {ms:10,.1f} {joins:8.1f}")
    watts = found.loc["ring_tile"]["watts"]
    print(f"each tile draws {watts.min()} to {watts.max()} W")


LAUNCHES = 32_768  # in sequences up to so long they decide, not x
WAYS = {"ring": ("blue", "-", "o"), "all-gather": ("orange", "--", "s"), "Ulysses": ("vermilion", "-.", "^")}


def plot_ways(ways: Callable, rows: pd.DataFrame) -> Figure:
    """How many times as fast as one GPU four are, forward, against x = T_c / T_s: exercise 13.8's `ways`, and measured.

    rows: load()'s. Shorter sequences are left out: launches decide there.
    """
    times = forward_times(rows)
    times = times[times["S"] > LAUNCHES]
    figure = Figure(figsize=(9, 3.6))
    shares = [2 ** (i / 8) for i in range(-24, 57)]
    for ax, H_k in zip(figure.subplots(1, 2, sharey=True), (16, 4), strict=True):
        for i, (way, (colour, line, marker)) in enumerate(WAYS.items()):
            look = {"color": figures.COLOURS[colour]}
            speeds = [16 * share / ways(share, 1.0, 4, 16 // H_k)[i] for share in shares]
            ax.plot(shares, speeds, linestyle=line, label=f"{way}: clock", **look)
            for link, fill in (("host memory", "full"), ("NVLink", "none")):
                here = times[times["link"].eq(link) & times["H_k"].eq(H_k)]
                ax.plot(here["x"], here["one GPU"] / here[way], marker, fillstyle=fill, **look)
        ax.set_title(f"g = {16 // H_k}")
        ax.set_xscale("log", base=2)
        ticks = [1 / 8, 1, 8, 64]
        ax.set_xticks(ticks, ["1/8", "1", "8", "64"])
        ax.minorticks_off()
        ax.set_xlabel("x = T_c / T_s")
        ax.plot([], [], "o", color="grey", label="over host memory")
        ax.plot([], [], "o", color="grey", fillstyle="none", label="over NVLink")
    figure.axes[0].set_ylabel("4 GPUs: times as fast as one")
    figure.axes[0].text(80, 3.35, "a million\ntokens", ha="center", va="top")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center")
    return figure


def print_ways(rows: pd.DataFrame) -> None:
    """Forward times of one GPU and of each way, and PyTorch's context_parallel on two GPUs. Ways within 10 % of
    the fastest are as fast."""
    times = forward_times(rows).sort_values(["H_k", "S", "link"], ascending=[False, True, True])
    names = ["one GPU", *WAYS]
    print("forward, ms                   g      x    one GPU      ring  all-gather  Ulysses  fastest")
    for _, case in times.iterrows():
        found = case[names].dropna().astype(float)
        ms = "".join(f"{found[name]:10,.2f} " if name in found else "         – " for name in names)
        fastest = ", ".join(found.index[found <= 1.1 * found.min()]) if len(found) == len(names) else "–"
        x = f"{case['x']:.2f}" if case["S"] > LAUNCHES else "–"
        print(f"{case['S']:9,} {case['link']:17} {16 // case['H_k']:3} {x:>6} {ms} {fastest}")
    twice = times[times["S"].eq(65_536)]["computing alone"]
    print("65,536 tokens, the ring without sends, measured twice:", *(f"{ms:.1f} ms" for ms in twice))
    here = rows[rows["S"].eq(131_072) & rows["link"].eq("NVLink")]
    for g in (1, 4):
        peaks = here[here["H_k"].eq(16 // g) & here["ranks"].eq(4)].set_index("provider")["peak_bytes"] / 1e9
        print(f"131,072 tokens, g = {g}, GB on each, forward: all-gather {peaks['all-gather']:.1f}", end=", ")
        print(f"Ulysses {peaks['Ulysses']:.1f}; ring, with its backward: {peaks['ring']:.1f}")
    peer = here[here["backend"].eq("CUDNN_ATTENTION")].iloc[0]
    for name, prefix in (("context_parallel", ""), ("ring", "ring_")):
        forward, backward, peak = (peer[f"{prefix}{what}"] for what in ("forward_ms", "backward_ms", "peak_bytes"))
        print(f"2 GPUs, {name:16}: forward {forward:.1f} ms, backward {backward:.1f} ms, {peak / 1e9:.1f} GB on each")


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
    return torch.cat(
        [
            flash_attention(x, k[:, :, :end], v[:, :, :end], is_causal=True)
            for x, end in zip(q.chunk(2, 2), ends, strict=True)
        ],
        2,
    )


@torch.no_grad()
def ulysses_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Causal attention of shards in plain order: each rank gets some heads of the whole sequence (Jacobs et al., 2023).

    q, k, v: (B, H, S / ranks, D), H_q and H_k multiples of the number of ranks. Returns o like q.
    """
    q, k, v = (
        torch.cat(exchange(x.chunk(dist.get_world_size(), dim=1)), dim=2) for x in (q, k, v)
    )  # (B, H / ranks, S, D)
    o = flash_attention(q, k, v, is_causal=True)
    return torch.cat(exchange(o.chunk(dist.get_world_size(), dim=2)), dim=1)


def exchange(parts: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Part i goes to rank i, and rank i's part for this one comes: an all-to-all."""
    sent = torch.stack(parts)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    return list(received)
