import torch
from edits import edit

from fa_tutorial.algorithm import attention_backward
from fa_tutorial.exercises.chapter_13.played import attend
from fa_tutorial.ring import merge as join


def owner_step_by_step(rank, step, ranks):
    for _ in range(step):
        rank = rank - 1 if rank else ranks - 1
    return rank


def ring_of_lists(q, k, v, ranks):
    kv, o, lse = [k, v], None, None
    while True:
        part = attend(q, *kv)
        o, lse = part if o is None else join(o, lse, *part)
        if ranks == 1:
            return o, lse
        ranks -= 1
        kv = yield kv


def chunks_for_other_ranks(rank, ranks):
    return ranks - 1 - rank, ranks + rank


def backward_of_stacked_gradients(q, k, v, o, do, lse, ranks):
    dq, *dkv = (x.to(lse.dtype) for x in attention_backward(q, k, v, o, do, lse))
    kv, dkv = torch.stack((k, v)), torch.stack(dkv)
    for step in range(ranks):
        if step < ranks - 1:
            kv, dkv = yield kv, dkv
            dq_part, *parts = attention_backward(q, *kv, o, do, lse)
            dq, dkv = dq + dq_part, dkv + torch.stack(parts)
        elif ranks > 1:
            dkv = yield dkv
    return dq, *dkv


def backward_from_zeros_in_float32(q, k, v, o, do, lse, ranks):
    """float32 in any case: wide enough for bf16 inputs, and lse may be wider."""
    dq, dk, dv = (torch.zeros(x.shape) for x in (q, k, v))
    for step in range(ranks):
        if step > 0:
            k, v, dk, dv = yield k, v, dk, dv
        dq, dk, dv = (x + part.float() for x, part in zip((dq, dk, dv), attention_backward(q, k, v, o, do, lse), strict=True))
    if ranks > 1:
        dk, dv = yield dk, dv
    return dq, dk, dv


def backward_with_own_part_at_home(q, k, v, o, do, lse, ranks):
    """dk and dv leave with the first visitor's part, and travel ranks − 1 times."""
    dq, *own = (x.to(lse.dtype) for x in attention_backward(q, k, v, o, do, lse))
    dkv = []
    for _ in range(1, ranks):
        k, v, *dkv = yield k, v, *dkv
        dq_part, *parts = (x.to(lse.dtype) for x in attention_backward(q, k, v, o, do, lse))
        dq, dkv = dq + dq_part, [x + part for x, part in zip(dkv, parts, strict=True)] if dkv else parts
    if ranks > 1:
        dkv = yield dkv
        own = [x + part for x, part in zip(own, dkv, strict=True)]
    return dq, *own


def backward_with_own_tile_last_at_home(kv, ranks, start, tile):
    own, passing, dkv = kv, start(kv), None
    for step in range(1, ranks):
        kv = passing.wait()
        if step > 1:
            home = start(dkv)
        if step < ranks - 1:
            passing = start(kv)
        dkv = tile(kv) + (home.wait() if step > 1 else 0)
    home = start(dkv)
    return tile(own) + home.wait()


def backward_with_the_sum_before_the_keys(kv, ranks, start, tile):
    dkv, home = 0, None
    for step in range(ranks):
        if step < ranks - 1:
            passing = start(kv)
        part = tile(kv)
        dkv = part if home is None else home.wait() + part
        if step < ranks - 1:
            kv = passing.wait()
        home = start(dkv)
    return home.wait()


ROOM = "            coming = torch.empty_like(kv)\n"
STARTS = "dist.isend(kv, (rank + 1) % ranks), dist.irecv(coming, (rank - 1) % ranks)"

RIGHT_ANSWERS = (
    ("13.1", owner_step_by_step),
    ("13.2", ring_of_lists),
    edit("13.2", "what comes overwrites what left", ("        k, v = yield k, v\n", "        k2, v2 = yield k, v\n        k.copy_(k2), v.copy_(v2)\n")),
    edit("13.2", "a part that is cast", ("join(o, lse, *attend(q, k, v))", "(lambda part, lse_part: join(o, lse, part.float(), lse_part))(*attend(q, k, v))")),
    edit("13.2", "a running o of zeros", ("    o, lse = attend(q, k, v)\n", "    o, lse = attend(q, k, v)\n    o, lse = join(0 * o, lse - torch.inf, o, lse)\n")),
    edit("13.2", "o rounded once, at the end", ("return o, lse", "return o.to(q.dtype), lse")),
    ("13.3", chunks_for_other_ranks, "as fair as (13.4)"),
    edit("13.4", "in one line",
         ("    if owner == rank:\n        return 0, rows, True\n    if owner < rank:\n        return 0, rows // 2, False\n    return rows // 2, rows, False",
          "    later, earlier = owner > rank, owner < rank\n    return later * (rows // 2), rows - earlier * (rows // 2), not (later or earlier)")),
    edit("13.5", "by times", ("H_k * itemsize * flops / (H_q * bandwidth)", "(2 * H_k * D * itemsize / bandwidth) / (2 * H_q * D / flops)")),
    ("13.6", backward_of_stacked_gradients),
    edit("13.6", "float32, then rounded once", ("lse.dtype", "torch.float32"), ("return dq, dk, dv", "return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)")),
    ("13.6", backward_from_zeros_in_float32),
    ("13.6", backward_with_own_part_at_home),
    ("13.7", backward_with_the_sum_before_the_keys, "18 s with 4 ranks: one second is left to save"),
    ("13.7", backward_with_own_tile_last_at_home, "17 s with 4 ranks: no order of whole tiles takes less"),
    edit("13.7", "k and v first", ("        home = start(dkv)\n        if step < ranks - 1:\n            passing = start(kv)\n", "        if step < ranks - 1:\n            passing = start(kv)\n        home = start(dkv)\n"), told="one second is left to save"),
    edit("13.9", "receive first", (STARTS, "dist.irecv(coming, (rank - 1) % ranks), dist.isend(kv, (rank + 1) % ranks)")),
    edit("13.9", "both in one batch", (STARTS, "dist.batch_isend_irecv([dist.P2POp(dist.isend, kv, (rank + 1) % ranks), dist.P2POp(dist.irecv, coming, (rank - 1) % ranks)])")),
    edit("13.9", "two buffers in turns", (ROOM, ""), ("    tiles = []", "    tiles, coming = [], torch.empty_like(kv)"), ("kv = coming", "kv, coming = coming, kv")),
    edit("13.9", "two halves of one buffer", (ROOM, "            coming = both[step % 2]\n"), ("    tiles = []", "    tiles, both = [], torch.empty(2, *kv.shape, dtype=kv.dtype)")),
    edit("13.9", "what came is copied", ("kv = coming", "kv.copy_(coming)")),
)  # fmt: skip
