import functools

import torch
from edits import edit
from right_answers.chapter_13 import backward_with_own_tile_last_at_home

from fa_tutorial.algorithm import attention_backward
from fa_tutorial.exercises.chapter_13.played import attend
from fa_tutorial.ring import merge as join


def ring_without_neighbours(q, k, v, ranks):
    return attend(q, k, v)


def ring_in_float32(q, k, v, ranks):
    o, lse = (x.float() for x in attend(q, k, v))
    for _ in range(1, ranks):
        k, v = yield k, v
        o_part, lse_part = attend(q, k, v)
        o, lse = join(o, lse, o_part.float(), lse_part.float())
    return o, lse


def ring_where_rank_0_leaves(q, k, v, ranks):
    o, lse = attend(q, k, v)
    for _ in range(ranks - 1 if float(q.flatten()[0]) > 0 else ranks):
        k, v = yield k, v
    return o, lse


def ring_that_stores_all_shards(q, k, v, ranks):
    shards = [(k, v)]
    for _ in range(1, ranks):
        k, v = yield k, v
        shards.append((k, v))
    k, v = (torch.cat(same, dim=2) for same in zip(*shards, strict=True))
    return attend(q, k, v)


def ring_that_stores_all_parts(q, k, v, ranks):
    parts = [attend(q, k, v)]
    for _ in range(1, ranks):
        k, v = yield k, v
        parts.append(attend(q, k, v))
    return functools.reduce(lambda both, part: join(*both, *part), parts)


def overlapped_where_gradients_of_other_keys_join(kv, ranks, start, tile):
    passing = start(kv)
    dkv = tile(kv)
    for step in range(1, ranks):
        kv = passing.wait()
        if step < ranks - 1:
            passing = start(kv)
        dkv = dkv + tile(kv)
        dkv = start(dkv).wait()
    return start(dkv).wait()


def overlapped_without_its_own_tile(kv, ranks, start, tile):
    visitor, home = start(kv).wait(), None
    for step in range(1, ranks):
        if step < ranks - 1:
            passing = start(visitor)
        dkv = tile(visitor) + (home.wait() if home else 0)
        if step < ranks - 1:
            visitor = passing.wait()
        home = start(dkv)
    return home.wait()


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


def backward_where_queries_travel(q, k, v, o, do, lse, ranks):
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for _ in range(ranks):
        parts = attention_backward(q, k, v, o, do, lse)
        dq, dk, dv = (x + part for x, part in zip((dq, dk, dv), parts, strict=True))
        q, o, do, lse, dq = yield q, o, do, lse, dq
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


def overlapped_by_one_tile(kv, ranks, start, tile):
    return tile(kv) * 0 + torch.eye(ranks)[0][:, None]


def overlapped_without_waits(kv, ranks, start, tile):
    own, home = kv, None
    kv = start(kv)._coming
    for step in range(1, ranks):
        if step < ranks - 1:
            passing = start(kv)
        dkv = tile(kv) + (home._coming if home else 0)
        home = start(dkv)
        if step < ranks - 1:
            kv = passing._coming
    return tile(own) + home._coming


def overlapped_where_all_keys_come_before_any_tile_and_the_own_is_last(kv, ranks, start, tile):
    kvs = [kv]
    for _ in range(1, ranks):
        kvs.append(start(kvs[-1]).wait())
    dkv, home = 0, None
    for visiting in kvs[1:]:
        home = start(dkv) if torch.is_tensor(dkv) else None
        part = tile(visiting)
        dkv = part + (home.wait() if home else 0)
    home = start(dkv)
    return tile(kv) + home.wait()


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


def overlapped_with_the_own_tile_last_where_keys_are_waited_for_in_turn(kv, ranks, start, tile):
    own, dkv = kv, None
    for step in range(1, ranks):
        kv = start(kv).wait()
        if step > 1:
            home = start(dkv)
        dkv = tile(kv) + (home.wait() if step > 1 else 0)
    home = start(dkv)
    return tile(own) + home.wait()


def overlapped_with_the_own_tile_first_at_home(kv, ranks, start, tile):
    own, passing = tile(kv), start(kv)
    for step in range(1, ranks):
        kv = passing.wait()
        if step > 1:
            home = start(dkv)  # noqa: F821
        if step < ranks - 1:
            passing = start(kv)
        dkv = tile(kv) + (home.wait() if step > 1 else 0)
    return own + start(dkv).wait()


