import functools

import torch
from edits import edit
from right_answers.chapter_13 import backward_with_own_tile_last_at_home as own_tile_last

from fa_tutorial.algorithm import attention_backward
from fa_tutorial.exercises.chapter_13.ex_9 import pass_around
from fa_tutorial.exercises.chapter_13.played import attend
from fa_tutorial.ring import merge as join


def ring_without_neighbours(q, k, v, ranks):
    return attend(q, k, v)


def ring_that_stores_all_parts(q, k, v, ranks):
    parts = [attend(q, k, v)]
    for _ in range(1, ranks):
        k, v = yield k, v
        parts.append(attend(q, k, v))
    return functools.reduce(lambda both, part: join(*both, *part), parts)


def backward_that_stores_all_parts(q, k, v, o, do, lse, ranks):
    parts = [attention_backward(q, k, v, o, do, lse)]
    for _ in range(1, ranks):
        k, v = yield k, v
        parts.append(attention_backward(q, k, v, o, do, lse))
    dq, dk, dv = parts[0]
    for part in parts[1:]:
        dk, dv = yield dk, dv
        dq, dk, dv = (x + more for x, more in zip((dq, dk, dv), part, strict=True))
    if ranks > 1:
        dk, dv = yield dk, dv
    return dq, dk, dv


def backward_where_only_dq_comes_home(q, k, v, o, do, lse, ranks):
    dq, dk, dv = attention_backward(q, k, v, o, do, lse)
    for _ in range(1, ranks):
        q, o, do, lse, dq = yield q, o, do, lse, dq
        parts = attention_backward(q, k, v, o, do, lse)
        dq, dk, dv = (x + part for x, part in zip((dq, dk, dv), parts, strict=True))
    if ranks > 1:
        (dq,) = yield (dq,)
    return dq, dk, dv


def overlapped_where_the_last_gradients_wait_before_the_own_tile(kv, ranks, start, tile):
    own, home = kv, None
    kv = start(kv).wait()
    for step in range(1, ranks):
        if step < ranks - 1:
            passing = start(kv)
        dkv = tile(kv)
        if home is not None:
            dkv = dkv + home.wait()
        home = start(dkv)
        if step < ranks - 1:
            kv = passing.wait()
    return home.wait() + tile(own)


def own_tile_last_that_sends_its_last_visitor_on(kv, ranks, start, tile):
    own, visitor, home = kv, start(kv).wait(), None
    for _ in range(1, ranks):
        passing = start(visitor)
        dkv = tile(visitor) + (home.wait() if home else 0)
        visitor = passing.wait()
        home = start(dkv)
    return tile(own) + home.wait()


def own_tile_last_without_its_tile(kv, ranks, start, tile):
    return own_tile_last(kv, ranks, start, lambda shard: torch.outer(kv, kv) if shard is kv else tile(shard))


def pass_around_by_another_cells_function(kv, dist, tile):
    return pass_around(kv, dist, tile)


TILE, OWN_LSE = "attention_backward(q, k, v, o, do, lse)", "played.attend(q, k, v)[1]"
YIELD, LOOP, JOIN = "k, v = yield k, v", "for _ in range(1, ranks):", "o, lse = join(o, lse, *attend(q, k, v))"
ADD = "dq, dk, dv = dq + dq_part, dk + dk_part, dv + dv_part"
YIELD_ALL, HOME = "k, v, dk, dv = yield k, v, dk, dv", "if ranks > 1:\n        dk, dv = yield dk, dv\n"
STARTS = "dist.isend(kv, (rank + 1) % ranks), dist.irecv(coming, (rank - 1) % ranks)"
BEGIN = f"        if step < ranks - 1:\n            coming = torch.empty_like(kv)\n            works = {STARTS}\n"
TILE_13_9, COMES = "        tiles.append(tile(kv))\n", "            kv = coming\n"
WAITS = "            for work in works:\n                work.wait()\n"

