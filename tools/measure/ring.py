"""Measure chapter 13 on the GPUs of this machine, one rank each, over NCCL: PYTHONPATH=tools python -m measure.ring
FILE.

Ring attention beside one GPU, the same computing without sending, sending without computing, shards in plain order,
programs with equal shares of the work, with and without sending, and the other ways to share a sequence. A time is the
slowest rank's, the median of a few repeats. With NCCL_P2P_DISABLE=1 messages go through the host's memory. Rows that
stand in FILE for another link stay.
"""

from __future__ import annotations

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
LENGTHS = (4_096, 8_192, 16_384, 32_768, 65_536, 131_072, 1_048_576)
LINK = "host memory" if os.environ.get("NCCL_P2P_DISABLE") == "1" else "NVLink"
LONG = 500_000  # tokens from which a repeat takes seconds


class NothingSent:
    """In place of ring.Passing: what comes is what was there."""

    def __init__(self, x, group, words):
        self.x = x

    def wait(self):
        return self.x


def plain_order(rank: int, owner: int, rows: int):
    """In place of ring.visible: the tile of two shards that are S / ranks rows in a row."""
    return (slice(0 if owner <= rank else rows, None), slice(None), owner == rank)


def timed(call: Callable[[], object], repeats: int) -> float:
    """Milliseconds, the slowest rank's: the median of `repeats`, after a first call unless one repeat takes seconds."""
    if repeats > 1:
        call()
    times = []
    for _ in range(repeats):
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
        times.append(ms.item())
    return statistics.median(times)


def tensors(S: int, H_k: int) -> list[torch.Tensor]:
    """q, k, v and do of this rank, the same values for one GPU and for many."""
    draw = torch.Generator(device="cuda").manual_seed(S + H_k + dist.get_rank())
    sizes = (H, H_k, H_k, H)
    return [torch.randn(B, heads, S, D, generator=draw, device="cuda", dtype=DTYPE).requires_grad_() for heads in sizes]


def both_ways(q, k, v, do, forward: Callable, repeats: int) -> dict:
    """Times of forward and of backward by itself, and the most memory that both took, inputs included."""
    torch.cuda.reset_peak_memory_stats()
    with torch.no_grad():
        row = {"forward_ms": timed(lambda: forward(q, k, v), repeats)}
    o = forward(q, k, v)
    row["backward_ms"] = timed(lambda: torch.autograd.grad(o, (q, k, v), do, retain_graph=True), repeats)
    return row | {"peak_bytes": torch.cuda.max_memory_allocated()}


def one_gpu(S: int, H_k: int, repeats: int) -> dict:
    """Rank 0 computes the whole sequence, and the others wait."""
    row = {}
    q, k, v, do = tensors(S if dist.get_rank() == 0 else 256, H_k)
    row = both_ways(q, k, v, do, lambda *x: flash_attention(*x, is_causal=True), repeats)
    return row