def backward_that_counts_its_own_pair_twice(q, k, v, o, do, lse, ranks):
    dq, dk, dv = (x.to(lse.dtype) for x in attention_backward(q, k, v, o, do, lse))
    for _ in range(ranks):
        k, v, dk, dv = yield k, v, dk, dv
        parts = attention_backward(q, k, v, o, do, lse)
        dq, dk, dv = (x + part for x, part in zip((dq, dk, dv), parts, strict=True))
    return dq, dk, dv


def ring_that_drops_the_last_part(q, k, v, ranks):
    o, lse = attend(q, k, v)
    for step in range(1, ranks):
        part = attend(q, k, v)
        k, v = yield k, v
        if step > 1:
            o, lse = join(o, lse, *part)
    return o, lse


def backward_that_adds_after_passing_on(q, k, v, o, do, lse, ranks):
    dq, dk, dv = (x.to(lse.dtype) for x in attention_backward(q, k, v, o, do, lse))
    for _ in range(1, ranks):
        dq_part, dk_part, dv_part = attention_backward(q, k, v, o, do, lse)
        k, v, dk, dv = yield k, v, dk, dv
        dq, dk, dv = dq + dq_part, dk + dk_part, dv + dv_part
    if ranks > 1:
        dk, dv = yield dk, dv
    return dq, dk, dv


PAIR = "attention_backward(q, k, v, o, do, lse)"
PART = f"dq_part, dk_part, dv_part = {PAIR}"
OWN_O, OWN_LSE = "played.attend(q, k, v)[0]", "played.attend(q, k, v)[1]"
ADD = "dq, dk, dv = dq + dq_part, dk + dk_part, dv + dv_part"
YIELD, LOOP = "k, v = yield k, v", "for _ in range(1, ranks):"
JOIN = "o, lse = join(o, lse, *attend(q, k, v))"
YIELD_ALL, HOME = "k, v, dk, dv = yield k, v, dk, dv", "if ranks > 1:\n        dk, dv = yield dk, dv\n"


def serial_with_gradients_first(kv, ranks, start, tile):
    dkv = None
    for step in range(ranks):
        part = tile(kv)
        home = start(part if dkv is None else dkv + part)
        if step < ranks - 1:
            kv = start(kv).wait()
        dkv = home.wait()
    return dkv


ULYSSES = "(ranks - 1) / ranks * (1 + G) * T_s + ranks * T_c"
STARTS = "dist.isend(kv, (rank + 1) % ranks), dist.irecv(coming, (rank - 1) % ranks)"
BEGIN = f"        if step < ranks - 1:\n            coming = torch.empty_like(kv)\n            works = {STARTS}\n"
TILE_13_9, COMES = "        tiles.append(tile(kv))\n", "            kv = coming\n"
WAITS = "            for work in works:\n                work.wait()\n"

