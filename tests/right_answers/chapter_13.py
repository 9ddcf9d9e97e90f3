"""Right answers to chapter 13 in other words: shares by a sigmoid, keys in a list, gradients that leave first, chunks in another order."""

import torch
from edits import edit

from fa_tutorial.algorithm import attention_backward
from fa_tutorial.exercises.chapter_13.ex_2 import join
from fa_tutorial.exercises.chapter_13.played import attend


def owner_step_by_step(rank, step, ranks):
    for _ in range(step):
        rank = rank - 1 if rank else ranks - 1
    return rank


def join_by_sigmoid(o, lse, o_part, lse_part):
    share = torch.sigmoid((lse_part - lse).nan_to_num(nan=0.0))[..., None]
    return o + (o_part - o) * share, torch.logaddexp(lse, lse_part)


def ring_in_float32(q, k, v, ranks):
    """With a join that casts the part, which 13.2 accepts, and then everything."""
    o, lse = (x.float() for x in attend(q, k, v))
    for _ in range(1, ranks):
        k, v = yield k, v
        o_part, lse_part = attend(q, k, v)
        o, lse = join(o, lse, o_part.float(), lse_part.float())
    return o, lse


def ring_of_lists(q, k, v, ranks):
    parts, kv = [], [k, v]
    while True:
        parts.append(attend(q, *kv))
        if len(parts) == ranks:
            break
        kv = yield kv
    o, lse = parts[0]
    for part in parts[1:]:
        o, lse = join(o, lse, *part)
    return o, lse


def chunks_from_both_ends(rank, ranks):
    return [2 * ranks - 1 - rank, rank]


def chunks_for_other_ranks(rank, ranks):
    return ranks - 1 - rank, ranks + rank


def backward_of_stacked_gradients(q, k, v, o, do, lse, ranks):
    dq, *dkv = attention_backward(q, k, v, o, do, lse)
    kv, dkv = torch.stack((k, v)), torch.stack(dkv)
    for step in range(ranks):
        if step < ranks - 1:
            kv, dkv = yield kv, dkv
            dq_part, *parts = attention_backward(q, *kv, o, do, lse)
            dq, dkv = dq + dq_part, dkv + torch.stack(parts)
        elif ranks > 1:
            dkv = yield dkv
    return dq, *dkv


def backward_step_by_step(q, k, v, o, do, lse, ranks):
    """k and v first, then what is known of their gradients, in messages of their own."""
    dq, dk, dv = attention_backward(q, k, v, o, do, lse)
    for _ in range(1, ranks):
        k, v = yield k, v
        parts = attention_backward(q, k, v, o, do, lse)
        dk, dv = yield dk, dv
        dq, dk, dv = (x + part for x, part in zip((dq, dk, dv), parts, strict=True))
    if ranks > 1:
        dk, dv = yield dk, dv
    return dq, dk, dv


RIGHT_ANSWERS = (
    ("13.1", owner_step_by_step),
    ("13.2", join_by_sigmoid),
    ("13.3", ring_of_lists),
    ("13.3", ring_in_float32),
    edit("13.3", "a part that is cast", ("join(o, lse, *attend(q, k, v))", "(lambda part, lse_part: join(o, lse, part.float(), lse_part))(*attend(q, k, v))")),
    edit("13.3", "o rounded once, at the end", ("return o, lse", "return o.to(q.dtype), lse")),
    ("13.4", chunks_from_both_ends),
    ("13.4", chunks_for_other_ranks),
    edit("13.5", "in one line",
         ("    if owner == rank:\n        return 0, rows, True\n    if owner < rank:\n        return 0, rows // 2, False\n    return rows // 2, rows, False",
          "    later, earlier = owner > rank, owner < rank\n    return later * (rows // 2), rows - earlier * (rows // 2), not (later or earlier)")),
    edit("13.6", "by times", ("H_k * itemsize * flops / (H_q * bandwidth)", "(2 * H_k * D * itemsize / bandwidth) / (2 * H_q * D / flops)")),
    ("13.7", backward_of_stacked_gradients),
    ("13.7", backward_step_by_step),
)  # fmt: skip
