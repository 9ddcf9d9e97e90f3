"""Chapter 12: what the loops of the official source, flash-attention at v2.8.3, do, in PyTorch: the forward's, the
backward's, and what a call of FlashAttention-3's step may meet."""

import math
from collections.abc import Iterable

import torch
from torch.nn.functional import pad

from fa_tutorial.algorithm import softmax_step

# ---------------------------------------------------------------- their loop, around a softmax such as exercise 12.2's

BLOCK_N, SCALE = 16, 0.25


def copy(x, keys, past_end):
    """A tile as a copy brings it. Its rows past the end hold `past_end`."""
    tile = torch.full((len(keys), x.shape[1]), past_end)
    here = keys < len(x)
    tile[here] = x[keys[here]]
    return tile


def by_thread(x):
    """[rows, columns] -> [rows, 4, columns / 4]: thread t of a row holds columns 2t and 2t + 1 of each eight."""
    return x.unflatten(1, (-1, 4, 2)).transpose(1, 2).flatten(2)


def your_softmax(s, row_max, row_sum, acc, scale_log2, is_first):
    """softmax_step and acc · alpha of chapter 4, called as FA2 calls its own. A row's sum is its first thread's."""
    unset = torch.full_like(row_max, -math.inf), torch.zeros_like(row_max)
    m, l = unset if is_first else (row_max, row_sum.sum(dim=1))
    p, m, l, alpha = softmax_step(scale_log2 * math.log(2) * s, m, l)
    return p, m, pad(l[:, None], (0, 3)), acc if is_first else alpha[:, None] * acc


