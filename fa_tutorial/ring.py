"""Chapter 13: a sequence over many GPUs. Ring attention (Liu, Zaharia and Abbeel, 2023, arXiv:2310.01889).

Each rank of a process group holds a shard of q, k, v and o. Shards of k and v travel around the ring of ranks. Each
rank computes its queries' attention to the shard that it holds, by flash_attention's kernels, and merges the partial
results in float32 by chapter 1's rule. In zigzag order every rank has the same work under the causal mask.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from fa_tutorial.arguments import check_attention, check_int
from fa_tutorial.attention import BACKWARD, FORWARD
from fa_tutorial.hardware import on_device_of, require_triton
from fa_tutorial.operators import autocast, below_autograd
from fa_tutorial.tiles import MAX_D, heads, load_tile, padded_d, store_tile

triton = require_triton("Chapter 13 (fa_tutorial.ring)")
import triton.language as tl  # noqa: E402

ALL = slice(None)


def shard(x: torch.Tensor, rank: int, ranks: int, dim: int = 2) -> torch.Tensor:
    """This rank's shard of a sequence in zigzag order: of 2 · ranks chunks along `dim`, numbers rank and 2 · ranks − 1
    − rank (13.4).

    x: any shape, S = x.shape[dim] a multiple of 2 · ranks. Returns a copy with S / ranks elements along dim. What goes
    with the tokens is sharded the same way, positions for one: shard(torch.arange(S), rank, ranks, dim=0). ValueError
    for another S, and for a rank outside 0 … ranks − 1.
    """
    ranks, rank, S = check_int("ranks", ranks), check_int("rank", rank, 0), x.shape[dim]
    if rank >= ranks:
        raise ValueError(f"rank must be 0 to {ranks - 1} of {ranks} ranks, got {rank}")
    if S % (2 * ranks):
        raise ValueError(
            f"{ranks} ranks share 2 · {ranks} chunks of one length: S must be a multiple of {2 * ranks}, got {S}"
        )
    chunks = x.chunk(2 * ranks, dim) if S else (x,) * (2 * ranks)
    return torch.cat((chunks[rank], chunks[2 * ranks - 1 - rank]), dim)


def unshard(parts: Sequence[torch.Tensor], dim: int = 2) -> torch.Tensor:
    """The whole sequence from every rank's shard, in the ranks' order: what `shard` cut.

    ValueError for shards of different or of odd length.
    """
    lengths = [part.shape[dim] for part in parts]
    if not lengths or len({*lengths}) > 1 or lengths[0] % 2:
        raise ValueError(f"the shards of all ranks must have one length, two chunks, got {lengths}")
    halves = [part.chunk(2, dim) if part.shape[dim] else (part, part) for part in parts]
    return torch.cat([first for first, _ in halves] + [last for _, last in reversed(halves)], dim)


def ring_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, is_causal: bool = False, scale: float | None = None,
    group: dist.ProcessGroup | None = None, return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """flash_attention of a sequence that is sharded over the ranks of a process group. Every rank calls it, with its
    own shards.

    Shapes: q (B, H_q, S / ranks, D); k and v (B, H_k, S / ranks, D), as `shard` gives them; shapes, dtype and scale are
    the same on every rank; H_q is a multiple of H_k. Dtypes: fp16, bf16, fp32. group: the default process group unless
    given, of one rank or more. Where its backend is gloo, which sends no GPU's tensors, copies on the CPU are sent.

    Returns this rank's shard of o, like q, and with return_lse of lse (B, H_q, S / ranks), float32. Partial results are
    merged in float32. k and v travel while their predecessors are computed with. Both results are differentiable, once:
    create_graph=True raises RuntimeError. The backward is collective, too: every rank must call it. dk and dv travel in
    float32 until they are home.

    Raises what flash_attention raises for its arguments; ValueError where is_causal and the shards of q and k are not
    two chunks each, of one length; RuntimeError that names step and rank where another rank is missing, has died, or is
    late by more than the group's timeout. With NCCL the GPU waits instead of Python: there no step is named.
    PyTorch's watchdog reports what is overdue, and who started the ranks must end those that are left, as torchrun and
    processes.run do: on two H100s the other rank was still there 50 seconds after the report.
    """
    q, k, v = autocast(q, k, v)
    scale = check_attention(q, k, v, scale, max_d=MAX_D)
    if is_causal and (q.shape[2] != k.shape[2] or q.shape[2] % 2):
        rows = f"got {q.shape[2]} and {k.shape[2]} rows"
        raise ValueError(f"causal shards of q and k have one length, two chunks: {rows}. Cut them with ring.shard")
    o, lse = RingAttention.apply(q, k, v, bool(is_causal), scale, group)
    return (o, lse) if return_lse else o


def visible(rank: int, owner: int, rows: int) -> tuple[slice, slice, bool]:
    """(queries, keys, is_causal) of the tile in which this rank's queries meet the owner's keys (13.5).

    Both shards have `rows` rows in zigzag order, under the causal mask. Its own tile is causal, because
    a shard's rows are in order. An earlier owner's first chunk comes before all queries of this rank,
    and its second one after them. A later owner's chunks both lie between this rank's.
    """
    half = rows // 2
    if owner == rank:
        return ALL, ALL, True
    if owner < rank:
        return ALL, slice(half), False
    return slice(half, None), ALL, False


def merge(
    o: torch.Tensor, lse: torch.Tensor, o_part: torch.Tensor, lse_part: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """A part joins the running o (…, S, D) and lse (…, S) of the same queries (13.2).

    o_part may be narrower than o. One lse may be −∞, where no key has been seen, but not both.
    """
    both = torch.logaddexp(lse, lse_part)
    return torch.exp(lse - both)[..., None] * o + torch.exp(lse_part - both)[..., None] * o_part, both


@triton.jit
def merge_kernel(o, lse, o_part, lse_part, H, S, D, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):
    """merge in place: each element of o is read once and written once.

    o (B, H, S, D) and lse (B, H, S, 1) float32, the part's of any dtype: all as Heads.
    Grid: (ceil(S / BLOCK_M) · B · H,).
    """
    row_blocks = tl.cdiv(S, BLOCK_M)
    batch_head, start = tl.program_id(0) // row_blocks, tl.program_id(0) % row_blocks * BLOCK_M
    b, h = batch_head // H, batch_head % H
    a = load_tile(lse, b, h, start, S, 1, BLOCK_M, 1)  # [BLOCK_M, 1]
    c = load_tile(lse_part, b, h, start, S, 1, BLOCK_M, 1)  # [BLOCK_M, 1]
    larger = tl.maximum(a, c)
    both = larger + tl.log(tl.exp(a - larger) + tl.exp(c - larger))
    o_tile = tl.exp(a - both) * load_tile(o, b, h, start, S, D, BLOCK_M, BLOCK_D)  # [BLOCK_M, BLOCK_D]
    o_tile += tl.exp(c - both) * load_tile(o_part, b, h, start, S, D, BLOCK_M, BLOCK_D)
    store_tile(o, o_tile, b, h, start, S, D, BLOCK_M, BLOCK_D)
    store_tile(lse, both, b, h, start, S, 1, BLOCK_M, 1)


def merge_into(o: torch.Tensor, lse: torch.Tensor, o_part: torch.Tensor, lse_part: torch.Tensor) -> None:
    """merge of (B, H, S, D) and (B, H, S), any strides, in place and in one kernel."""
    B, H, S, D = o.shape
    tensors = heads(o), heads(lse[..., None]), heads(o_part), heads(lse_part[..., None])
    if o.numel():
        with on_device_of(o):
            merge_kernel[(triton.cdiv(S, 16) * B * H,)](*tensors, H, S, D, BLOCK_M=16, BLOCK_D=padded_d(D))


# ---------------------------------------------------------------- sending


class Passing:
    """Tensors on their way to the next rank of the group, in one message, and the previous rank's on
    their way here, of the same shapes and dtypes.

    NCCL's messages are kernels, and hold a few multiprocessors while they travel.
    """

    bytes_sent = 0  # by this process so far

    def __init__(self, tensors: list[torch.Tensor], group: dist.ProcessGroup | None, words: str) -> None:
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        after, before = (rank + 1) % ranks, (rank - 1) % ranks
        is_gloo = dist.get_backend(group) == "gloo"
        self.devices = [x.device for x in tensors]
        self.sent = [x.cpu() if is_gloo else x for x in tensors]  # live until they are sent
        self.received = [torch.empty_like(x) for x in self.sent]
        self.faults = f"{words}: rank {after} takes nothing", f"{words}: rank {before} sends nothing"
        sends = [dist.P2POp(dist.isend, x, group=group, group_peer=after) for x in self.sent]
        receives = [dist.P2POp(dist.irecv, x, group=group, group_peer=before) for x in self.received]
        Passing.bytes_sent += sum(x.nbytes for x in self.sent)
        with explained(self.faults[0]):
            self.works = dist.batch_isend_irecv(sends + receives) if tensors else []

    def wait(self) -> list[torch.Tensor]:
        """What has come. With NCCL the GPU's stream waits, and not the host."""
        for i, work in enumerate(self.works):  # gloo has one for each operation, NCCL one for all
            with explained(self.faults[i >= len(self.sent)]):
                work.wait()
        return [x.to(device) for x, device in zip(self.received, self.devices, strict=True)]


