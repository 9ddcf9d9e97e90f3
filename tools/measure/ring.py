"""Measure chapter 13 on the GPUs of this machine, one rank each, over NCCL: PYTHONPATH=tools python -m measure.ring
FILE.

Ring attention beside one GPU, the same computing without sending, sending without computing, shards in plain order,
programs with equal shares of the work, with and without sending, the backward's own tile first and last, and the other
ways to share a sequence. A time is the slowest rank's, the median of a few repeats. With NCCL_P2P_DISABLE=1
messages go through the host's memory. Rows that stand in FILE for other cases stay.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist

from fa_tutorial import attention, flash_attention, processes, ring
from fa_tutorial.bench import chapter_13, results
from fa_tutorial.hopper import forward as hopper_forward

B, H, D, DTYPE = 1, 16, 128, torch.bfloat16
LENGTHS = (8_192, 16_384, 32_768, 65_536, 131_072, 1_048_576)
LINK = "host memory" if os.environ.get("NCCL_P2P_DISABLE") == "1" else "NVLink"
CASE = ("S", "H_k", "ranks", "link", "provider", "backend")
LONG = 500_000  # tokens from which a repeat takes seconds


class NothingSent:
    """In place of ring.Passing: what comes is what was there."""

    def __init__(self, tensors, group, words):
        self.tensors = tensors

    def wait(self):
        return self.tensors


@staticmethod
def own_tile_first(ctx, do, dlse):
    """In place of ring.RingAttention.backward: after the own tile dk and dv travel once more."""
    q, k, v, _, _ = ctx.saved_tensors
    rank, ranks = dist.get_rank(ctx.group), dist.get_world_size(ctx.group)
    dq, kv, dkv = torch.zeros_like(q, dtype=torch.float32), torch.stack((k, v)), None
    for step in range(ranks):
        leaving = ([dkv] if step else []) + ([kv] if step < ranks - 1 else [])
        passing = ring.Passing(leaving, ctx.group, "")
        rows, keys, dq_part, *parts = ring.pair_gradients(ctx, do, dlse, kv, (rank - step) % ranks)
        dq[:, :, rows] += dq_part
        came = passing.wait()
        dkv = came[0] if step else torch.zeros_like(kv, dtype=torch.float32)
        for x, part in zip(dkv, parts, strict=True):
            x[:, :, keys] += part
        kv = came[-1] if step < ranks - 1 else None
    ((dk, dv),) = ring.Passing([dkv], ctx.group, "").wait()
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None, None


def plain_order(rank: int, owner: int, rows: int):
    """In place of ring.visible: the tile of two shards that are S / ranks rows in a row."""
    return (slice(0 if owner <= rank else rows, None), slice(None), owner == rank)


def once(call: Callable[[], object]) -> float:
    """Milliseconds of one call, the slowest rank's."""
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    ms = torch.tensor(begin.elapsed_time(end), device="cuda")
    dist.all_reduce(ms, dist.ReduceOp.MAX)
    return ms.item()


def timed(call: Callable[[], object], repeats: int) -> float:
    """The median of `repeats`, after a first call unless one repeat takes seconds."""
    if repeats > 1:
        call()
    return statistics.median(once(call) for _ in range(repeats))