def one_warp(softmax, q, k, v, last_seen, share, shared, unset,
             clear_acc=True, clear_v=True, peel=True, masked=3, rescale=True, deleted=()):  # fmt: skip
    """A warp's rows of o, by FA2's loop. share: the rows of each tile that the warp copies.

    unset: what memory and registers hold before anybody has written there. deleted: lines.
    clear_acc to rescale: what else can be taken out.
    """
    row_max = torch.full((len(q),), unset)
    row_sum = torch.full((len(q), 4), unset)  # each of a row's four threads has its own
    acc = torch.full((len(q), v.shape[1]), 0.0 if clear_acc else unset)  # 283
    blocks = torch.arange(-(-len(k) // BLOCK_N) * BLOCK_N).split(BLOCK_N)[::-1]
    begun, closed = {}, {"k": copy(k, blocks[0], unset)}  # copies in no group yet, and those in closed groups
    for step, keys in enumerate(blocks):
        if 305 not in deleted:
            land(closed, share, shared)
        if 306 not in deleted:
            yield
        begun["v"] = copy(v, keys, 0.0 if clear_v else unset)  # 310, 313
        if 317 not in deleted:
            fence(begun, closed)
        s = q @ shared["k"].T  # 304, 319
        if step < masked:
            s = torch.where(keys <= last_seen, s, -math.inf)  # 328
        if 332 not in deleted:
            land(closed, share, shared)
        if 333 not in deleted:
            yield
        if step + 1 < len(blocks):
            begun["k"] = copy(k, blocks[step + 1], unset)  # 335
            if 338 not in deleted:
                fence(begun, closed)
        is_first = peel and step == 0
        p, row_max, row_sum, scaled = softmax(  # 342 to 344
            s, row_max, row_sum, acc, SCALE * math.log2(math.e), is_first
        )  # fmt: skip
        acc = (scaled if rescale else acc) + p.half().float() @ shared["v"]  # 347, 367
    l = row_sum.sum(dim=1, keepdim=True)
    yield acc / torch.where(l > 0, l, 1.0)  # softmax.h, 172 to 183


def fence(begun, closed):
    """The copies begun since the last fence are a group."""
    closed |= begun
    begun.clear()


def land(closed, share, shared):
    """A wait: what this warp's closed groups copy is in shared memory, at the latest now."""
    for name, tile in closed.items():
        shared[name][share] = tile[share]
    closed.clear()


def their_loop(softmax, q, k, v, unset=math.nan, **change):
    """o of one block of rows. The first warp runs to its next barrier, and only then the second."""
    shared = {name: torch.full((BLOCK_N, x.shape[1]), unset) for name, x in (("k", k), ("v", v))}
    last_seen = torch.arange(len(q))[:, None] + len(k) - len(q)
    halves = (slice(0, 16), slice(0, 8)), (slice(16, 32), slice(8, 16))  # of the rows, and of a tile
    each = ((q[rows], k, v, last_seen[rows], share) for rows, share in halves)
    warps = [one_warp(softmax, *its, shared, unset, **change) for its in each]
    *_, o = zip(*warps, strict=True)  # from barrier to barrier; the last yields are rows of o
    return torch.cat(o)


# ---------------------------------------------------------------- their backward, for exercise 12.4's step


def their_backward(step, q, k, v, do, lse, delta, past_end=math.inf):
    """dq, dk and dv by FA2's loop around a step, under a causal mask. past_end: lse of the rows past S_q."""
    S_q, S_k, missing = len(q), len(k), -len(q) % BLOCK_N
    q, do = (torch.cat([x, torch.zeros(missing, x.shape[1])]) for x in (q, do))  # as the copies fill them
    lse, delta = torch.cat([lse, torch.full((missing,), past_end)]), torch.cat([delta, torch.zeros(missing)])
    dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
    for keys in torch.arange(S_k).split(BLOCK_N):  # a program each
        first_m = max(0, int(keys[0]) + S_q - S_k) // BLOCK_N * BLOCK_N  # m_block_min
        for rows in reversed(torch.arange(first_m, len(q)).split(BLOCK_N)):
            seen = keys <= rows[:, None] + S_k - S_q
            tiles = q[rows], k[keys], v[keys], do[rows], lse[rows], delta[rows]
            dq_step, dk_step, dv_step = step(*tiles, seen, SCALE * math.log2(math.e))
            dq[rows], dk[keys], dv[keys] = dq[rows] + dq_step, dk[keys] + dk_step, dv[keys] + dv_step
    return SCALE * dq[:S_q], SCALE * dk, dv


# ---------------------------------------------------------------- FA3's step, for exercise 12.5

MATMULS = "gemm q kᵀ", "gemm p v"
# A call of fwd_step -> what it reads, and what it changes. k and v: the buffers, which the producer overwrites as soon
# as they are given back.
FA3_CALLS = {
    "gemm q kᵀ": ("q k", "s"),
    "gemm p v": ("p v acc", "acc"),
    "mask_fn": ("s", "s"),
    "max_get_scale": ("s m l", "m alpha l"),
    "online_softmax": ("s m l", "s l"),
    "convert_type_out": ("s", "p"),
    "rescale_o": ("acc alpha", "acc"),
    "release k": ("", "k"),
    "release v": ("", "v"),
}


def under_way(step: Iterable[str]) -> list[tuple[str, list[str], str]]:
    """Each call of FA3's step, the matmuls that may be under way during it in the worst case, until a wait says that
    they have ended, and what goes wrong then, "" for nothing."""
    rows, running = [], []
    for call in step:
        if call.startswith("warpgroup_wait"):
            running = running[max(0, len(running) - int(call[-2])) :]  # they end in their order
        clashes = (met(call, matmul) for matmul in running if call not in MATMULS)
        rows.append((call, running, next(filter(None, clashes), "")))
        if call in MATMULS:
            running = [*running, call]
    return rows


def met(call: str, matmul: str) -> str:
    """What a call changes or reads of what a matmul under way reads or writes, in words; "" for nothing."""
    (reads, changes), (its_reads, its_changes) = (
        [set(names.split()) for names in FA3_CALLS.get(name, ("", ""))] for name in (call, matmul)
    )
    for does, names in (("changes", changes & (its_reads | its_changes)), ("reads", reads & its_changes)):
        for name in sorted(names):
            return f"{does} {name}, which {matmul} may still {'write' if name in its_changes else 'read'}"
    return ""


def worst_case(step: Iterable[str]) -> str:
    """A line for each call of FA3's step: which matmuls may be under way during it, and what goes wrong then."""
    lines = []
    for call, running, clash in under_way(step):
        names = ", ".join(name.removeprefix("gemm ") for name in running)
        lines.append(f"{call:18} {names:10} {'✗ ' * bool(clash)}{clash}".rstrip())
    return "\n".join(lines)