@contextlib.contextmanager
def explained(fault: str) -> Iterator[None]:
    """torch.distributed's errors name sockets; these say who did what in which step."""
    try:
        yield
    except RuntimeError as error:
        raise RuntimeError(f"ring attention stopped: {fault}. Has it died, or not called ring_attention?") from error


# ---------------------------------------------------------------- what one rank runs


class RingAttention(torch.autograd.Function):
    """One rank's forward and backward."""

    @staticmethod
    def forward(ctx, q, k, v, is_causal, scale, group):
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        kv = torch.stack((k, v))  # [2, B, H_k, S, D], one message
        for step in range(ranks):
            owner = (rank - step) % ranks  # (13.1)
            if step < ranks - 1:
                passing = Passing([kv], group, f"rank {rank}, forward, step {step} of {ranks}, k and v")
            rows, keys, causal = visible(rank, owner, q.shape[2]) if is_causal else (ALL, ALL, False)
            k_tile, v_tile = kv[:, :, :, keys]  # [B, H_k, keys, D]
            part = below_autograd(FORWARD, q[:, :, rows], k_tile, v_tile, causal, scale, "auto")  # not recorded
            if step == 0:
                o, lse = part[0].float(), part[1]
            else:
                merge_into(o[:, :, rows], lse[:, :, rows], *part)  # (13.2)
            if step < ranks - 1:
                (kv,) = passing.wait()
        o = o.to(q.dtype)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.is_causal, ctx.scale, ctx.group = is_causal, scale, group
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    def backward(ctx, do, dlse):
        if torch.is_grad_enabled():
            raise RuntimeError(
                "ring_attention is once differentiable: leave create_graph=False, for autograd sees "
                "no kernel from inside"
            )
        q, k, v, o, _ = ctx.saved_tensors
        rank, ranks = dist.get_rank(ctx.group), dist.get_world_size(ctx.group)
        do = torch.zeros_like(o) if do is None else do
        dq, kv, dkv = torch.zeros_like(q, dtype=torch.float32), torch.stack((k, v)), None
        words = f"rank {rank}, backward, step {{}} of {ranks}"
        if ranks > 1:  # k and v go ahead, and come before the first tile
            (kv,) = Passing([kv], ctx.group, words.format(0)).wait()
        for step in range(1, ranks + 1):
            owner = (rank - step) % ranks  # in the last step this rank itself
            leaving = ([dkv] if step > 1 else []) + ([kv] if step < ranks - 1 else [])
            passing = Passing(leaving, ctx.group, words.format(step))
            rows, keys, dq_part, *parts = pair_gradients(ctx, do, dlse, kv if step < ranks else (k, v), owner)
            dq[:, :, rows] += dq_part
            came = passing.wait()
            # The gradients of the keys that are here, from all ranks that they have visited.
            dkv = came[0] if step > 1 else torch.zeros((2, *k.shape), dtype=torch.float32, device=k.device)
            for x, part in zip(dkv, parts, strict=True):
                x[:, :, keys] += part
            kv = came[-1] if step < ranks - 1 else None
        dk, dv = dkv
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None, None