def timed_in_turns(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Each call's median: all are called once, and then `repeats` times in turns."""
    rounds = [{name: once(call) for name, call in calls.items()} for _ in range(repeats + 1)][1:]
    return {name: statistics.median(found[name] for found in rounds) for name in calls}


def tensors(S: int, H_k: int) -> list[torch.Tensor]:
    """q, k, v and do of this rank, the same values for one GPU and for many."""
    draw = torch.Generator(device="cuda").manual_seed(S + H_k + dist.get_rank())
    sizes = (H, H_k, H_k, H)
    return [torch.randn(B, heads, S, D, generator=draw, device="cuda", dtype=DTYPE).requires_grad_() for heads in sizes]


def both_ways(q, k, v, do, forward: Callable, repeats: int) -> dict:
    """Times of forward and of backward by itself, and the most memory that both took, with inputs."""
    torch.cuda.reset_peak_memory_stats()
    results = []
    if repeats > 1:
        with torch.no_grad():
            row = {"forward_ms": timed(lambda: forward(q, k, v), repeats)}
        results.append(forward(q, k, v))
    else:  # it takes seconds: the one that backward goes back through
        row = {"forward_ms": once(lambda: results.append(forward(q, k, v)))}
    (o,) = results
    row["backward_ms"] = timed(lambda: torch.autograd.grad(o, (q, k, v), do, retain_graph=True), repeats)
    return row | {"peak_bytes": torch.cuda.max_memory_allocated()}


def one_gpu(S: int, H_k: int, repeats: int) -> dict:
    """Rank 0 computes the whole sequence, and the others wait."""
    q, k, v, do = tensors(S if dist.get_rank() == 0 else 256, H_k)
    return both_ways(q, k, v, do, lambda *x: flash_attention(*x, is_causal=True), repeats)


def ring_cases(S: int, H_k: int, repeats: int) -> Iterator[dict]:
    """Ring attention, and what of it is computing and what is sending."""
    q, k, v, do = tensors(S // dist.get_world_size(), H_k)

    def forward(q, k, v):
        return ring.ring_attention(q, k, v, is_causal=True)

    yield {"provider": "ring"} | both_ways(q, k, v, do, forward, repeats)
    with mock.patch.object(ring, "Passing", NothingSent):
        yield {"provider": "computing alone"} | both_ways(q, k, v, do, forward, repeats)
    with mock.patch.object(ring, "visible", plain_order):
        yield {"provider": "plain order"} | both_ways(q, k, v, do, forward, repeats)
    with torch.no_grad(), mock.patch.object(hopper_forward, "in_process_group", lambda: False):
        yield {"provider": "equal shares", "forward_ms": timed(lambda: forward(q, k, v), repeats)}
        with mock.patch.object(ring, "Passing", NothingSent):
            yield {"provider": "equal shares alone", "forward_ms": timed(lambda: forward(q, k, v), repeats)}
    yield {"provider": "sending alone", "forward_ms": sends(k, v, max(repeats, 5))}
    if repeats > 1:
        yield from orders(q, k, v, do, repeats)
        yield from other_ways(q, k, v, do, repeats)


def sends(k, v, repeats: int) -> float:
    """Ms of what the ring's forward sends. Its buffer is gone when the next way's memory is measured."""
    kv = torch.stack((k, v)).detach()

    def send():
        for _ in range(dist.get_world_size() - 1):
            ring.Passing([kv], None, "").wait()

    return timed(send, repeats)


def orders(q, k, v, do, repeats: int) -> Iterator[dict]:
    """Ring attention's backward with the own tile first, and last, as it is. In turns."""
    o = ring.ring_attention(q, k, v, is_causal=True)

    def last() -> None:
        torch.autograd.grad(o, (q, k, v), do, retain_graph=True)

    def first() -> None:
        with mock.patch.object(ring.RingAttention, "backward", own_tile_first):
            last()

    for name, ms in timed_in_turns({"own tile first": first, "own tile last": last}, repeats).items():
        yield {"provider": name, "backward_ms": ms}


def other_ways(q, k, v, do, repeats: int) -> Iterator[dict]:
    """All-gather, forward, and Ulysses, forward and backward, and its exchanges without computing."""
    with torch.no_grad():
        yield {"provider": "all-gather", "forward_ms": timed(lambda: chapter_13.all_gather_attention(q, k, v), repeats)}
    if k.shape[1] % dist.get_world_size() == 0:
        yield {"provider": "Ulysses"} | both_ways(q, k, v, do, chapter_13.ulysses_attention, repeats)
        yield {"provider": "exchanging alone", "forward_ms": exchanges(q, k, v, repeats)}


@torch.no_grad()
def exchanges(q, k, v, repeats: int) -> float:
    """Ms of what Ulysses' forward sends."""
    heads = chapter_13.to_heads(q)

    def exchange():
        for x in (q, k, v):
            chapter_13.to_heads(x)
        chapter_13.to_tokens(heads)

    return timed(exchange, repeats)


def context_parallel(S: int, H_k: int, repeats: int, backend: str) -> dict:
    """PyTorch's context_parallel around a backend of SDPA, which shards q, k and v in place, in zigzag order too.

    It is timed as it comes: k and v are all-gathered while the first tile is computed. set_rotate_method("alltoall")
    would pass them around a ring.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel as within
    from torch.nn.attention import SDPBackend, sdpa_kernel

    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    q, k, v, do = (x.detach() for x in tensors(S, H_k))
    buffers = [q, k, v, do]
    with sdpa_kernel(getattr(SDPBackend, backend)), within(mesh, buffers=buffers, buffer_seq_dims=[2] * 4):
        a, b, c = (x.detach().requires_grad_() for x in (q, k, v))

        def forward(q, k, v):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

        return both_ways(a, b, c, do, forward, repeats)


def beside(S: int, H_k: int, repeats: int) -> dict:
    """The ring's times in the same minute."""
    q, k, v, do = tensors(S // dist.get_world_size(), H_k)
    row = both_ways(q, k, v, do, lambda *x: ring.ring_attention(*x, is_causal=True), repeats)
    return {f"ring_{name}": value for name, value in row.items()}


def measure_rank(lengths: tuple[int, ...], only: str) -> list[dict]:
    """Every rank's program; rank 0's rows count."""
    attention.HOPPER_FROM.update(forward=0, backward=0)  # one kernel at every length, and nothing to tune
    rows = []

    def keep(S: int, H_k: int, row: dict) -> None:
        rows.append({"S": S, "H_q": H, "H_k": H_k, "D": D, "ranks": dist.get_world_size(), "link": LINK} | row)
        if dist.get_rank() == 0:
            print(rows[-1], flush=True)

    if only == "orders":
        for S in lengths:
            for row in orders(*tensors(S // dist.get_world_size(), H), 5):
                keep(S, H, row)
        return rows
    for S in lengths if only != "peer" else ():
        repeats = 1 if S >= LONG else 5
        for H_k in (H, 4) if S == 131_072 else (H,):
            keep(S, H_k, {"provider": "one GPU"} | one_gpu(S, H_k, repeats))
            torch.cuda.empty_cache()
            for row in ring_cases(S, H_k, repeats):
                keep(S, H_k, row)
            torch.cuda.empty_cache()
    for S in (S for S in lengths if S < LONG) if only == "peer" else ():
        row = {"provider": "context_parallel", "backend": "CUDNN_ATTENTION"}
        try:
            keep(S, H, row | context_parallel(S, H, 5, row["backend"]) | beside(S, H, 5))
        except Exception as error:  # it is experimental
            keep(S, H, row | {"reason": f"{type(error).__name__}: {error}"})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="PYTHONPATH=tools python -m measure.ring", description=__doc__)
    parser.add_argument("file", type=Path, help="JSON file to write")
    parser.add_argument("--ranks", type=int, default=torch.cuda.device_count(), help="GPUs")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="tokens")
    parser.add_argument(
        "--only", default="", choices=("peer", "orders"),
        help="peer: PyTorch's context_parallel beside the ring; orders: the backward's; and nothing else",
    )  # fmt: skip
    options = parser.parse_args()
    rows = processes.run(measure_rank, options.ranks, tuple(options.lengths), options.only, timeout=120.0)[0]
    if options.file.exists():
        measured = {tuple(row.get(key) for key in CASE) for row in rows}
        before = json.loads(options.file.read_text())["rows"]
        rows = [row for row in before if tuple(row.get(key) for key in CASE) not in measured] + rows
    stored = {"provenance": results.provenance() | {"gpus": options.ranks, "dtype": "bf16"}, "rows": rows}
    results.save(options.file, stored)
    return 0


if __name__ == "__main__":
    sys.exit(main())