WRONG_ANSWERS = (
    edit("13.1", "a float", ("(rank - step) % ranks", "(rank - step) / ranks"), told="owner(2, 0, 4) gives 0.5, want 2"),
    edit("13.1", "the next rank", ("rank - step", "rank + 1 - step"), told="in step 0 each rank holds its own keys"),
    edit("13.1", "a whole float", ("(rank - step) % ranks", "(rank - step) % float(ranks)"), told="it gives 2.0, a float: a rank's number is an int"),
    edit("13.1", "a list", ("return (rank - step) % ranks", "return [(rank - step) % ranks]"), told="gives [2], a list: a rank's number is an int"),
    edit("13.4", "keys of two shards", ("return rows // 2, rows, False", "return rows // 2, 2 * rows, False"), told="a shard has only `rows` keys"),
    edit("13.4", "None", (", False", ", None", 2), told="it must be True or False"),
    ("13.2", ring_without_neighbours, "there is no yield in it"),
    ("13.2", ring_in_float32, "one edge is left: join returns float64 here"),
    ("13.2", ring_where_rank_0_leaves, "waits for ever"),
    edit("13.2", "o alone", ("return o, lse", "return o"), told="each rank returns a tuple (o, lse)"),
    edit("13.2", "k wider", (f"        {YIELD}", "        k, v = yield k.float(), v.float()"), told="k and v travel as they are"),
    edit("13.2", "k and v in float64", (f"        {YIELD}", "        k, v = yield k.double(), v.double()"), told="k and v travel as they are"),
    edit("13.2", "four ranks", (LOOP, "for _ in range(1, 4):"), told="where `ranks` is 1, one rank has all keys"),
    edit("13.2", "nothing comes back", ("    return o, lse", "    yield o, lse"), told="each rank returns a tuple (o, lse)"),
    ("13.2", ring_that_stores_all_shards, "a rank holds as much as a whole sequence"),
    ("13.2", ring_that_stores_all_parts, "a rank holds as much as a whole sequence"),
    edit("13.2", "q travels", (f"        {YIELD}", "        q, k, v = yield q, k, v"), told="a rank sends more than k and v"),
    edit("13.2", "q comes along", (f"        {YIELD}", "        _, k, v = yield q, k, v"), told="a rank sends more than k and v"),
    edit("13.2", "o travels", (f"        {YIELD}", "        k, v, o, lse = yield k, v, o, lse"), told="a rank sends more than k and v"),
    edit("13.2", "o in q's dtype", (JOIN, f"{JOIN}\n        o = o.to(q.dtype)"),
         told="one edge is left: o and lse aren't rounded between two steps"),
    edit("13.2", "its own keys masked", ("    o, lse = attend(q, k, v)", "    o, lse = attend(q, k, v, True)"), told="attention without a mask"),
    edit("13.2", "visitors masked", (JOIN, JOIN.replace("k, v)", "k, v, is_causal=True)")), told="a shard's k and v, unmasked"),
    edit("13.2", "the largest lse", (JOIN, "part, more = attend(q, k, v)\n        o, _ = join(o, lse, part, more)\n        lse = torch.maximum(lse, more)"), told="lse is that of all keys so far"),
    edit("13.2", "the two lse exchanged", (JOIN, "part, more = attend(q, k, v)\n        o, lse = join(o, more, part, lse)"),
         told="join takes o and lse of what is there, and then o and lse of the part"),
    edit("13.2", "outputs added, one lse", (JOIN, "o = o + attend(q, k, v)[0]"), told="you add each part to o, and lse stays that of its own keys"),
    edit("13.2", "the mean with each part", (JOIN, "part, more = attend(q, k, v)\n        o, lse = (o + part) / 2, torch.logaddexp(lse, more)"),
         told="you take the mean of o and each part"),
    edit("13.2", "the mean, one lse", (JOIN, "o = (o + attend(q, k, v)[0]) / 2"), told="you take the mean of o and each part"),
    edit("13.2", "a part's lse counted twice", (JOIN, "part, more = attend(q, k, v)\n        lse = torch.logaddexp(lse, more)\n        o = join(o, lse, part, more)[0]"),
         told="lse has this part already when o joins it"),
    edit("13.3", "neighbours", ("rank, 2 * ranks - 1 - rank", "2 * rank, 2 * rank + 1"), told="each rank's work, in chunks × chunks: 2 ranks gives (2, 6)"),
    edit("13.3", "from 1", ("rank, 2 * ranks - 1 - rank", "rank + 1, 2 * ranks - rank"), told="each of 0 to 3 must go to one rank"),
    edit("13.3", "four ranks", ("2 * ranks - 1", "7"), told="2 ranks: chunks 0, 1, 6, 7 are dealt out: each of 0 to 3"),
    edit("13.3", "half of the sequence", ("2 * ranks - 1", "ranks - 1"), told="chunks 0, 0, 1, 1 are dealt out"),
    edit("13.3", "striped", ("rank, 2 * ranks - 1 - rank", "2 * rank % ranks, 2 * rank"), told="must go to one rank"),
    edit("13.3", "one chunk", ("rank, 2 * ranks - 1 - rank", "rank"), told="chunks_of(0, 2) gives 0, want a tuple or a list of two whole numbers"),
    edit("13.3", "a set", ("rank, 2 * ranks - 1 - rank", "{rank, 2 * ranks - 1 - rank}"), told="want a tuple or a list"),
    edit("13.4", "slices", ("return 0, rows, True", "return slice(0, None), slice(0, rows), True"), told="a rank's own rows are in order"),
    edit("13.4", "two numbers", (", True", ""), (", False", "", 2), told="want a tuple (first, end, is_causal)"),
    edit("13.4", "floats", ("rows // 2", "rows / 2", 2), told="first is 0 and end is 2.0: they must be whole numbers"),
    edit("13.4", "a row less", ("return rows // 2, rows, False", "return rows // 2 + 1, rows, False"), told="first = 3, want 2"),
    ("13.2", ring_that_drops_the_last_part, "the last part never joins"),
    ("13.6", backward_that_adds_after_passing_on, "the gradients of a pair join the sums of the next keys"),
    edit("13.5", "a quarter", ("return H_k", "return 0.25 * H_k"), told="that is a quarter of it, so two factors of 2 are lost"),
    edit("13.5", "for o as well", ("H_k * itemsize", "(H_k + H_q) * itemsize"), told="pairs of 4 FLOPs take as long"),
    edit("13.5", "rounded up", ("return H_k * itemsize * flops / (H_q * bandwidth)", "return -(-(H_k * itemsize * flops) // (H_q * bandwidth))"), told="don't round"),
    edit("13.4", "the last key", ("return 0, rows // 2, False", "return 0, rows // 2 - 1, False"), told="keys 0 … end − 1"),
    edit("13.4", "never causal", ("return 0, rows, True", "return 0, rows, 0"), told="is_causal = 0, want True"),
    edit("13.4", "every owner earlier", ("owner < rank", "owner < rows"), told="for a later owner you give first = 0 and half of its keys"),
    ("13.6", backward_that_stores_all_parts, "a rank holds as much as a whole sequence"),
    edit("13.6", "ends early", (LOOP, "for _ in range(2, ranks):"), told="dq stays, and adds up the parts of all keys"),
    edit("13.6", "dq alone", ("return dq, dk, dv", "return dq"), told="each rank returns a tuple (dq, dk, dv)"),
    edit("13.6", "twice around", (HOME, "for _ in range((ranks + 1) * (ranks > 1)):\n        dk, dv = yield dk, dv\n"), told="dk and dv ranks times at most"),
    ("13.6", backward_where_queries_travel, "a rank sends its q: q, o, do, lse and dq stay"),
    ("13.6", backward_where_only_dq_comes_home, "a rank sends its q: q, o, do, lse and dq stay"),
    edit("13.6", "home, with one rank too", (HOME, "dk, dv = yield dk, dv\n"), told="one edge is left: one rank: the gradients of chapter 6, and nothing is sent"),
    edit("13.6", "o and do exchanged", (PAIR, PAIR.replace("o, do, lse", "do, o, lse"), 2), told="o and do are exchanged"),
    edit("13.6", "dk and dv exchanged on the way home", (HOME, "if ranks > 1:\n        dv, dk = yield dk, dv\n"), told="dk and dv change places on the way home"),
    edit("13.6", "do leaves", (YIELD_ALL, "k, v, dk, dv, do = yield k, v, dk, dv, do"), told="a rank sends its do: q, o, do, lse and dq stay"),
    edit("13.6", "lse and o leave", (YIELD_ALL, "k, v, dk, dv, o, lse = yield k, v, dk, dv, o, lse"), told="a rank sends its o"),
    edit("13.6", "q, do and dq leave", (YIELD_ALL, "q, do, dq, k, v, dk, dv = yield q, do, dq, k, v, dk, dv"), told="a rank sends its q"),
    edit("13.6", "too far", (HOME, "for _ in range(1, ranks):\n        dk, dv = yield dk, dv\n"), told="comes home as dk after `ranks` steps"),
    edit("13.6", "own o and lse", (PAIR, PAIR.replace("o, do, lse", f"{OWN_O}, do, {OWN_LSE}"), 2), told="each part has its own o and lse"),
    edit("13.6", "own lse", (PAIR, PAIR.replace(" lse", f" {OWN_LSE}"), 2), told="each part has its own lse, so its weights add up to 1 over this shard alone"),
    edit("13.6", "own o", (PAIR, PAIR.replace(" o,", f" {OWN_O},"), 2), told="each part has its own o, so its delta is not the row's"),
    edit("13.6", "a visitor's own o and lse", (PART, PART.replace("o, do, lse", f"{OWN_O}, do, {OWN_LSE}")), told="each visitor's part has its own o and lse"),
    edit("13.6", "a visitor's own lse", (PART, PART.replace(" lse", f" {OWN_LSE}")), told="each visitor's part has its own lse, so its weights add up to 1"),
    edit("13.6", "a visitor's own o", (PART, PART.replace(" o,", f" {OWN_O},")), told="each visitor's part has its own o, so its delta is not the row's"),
    edit("13.6", "in bf16", (YIELD_ALL, f"{YIELD_ALL}\n        dk, dv = dk.bfloat16().double(), dv.bfloat16().double()"), told="unrounded"),
    edit("13.6", "in q's dtype", (ADD, f"{ADD}\n        dq, dk, dv = (x.to(q.dtype) for x in (dq, dk, dv))"), told="the result is right, but with bf16 inputs"),
    edit("13.6", "dq in q's dtype", (ADD, f"{ADD}\n        dq = dq.to(q.dtype)"), told="rounded in each step"),
    edit("13.6", "dk in q's dtype", (ADD, f"{ADD}\n        dk = dk.to(q.dtype)"), told="rounded in each step"),
    edit("13.6", "never wider", ("    dq, dk, dv = (x.to(lse.dtype) for x in (dq, dk, dv))  # float32, where q is bf16\n", ""), told="rounded in each step"),
    ("13.6", backward_that_counts_its_own_pair_twice, "its own pair is counted twice, first and last"),
    edit("13.6", "k and v in float32", (YIELD_ALL, "k, v, dk, dv = yield k.to(lse.dtype), v.to(lse.dtype), dk, dv\n        k, v = k.to(q.dtype), v.to(q.dtype)"),
         told="a rank sends 240 bytes, and k and v in bf16, dk and dv in float32 are 184: each travels no wider"),
    edit("13.6", "k and v widened and used so", (YIELD_ALL, "k, v, dk, dv = yield k.to(lse.dtype), v.to(lse.dtype), dk, dv"),
         told="it sends k and v in float32: k and v travel in their own dtype"),
    edit("13.6", "always float64", ("x.to(lse.dtype)", "x.double()"), told="each travels no wider than that"),
    edit("13.7", "the last wait", ("return start(dkv).wait()", "return start(dkv)"), told="it returns a Message, which is still on its way"),
    edit("13.7", "four ranks", ("range(1, ranks)", "range(1, 4)"), ("ranks - 1", "3"), told="it computes 4 tiles: there are `ranks` ranks, which aren't always 4"),
    edit("13.7", "four ranks, the own tile last", ("range(1, ranks)", "range(1, 4)"), ("step < ranks - 1", "step < 3"),
         told="it computes 4 tiles: there are `ranks` ranks, which aren't always 4", base=backward_with_own_tile_last_at_home),
    ("13.7", overlapped_with_the_own_tile_last_where_keys_are_waited_for_in_turn, "k and v are waited for right after their start"),
    edit("13.7", "no keys", ("kv = passing.wait()", "passing.wait()"), told="the parts of all ranks"),
    ("13.7", overlapped_where_all_keys_come_before_any_tile_and_the_own_is_last, "wait only where what comes is needed"),
    ("13.7", overlapped_where_the_last_gradients_wait_before_the_own_tile, "the last dk and dv are waited for before your own tile, which could hide them"),
    ("13.7", overlapped_with_the_own_tile_first_at_home, "keeping its part of dk and dv at home is right"),
    ("13.7", overlapped_where_gradients_of_other_keys_join, "a tile's part is added to the dk and dv of other keys"),
    ("13.7", overlapped_without_its_own_tile, "its own tile is never computed"),
    ("13.7", overlapped_by_one_tile, "it takes 4 s, but `ranks` tiles and one message of k and v take 9 s in any order"),
    ("13.7", overlapped_without_waits, "use what comes only after its wait()"),
    edit("13.7", "gradients stay", ("        home = start(dkv)\n", ""), ("dkv = tile(kv) + home.wait()", "dkv += tile(kv)"), ("start(dkv).wait()", "dkv"),
         told="dk and dv stay here while the keys travel"),
    edit("13.7", "a message", ("        kv = passing.wait()\n", "        kv = passing\n"), told="tile takes k and v, got their Message: wait() returns them"),
    edit("13.7", "a tuple", ("home = start(dkv)", "home = start((kv, dkv))"), told="start takes one tensor, got a tuple"),
    edit("13.7", "one message of k and v", ("        if step < ranks - 1:\n            passing = start(kv)\n", ""),
         told="the parts of all ranks come home to the keys that began here"),
    edit("13.8", "o stays", ("(1 + G)", "(1 + G / 2)"), told="and q and o G · T_s; a rank keeps 1 / ranks of each"),
    edit("13.8", "ring and all-gather exchanged", ("return ring, all_gather", "return all_gather, ring"), told="in the order all-gather, ring, Ulysses"),
    edit("13.8", "all-gather and Ulysses exchanged", ("all_gather, ulysses", "ulysses, all_gather"), told="in the order ring, Ulysses, all-gather"),
    edit("13.5", "whole division", ("H_k * itemsize * flops / (H_q * bandwidth)", "H_k // H_q * itemsize * flops / bandwidth"), told="// rounds H_k / H_q down"),
    edit("13.6", "dq leaves too", (YIELD_ALL, "k, v, dk, dv, dq = yield k, v, dk, dv, dq"), (HOME, "if ranks > 1:\n        dk, dv, dq = yield dk, dv, dq\n"),
         told="dq goes all the way around with the keys"),
    ("13.7", serial_with_gradients_first, "no message is on its way during a tile"),
    edit("13.8", "a first wait", ("T_c + (ranks - 1) * max(T_c, T_s)", "T_s + (ranks - 1) * max(T_c, T_s) + T_c"), told="a ring's first tile waits for no message"),
    edit("13.8", "all is sent", ("(ranks - 1) / ranks * (1 + G)", "(1 + G)"), told="Ulysses doesn't send what it keeps"),
    edit("13.8", "half is sent", ("(1 + G) * T_s", "(1 + G) / 2 * T_s"), told="that is half of what Ulysses sends"),
    edit("13.8", "Ulysses hides", (ULYSSES, "max(ranks * T_c, (ranks - 1) / ranks * (1 + G) * T_s)"), told="Ulysses computes only when q, k and v are there"),
    edit("13.9", "one tensor for both", ("dist.irecv(coming", "dist.irecv(kv"), (COMES, ""), told="receives into a tensor from which"),
    edit("13.9", "send, then receive", (STARTS, "dist.send(kv, (rank + 1) % ranks), dist.recv(coming, (rank - 1) % ranks)"), told="deadlock: rank 0 of 2 waits until its message is taken"),
    edit("13.9", "receive, then send", (STARTS, "dist.recv(coming, (rank - 1) % ranks), dist.isend(kv, (rank + 1) % ranks)"), told="waits for what comes before it has started to send"),
    edit("13.9", "no end of the ring", ("(rank + 1) % ranks", "rank + 1"), told="rank 1 of 2 sends to rank 2, which does not exist: keys travel to rank + 1, and from the last"),
    edit("13.9", "no beginning of the ring", ("(rank - 1) % ranks", "rank - 1"), told="rank 0 of 2 receives from rank -1, which does not exist: keys come from rank − 1"),
    edit("13.9", "the other way", ("rank - 1", "rank + 1", 1), told="keys come from rank − 1"),
    edit("13.9", "no waits", (WAITS, ""), told="computes with what is still being received"),
    edit("13.9", "the last send is not waited for", (WAITS, "            works[1].wait()\n"), told="never waits for something that it sends"),
    edit("13.9", "waits before the tile", (TILE_13_9, f"        if step < ranks - 1:\n{WAITS}{TILE_13_9}"), (f"{WAITS}{COMES}", COMES), told="wait only after it"),
    edit("13.9", "starts after the tile", (BEGIN, ""), (TILE_13_9, f"{TILE_13_9}{BEGIN}"), told="start to send and to receive before it"),
    edit("13.9", "receives after the tile",
         (STARTS, "dist.isend(kv, (rank + 1) % ranks)"), (WAITS, "            dist.recv(coming, (rank - 1) % ranks)\n            works.wait()\n"),
         told="tile 0 of rank 0 of 2 has no message that comes beside it: start to receive before it"),
    edit("13.9", "sends after the tile",
         (STARTS, "[dist.irecv(coming, (rank - 1) % ranks)]"), (WAITS, f"            works.append(dist.isend(kv, (rank + 1) % ranks))\n{WAITS}"),
         told="tile 0 of rank 0 of 2 has no message that leaves beside it: start to send before it"),
    edit("13.9", "waits for what comes before the tile", (TILE_13_9, f"        if step < ranks - 1:\n            works[1].wait()\n{TILE_13_9}"),
         told="has no message that comes beside it: wait only after it"),
    edit("13.9", "one step more", ("step < ranks - 1", "True", 2), told="sends more than ranks − 1 times"),
    edit("13.9", "changed too early", (WAITS, "            works[1].wait()\n            kv.copy_(coming)\n            works[0].wait()\n"), told="changes what it sends before wait()"),
    edit("13.9", "a sum", ("return tiles", "return sum(tiles)"), told="it returns a list of what tile gave"),
    edit("13.9", "a message of two", ("dist.isend(kv,", "dist.isend((kv, kv),"), told="sends a tuple: a message is a tensor"),
    edit("13.9", "keys in place of tiles", ("tiles.append(tile(kv))", "tiles.append(kv)"), told="its list holds keys themselves"),
)  # fmt: skip
assert torch  # the edits' names