def pair_gradients(
    ctx, do: torch.Tensor, dlse: torch.Tensor | None, kv: Iterable[torch.Tensor], owner: int
) -> tuple[slice, slice, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(queries, keys, dq, dk, dv) of the tile in which this rank's queries meet the owner's keys, kv = (k, v)."""
    q, _, _, o, lse = ctx.saved_tensors
    rank = dist.get_rank(ctx.group)
    rows, keys, causal = visible(rank, owner, q.shape[2]) if ctx.is_causal else (ALL, ALL, False)
    k_tile, v_tile = (x[:, :, keys] for x in kv)
    do_rows, q_rows, o_rows, lse_rows = (x[:, :, rows] for x in (do, q, o, lse))
    dlse_rows = None if dlse is None else dlse[:, :, rows]
    # o and lse of the whole row, so that p and delta are the whole row's (13.8).
    tile = do_rows, dlse_rows, q_rows, k_tile, v_tile, o_rows, lse_rows.contiguous()
    return rows, keys, *BACKWARD(*tile, causal, ctx.scale, "auto")  # which picks the kernel


# ---------------------------------------------------------------- ranks in one process

Routine = Generator[Any, Any, Any]  # yields what it sends, gets what comes, returns its result


def play(routines: Iterable[Routine], *, all_to_all: bool = False) -> tuple[list[Any], list[int]]:
    """Run one routine a rank in step, and pass what each yields to the next:
    (what each returned, bytes that each sent).

    A routine is a generator: `k, v = yield k, v` sends a pair of tensors to the next rank, and receives the pair of the
    one before, as copies. With all_to_all `parts = yield parts` sends parts[i] to rank i, and receives one part from
    each rank, in the ranks' order; a rank's part for itself is not sent. RuntimeError where a rank has returned and
    another one still waits for what it sends, for that one would wait for ever.
    """
    routines = [*routines]
    ranks = range(len(routines))
    results, sent, received = [None for _ in ranks], [0 for _ in ranks], [None for _ in ranks]
    while True:
        messages, done = [], []
        for rank, routine in enumerate(routines):
            try:
                messages.append(routine.send(received[rank]))
                sent[rank] += bytes_of(messages[rank]) - (bytes_of(messages[rank][rank]) if all_to_all else 0)
            except StopIteration as stop:
                messages.append(None)
                results[rank] = stop.value
                done.append(rank)
        if len(done) == len(routines):
            return results, sent
        for rank in ranks:
            waits_for = [*ranks] if all_to_all else [(rank - 1) % len(routines)]
            if rank not in done and (gone := [other for other in waits_for if other in done]):
                raise RuntimeError(f"rank {rank} waits for ever: rank {gone[0]} has returned and sends nothing")
        if all_to_all:
            received = [[copied(message[rank]) for message in messages] for rank in ranks]
        else:
            received = [*map(copied, messages[-1:] + messages[:-1])]


def copied(message: Any) -> Any:
    """A message as it arrives: what its sender does to the tensors afterwards changes nothing."""
    if isinstance(message, tuple | list):
        return type(message)(map(copied, message))
    return message.clone() if isinstance(message, torch.Tensor) else message


def bytes_of(message: Any) -> int:
    """The bytes of a message's tensors: its own, or those of a tuple or list."""
    if isinstance(message, tuple | list):
        return sum(map(bytes_of, message))
    return message.nbytes if isinstance(message, torch.Tensor) else 0


# ---------------------------------------------------------------- one rank on a clock


class Clock:
    """One rank's time, where all ranks do the same: `now`, and when its link is free. Messages wait for one another."""

    def __init__(self) -> None:
        self.now = self.link = self.sent = 0.0  # sent: seconds of all messages

    def compute(self, seconds: float) -> None:
        self.now += seconds

    def start(self, seconds: float, coming: Any = None) -> Message:
        """Start to send. Meanwhile a message of the same length comes, with what is `coming`."""
        self.link = max(self.link, self.now) + seconds
        self.sent += seconds
        return Message(self, self.link, coming)


class Message:
    """One that comes while another leaves. Only wait() returns what comes."""

    def __init__(self, clock: Clock, arrival: float, coming: Any) -> None:
        self.clock, self.arrival, self._coming = clock, arrival, coming

    def wait(self) -> Any:
        self.clock.now = max(self.clock.now, self.arrival)
        return self._coming


def play_backward(
    backward: Callable, ranks: int, tile_s: float = 4.0, kv_s: float = 1.0, dkv_s: float = 2.0
) -> tuple[Any, float, float]:
    """Run backward(kv, ranks, start, tile) as rank 0, on a clock: (what it returned, seconds, seconds of all messages).

    kv: [ranks], 1 at the owner of these keys. Gradients: [ranks, ranks], 1 where the keys of a row have the part of a
    column's rank. All ranks do the same, so what comes is what this rank sends, one rank further down.
    """
    clock, mine = Clock(), torch.eye(ranks)[0]

    def start(x: torch.Tensor) -> Message:
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"start takes one tensor, got a {type(x).__name__}")
        return clock.start(kv_s if x.ndim == 1 else dkv_s, x.roll((-1,) * x.ndim, tuple(range(x.ndim))))

    def tile(kv: torch.Tensor) -> torch.Tensor:
        if isinstance(kv, Message):
            raise TypeError("tile takes k and v, got their Message: wait() returns them")
        clock.compute(tile_s)
        return torch.outer(kv, mine)

    return backward(mine.clone(), ranks, start, tile), clock.now, clock.sent