WRONG_ANSWERS = (
    edit("13.1", "a float", ("(rank - step) % ranks", "(rank - step) / ranks"), told="owner(2, 0, 4): returns a float, want an int"),
    edit("13.1", "a whole float", ("(rank - step) % ranks", "float((rank - step) % ranks)"), told="want an int, for it is a list's index"),
    edit("13.1", "the next rank", ("rank - step", "rank + 1 - step"), told="in step 0 each rank holds its own keys"),
    edit("13.1", "a list", ("return (rank - step) % ranks", "return [(rank - step) % ranks]"), told="returns a list, want an int"),
    edit("13.1", "the other way around", ("(rank - step)", "(step - rank)"), told="after one step a rank holds what the rank before it held"),
    ("13.2", ring_without_neighbours, "there is no yield in it"),
    edit("13.2", "in float32", (JOIN, f"{JOIN}\n        o, lse = o.float(), lse.float()"), told="where join returns float64, the running o and lse stay float64"),
    ("13.2", ring_that_stores_all_parts, "a rank holds as much as a whole sequence"),
    edit("13.2", "o alone", ("return o, lse", "return o"), told="each rank returns a tuple (o, lse)"),
    edit("13.2", "four ranks", (LOOP, "for _ in range(1, 4):"), told="1 rank, S = 2, H = 2, D = 4 gives bytes sent"),
    edit("13.2", "nothing comes back", ("    return o, lse", "    yield o, lse"), told="each rank returns a tuple (o, lse)"),
    edit("13.2", "q travels", (f"        {YIELD}", "        q, k, v = yield q, k, v"), told="k and v of one shard, in their own dtype, ranks − 1 times, and nothing else"),
    edit("13.2", "o travels", (f"        {YIELD}", "        k, v, o, lse = yield k, v, o, lse"), told="gives bytes sent = 208, want 128"),
    edit("13.2", "o in q's dtype", (JOIN, f"{JOIN}\n        o = o.to(q.dtype)"), told="one edge is left: o and lse aren't rounded between two steps"),
    edit("13.2", "visitors masked", (JOIN, JOIN.replace("k, v)", "k, v, is_causal=True)")), told="each shard's k and v, without a mask"),
    edit("13.2", "a running mean", (JOIN, "part, more = attend(q, k, v)\n        o, lse = (o + part) / 2, torch.logaddexp(lse, more)"), told="which joins the running o by (13.2)"),
    edit("13.2", "the largest lse", (JOIN, "part, more = attend(q, k, v)\n        o, _ = join(o, lse, part, more)\n        lse = torch.maximum(lse, more)"), told="lse is that of all keys so far"),
    edit("13.2", "the two lse exchanged", (JOIN, "part, more = attend(q, k, v)\n        o, lse = join(o, more, part, lse)"), told="which joins the running o by (13.2)"),
    edit("13.2", "a merge of plain exponentials", (JOIN, "part, more = attend(q, k, v)\n        a, b = lse.exp()[..., None], more.exp()[..., None]\n"
         "        o, lse = (a * o + b * part) / (a + b), (a + b)[..., 0].log()"), told="5 ranks, scores up to 1,000"),
    edit("13.3", "neighbours", ("rank, 2 * ranks - 1 - rank", "2 * rank, 2 * rank + 1"), told="each rank's work, in chunks × chunks: 2 ranks gives (2, 6)"),
    edit("13.3", "four ranks", ("2 * ranks - 1", "7"), told="2 ranks: chunks 0, 1, 6, 7 are dealt out: each of 0 to 3"),
    edit("13.3", "one chunk", ("rank, 2 * ranks - 1 - rank", "rank"), told="chunks_of(0, 2) gives 0, want a tuple or a list of two whole numbers"),
    edit("13.4", "slices", ("return 0, rows, True", "return slice(0, None), slice(0, rows), True"), told="a rank's own rows are in order"),
    edit("13.4", "the second half alone", ("return 0, rows, True", "return rows // 2, rows, True"), told="causal attention of all its queries and keys"),
    edit("13.4", "two numbers", (", True", ""), (", False", "", 2), told="want a tuple (first, end, is_causal)"),
    edit("13.4", "floats", ("rows // 2", "rows / 2", 2), told="first and end must be whole numbers"),
    edit("13.4", "a row less", ("return rows // 2, rows, False", "return rows // 2 + 1, rows, False"), told="first = 3, want 2"),
    edit("13.4", "never causal", ("return 0, rows, True", "return 0, rows, 0"), told="is_causal = 0, want True"),
    edit("13.4", "None", (", False", ", None", 2), told="is_causal = None"),
    edit("13.5", "a quarter", ("return H_k", "return 0.25 * H_k"), told="half of a step's pairs are seen"),
    edit("13.5", "bits", ("return H_k", "return 8 * H_k"), told="itemsize bytes a number"),
    edit("13.5", "rounded up", ("return H_k * itemsize * flops / (H_q * bandwidth)", "return -(-(H_k * itemsize * flops) // (H_q * bandwidth))"), told="don't round"),
    ("13.6", backward_that_stores_all_parts, "a rank holds as much as a whole sequence"),
    ("13.6", backward_where_only_dq_comes_home, "a rank sends its q: q, o, do, lse and dq stay"),
    edit("13.6", "ends early", (LOOP, "for _ in range(2, ranks):"), told="dq stays, and adds up the parts of all keys"),
    edit("13.6", "dq alone", ("return dq, dk, dv", "return dq"), told="each rank returns a tuple (dq, dk, dv)"),
    edit("13.6", "twice around", (HOME, "for _ in range((ranks + 1) * (ranks > 1)):\n        dk, dv = yield dk, dv\n"), told="dk and dv ranks times at most"),
    edit("13.6", "too far", (HOME, "for _ in range(1, ranks):\n        dk, dv = yield dk, dv\n"), told="comes home as dk after `ranks` steps"),
    edit("13.6", "home, with one rank too", (HOME, "dk, dv = yield dk, dv\n"), told="one edge is left: one rank: the gradients of chapter 6, and nothing is sent"),
    edit("13.6", "own lse", (TILE, TILE.replace(" lse", f" {OWN_LSE}"), 2), told="each part has its own lse"),
    edit("13.6", "dk in q's dtype", (ADD, f"{ADD}\n        dk = dk.to(q.dtype)"), told="sum dq, dk and dv in float32"),
    edit("13.6", "never wider", ("    dq, dk, dv = (x.to(lse.dtype) for x in (dq, dk, dv))  # float32, where q is bf16\n", ""), told="sum dq, dk and dv in float32"),
    edit("13.6", "k and v in float32", (YIELD_ALL, "k, v, dk, dv = yield k.to(lse.dtype), v.to(lse.dtype), dk, dv\n        k, v = k.to(q.dtype), v.to(q.dtype)"),
         told="and k and v in bf16: 8 ranks, bf16, lse in float32: bytes sent is wrong"),
    edit("13.6", "dk and dv are rounded on their way", (YIELD_ALL, "k, v, dk, dv = yield k, v, dk.to(k.dtype), dv.to(k.dtype)"), told="send dk and dv unrounded"),
    edit("13.6", "always float64", ("x.to(lse.dtype)", "x.double()"), told="8 ranks, bf16, lse in float32: bytes sent is wrong"),
    ("13.7", overlapped_where_the_last_gradients_wait_before_the_own_tile, "wait only where what comes is needed"),
    ("13.7", own_tile_last_that_sends_its_last_visitor_on, "k and v travel ranks − 1 times"),
    ("13.7", own_tile_last_without_its_tile, "a rank computes `ranks` tiles"),
    ("13.7", lambda kv, ranks, start, tile: torch.outer(kv, torch.ones(ranks)), "a rank computes `ranks` tiles"),
    edit("13.7", "the last wait", ("return start(dkv).wait()", "return start(dkv)"), told="it returns a Message, which is still on its way"),
    edit("13.7", "four ranks", ("range(1, ranks)", "range(1, 4)"), ("ranks - 1", "3"), told="the parts of all ranks come home"),
    edit("13.7", "no keys", ("kv = passing.wait()", "passing.wait()"), told="the parts of all ranks"),
    edit("13.7", "a message", ("        kv = passing.wait()\n", "        kv = passing\n"), told="tile takes k and v, got their Message: wait() returns them"),
    edit("13.7", "a tuple", ("home = start(dkv)", "home = start((kv, dkv))"), told="start takes one tensor, got a tuple"),
    edit("13.8", "ring and all-gather exchanged", ("return ring, all_gather", "return all_gather, ring"), told="each tile but the last has a message beside it"),
    edit("13.8", "half is sent", ("(1 + G) * T_s", "(1 + G) / 2 * T_s"), told="all of a shard's k and v take T_s, and q and o G · T_s"),
    edit("13.9", "room in float32", ("torch.empty_like(kv)", "torch.zeros(kv.shape)"), told="what comes has kv's shape and dtype"),
    edit("13.9", "room for one number", ("torch.empty_like(kv)", "torch.empty_like(kv[:1])"), told="what comes has kv's shape and dtype"),
    edit("13.9", "one tensor for both", ("dist.irecv(coming", "dist.irecv(kv"), (COMES, ""), told="with a tensor of a message that is still on its way"),
    edit("13.9", "send, then receive", (STARTS, "dist.send(kv, (rank + 1) % ranks), dist.recv(coming, (rank - 1) % ranks)"), told="deadlock: rank 0 of 2 waits until a message is taken"),
    edit("13.9", "receive, then send", (STARTS, "dist.recv(coming, (rank - 1) % ranks), dist.isend(kv, (rank + 1) % ranks)"), told="comes before it has started to send"),
    edit("13.9", "no end of the ring", ("(rank + 1) % ranks", "rank + 1"), told="rank 1 of 2 sends to rank 2, want 0: keys go to rank + 1"),
    edit("13.9", "the other way", ("rank - 1", "rank + 1", 1), told="rank 0 of 3 receives from rank 1, want 2"),
    edit("13.9", "no waits", (WAITS, ""), told="computes with what is still being received"),
    edit("13.9", "the last send is not waited for", (WAITS, "            works[1].wait()\n"), told="never waits for something that it has started"),
    edit("13.9", "waits before the tile", (TILE_13_9, f"        if step < ranks - 1:\n{WAITS}{TILE_13_9}"), (f"{WAITS}{COMES}", COMES), told="and wait after it"),
    edit("13.9", "starts after the tile", (BEGIN, ""), (TILE_13_9, f"{TILE_13_9}{BEGIN}"), told="no message leaves beside tile 0 of rank 0 of 2"),
    edit("13.9", "waits for what comes before the tile", (TILE_13_9, f"        if step < ranks - 1:\n            works[1].wait()\n{TILE_13_9}"),
         told="no message comes beside tile 0 of rank 0 of 2"),
    edit("13.9", "one step more", ("step < ranks - 1", "True", 2), told="more than ranks − 1 times"),
    edit("13.9", "changed too early", (WAITS, "            works[1].wait()\n            kv.copy_(coming)\n            works[0].wait()\n"), told="changes what it sends before wait()"),
    ("13.9", pass_around_by_another_cells_function, "other processes run your function alone: define pass_around in it"),
    edit("13.9", "a sum", ("return tiles", "return sum(tiles)"), told="want a list of what tile gave"),
    edit("13.9", "keys in place of tiles", ("tiles.append(tile(kv))", "tiles.append(kv)"), told="want a list of what tile gave"),
)  # fmt: skip
assert torch  # the edits' names
