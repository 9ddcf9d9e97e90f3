"""What the ranks of test_ring.py run: functions of a module, because each process imports them."""

import os
import time
from unittest import mock

import torch
import torch.distributed as dist

from fa_tutorial import flash_attention, hardware, ring
from fa_tutorial.bench import chapter_13

# (B, H_q, H_k, S, D), is_causal. Every S is a multiple of 2 · ranks for 1 to 4 ranks.
CASES = (
    ((1, 1, 1, 24, 16), True),
    ((1, 1, 1, 24, 16), False),
    ((2, 2, 1, 24, 8), True),
    ((1, 3, 1, 48, 20), False),
)


def shards(*whole: torch.Tensor) -> list[torch.Tensor]:
    """This rank's shards, on this machine's device, asking for gradients."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return [ring.shard(x, rank, ranks).to(hardware.device()).requires_grad_() for x in whole]


def every_check() -> dict:
    """One spawn for all that needs processes."""
    return {
        "cases": [chapter_13.one_rank(*case) for case in CASES],
        "through lse": through_lse(),
        "half": half(),
        "nothing kept": nothing_kept(),
        "twice": twice(),
        "others": others(),
        "messages": messages(),
    }


def through_lse() -> list[torch.Tensor]:
    """Gradients of lse alone."""
    q, k, v, _ = chapter_13.inputs(*CASES[2][0])
    q, k, v = shards(q, k, v)
    _, lse = ring.ring_attention(q, k, v, is_causal=True, scale=0.3, return_lse=True)
    return [x.cpu() for x in torch.autograd.grad(lse.sum(), (q, k, v))]


def half() -> list[torch.Tensor]:
    """o of fp16 shards that are views with strides of their own; and of the same parts, merged here in float32 and rounded once."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole = chapter_13.inputs(*CASES[2][0], dtype=torch.float16)[:3]
    q, k, v = (x.detach().transpose(1, 2).contiguous().transpose(1, 2) for x in shards(*whole))
    o = ring.ring_attention(q, k, v)
    merged = None
    for step in range(ranks):
        keys, values = (ring.shard(x, (rank - step) % ranks, ranks).to(q.device) for x in whole[1:])
        part, lse_part = flash_attention(q, keys, values, return_lse=True)
        if merged is None:
            merged = part.float(), lse_part
        else:
            ring.merge_into(*merged, part, lse_part)
    return [o.cpu(), merged[0].half().cpu()]


def messages() -> int:
    """How many a backward starts."""
    q, k, v = shards(*chapter_13.inputs(*CASES[0][0])[:3])
    o = ring.ring_attention(q, k, v, is_causal=True)
    with mock.patch.object(dist, "batch_isend_irecv", wraps=dist.batch_isend_irecv) as start:
        o.sum().backward()
    return start.call_count


def nothing_kept() -> bool:
    """Whether o of inputs that ask for no gradient has none, and the inputs are as before."""
    q, k, v = (x.detach() for x in shards(*chapter_13.inputs(*CASES[0][0])[:3]))
    before = [x.clone() for x in (q, k, v)]
    o = ring.ring_attention(q, k, v)
    return o.grad_fn is None and all(map(torch.equal, (q, k, v), before))


def twice() -> str:
    """What a second derivative says."""
    q, k, v = shards(*chapter_13.inputs(*CASES[0][0])[:3])
    try:
        torch.autograd.grad(ring.ring_attention(q, k, v).sum(), q, create_graph=True)
    except RuntimeError as error:
        return str(error)
    return ""


def others() -> list[torch.Tensor]:
    """The ring in a group of its own, all-gather, and Ulysses with its gradients."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole = chapter_13.inputs(1, 2 * ranks, 2 * ranks, 24, 8)
    q, k, v = (x.detach() for x in shards(*whole[:3]))
    group = dist.new_group([*range(ranks)])
    results = [ring.ring_attention(q, k, v, is_causal=True, group=group), chapter_13.all_gather_attention(q, k, v)]
    *plain, do = (x.chunk(ranks, 2)[rank].to(hardware.device()).requires_grad_() for x in whole)
    o = chapter_13.ulysses_attention(*plain)
    results += o, *torch.autograd.grad(o, plain, do)
    return [x.detach().cpu() for x in results]


def pair_of_ranks() -> bool:
    """Rings of ranks (0, 2) and (1, 3) at the same time: each is a whole attention of its own."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    rank = dist.get_rank()
    whole = [x + rank % 2 for x in chapter_13.inputs(1, 2, 2, 16, 8)[:3]]
    q, k, v = (ring.shard(x, rank // 2, 2).to(hardware.device()) for x in whole)
    o = ring.ring_attention(q, k, v, is_causal=True, group=groups[rank % 2])
    want = flash_attention(*(x.to(hardware.device()) for x in whole), is_causal=True)
    return torch.allclose(o, ring.shard(want, rank // 2, 2), atol=1e-5)


def late(who: int, seconds: float) -> None:
    """Rank `who` is busy elsewhere for so many seconds; the others call ring_attention."""
    if dist.get_rank() == who:
        time.sleep(seconds)
    else:
        ring.ring_attention(*(x.detach() for x in shards(*chapter_13.inputs(*CASES[0][0])[:3])))


def one_rank_dies(who: int) -> None:
    """As chapter_13.one_rank, but rank `who` ends without a word before it has sent anything."""
    dist.barrier()  # all have joined the group
    if dist.get_rank() == who:
        os._exit(1)
    chapter_13.one_rank((1, 2, 2, 32, 16), is_causal=True)