def ring_cases(S: int, H_k: int, repeats: int) -> Iterator[dict]:
    """Ring attention, and what of it is computing and what is sending."""
    ranks = dist.get_world_size()
    q, k, v, do = tensors(S // ranks, H_k)

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
    before = ring.Passing.bytes_sent
    o = forward(q, k, v)
    between = ring.Passing.bytes_sent
    torch.autograd.grad(o, (q, k, v), do)
    sent = {"forward_bytes": between - before, "backward_bytes": ring.Passing.bytes_sent - between}
    yield {"provider": "bytes sent"} | sent
    kv = torch.stack((k, v)).detach()

    def send():
        for _ in range(ranks - 1):
            ring.Passing(kv, None, "").wait()

    yield {"provider": "sending alone", "forward_ms": timed(send, max(repeats, 5))}
    if repeats == 1:  # a first call of the others allocates memory for most of its time
        return
    with torch.no_grad():
        for name, call in (("all-gather", chapter_13.all_gather_attention), ("Ulysses", chapter_13.ulysses_attention)):
            if H_k % ranks and name == "Ulysses":
                continue
            torch.cuda.reset_peak_memory_stats()
            ms = timed(lambda call=call: call(q, k, v), repeats)
            yield {"provider": name, "forward_ms": ms, "peak_bytes": torch.cuda.max_memory_allocated()}


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


def largest_differences(S: int, H_k: int) -> dict:
    """o, dq, dk and dv of the ring against one GPU's, the largest difference of all ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    draw = torch.Generator(device="cuda").manual_seed(0)
    sizes = (H, H_k, H_k, H)
    whole = [torch.randn(B, heads, S, D, generator=draw, device="cuda", dtype=DTYPE) for heads in sizes]
    q, k, v, do = (ring.shard(x, rank, ranks) for x in whole)
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    o = ring.ring_attention(q, k, v, is_causal=True)
    got = o, *torch.autograd.grad(o, (q, k, v), do)
    q, k, v, do = (x.requires_grad_() for x in whole)
    o = flash_attention(q, k, v, is_causal=True)
    wanted = o, *torch.autograd.grad(o, (q, k, v), do)
    row = {"provider": "largest difference from one GPU"}
    for name, x, want in zip(("o", "dq", "dk", "dv"), got, wanted, strict=True):
        worst = (x - ring.shard(want, rank, ranks)).abs().max().float()
        dist.all_reduce(worst, dist.ReduceOp.MAX)
        row[name] = worst.item()
        row[f"largest_{name}"] = want.abs().max().item()
    return row


def measure_rank(lengths: tuple[int, ...], only_peer: bool) -> list[dict]:
    """Every rank's program; rank 0's rows count."""
    attention.HOPPER_FROM.update(forward=0, backward=0)  # one kernel at every length, and nothing to tune
    rows = []

    def keep(S: int, H_k: int, row: dict) -> None:
        rows.append({"S": S, "H_q": H, "H_k": H_k, "D": D, "ranks": dist.get_world_size(), "link": LINK} | row)
        if dist.get_rank() == 0:
            print(rows[-1], flush=True)

    keep(131_072, H, largest_differences(min(131_072, max(lengths)), H))
    for S in () if only_peer else lengths:
        repeats = 1 if S >= LONG else 5
        for H_k in (H, 4) if S == 131_072 else (H,):
            keep(S, H_k, {"provider": "one GPU"} | one_gpu(S, H_k, repeats))
            torch.cuda.empty_cache()
            for row in ring_cases(S, H_k, repeats):
                keep(S, H_k, row)
            torch.cuda.empty_cache()
    for backend in ("FLASH_ATTENTION", "CUDNN_ATTENTION"):
        for S in (S for S in lengths if S < LONG):
            row = {"provider": "context_parallel", "backend": backend}
            try:
                keep(S, H, row | context_parallel(S, H, 5, backend) | beside(S, H, 5))
            except Exception as error:  # it is experimental
                keep(S, H, row | {"reason": f"{type(error).__name__}: {error}"})
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="PYTHONPATH=tools python -m measure.ring", description=__doc__)
    parser.add_argument("file", type=Path, help="JSON file to write")
    parser.add_argument("--ranks", type=int, default=torch.cuda.device_count(), help="GPUs")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="tokens")
    parser.add_argument(
        "--only-peer", action="store_true", help="PyTorch's context_parallel beside the ring, and nothing else"
    )
    options = parser.parse_args()
    rows = processes.run(measure_rank, options.ranks, tuple(options.lengths), options.only_peer, timeout=120.0)[0]
    if options.file.exists():
        rows = [row for row in json.loads(options.file.read_text())["rows"] if row["link"] != LINK] + rows
    stored = {"provenance": results.provenance() | {"gpus": options.ranks, "dtype": "bf16"}, "rows": rows}
    options.file.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
