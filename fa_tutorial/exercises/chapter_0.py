"""Graders, hints and reasoning of chapter 0: counting, naive attention, the roofline."""

from __future__ import annotations

import math
import random

import torch

from fa_tutorial import ledger, reference
from fa_tutorial.exercises.catalogue import Exercise
from fa_tutorial.exercises.grader import OTHERS, Wrong, as_tensor, expect, expect_equal, fresh, run


def _call_text(name: str, args: tuple) -> str:
    return f"{name}({', '.join(map(str, args))})"


def grade_attention_flops(answer) -> None:
    def compare(*args: int, otherwise: str) -> None:
        B, H, S_q, S_k, D, is_causal = args
        want = ledger.attention_flops(*args)
        top_left = sum(min(i + 1, S_k) for i in range(S_q))
        suspects = {
            "half is missing: a multiply-add is 2 FLOPs, and there are two matmuls, q kᵀ and p v": want // 2,
            "both the second matmul and the addition of a multiply-add are missing": want // 4,
            "pairs that the causal mask hides are counted": 4 * B * H * S_q * S_k * D,
            "the diagonal is half counted: a causal row i of a square sees i + 1 keys, so S·(S + 1)/2 pairs in all": 2
            * B
            * H
            * S_q
            * S_k
            * D,
            "the diagonal is not counted: query i sees key i too": 4 * B * H * D * sum(range(S_q)),
            "the mask starts at the top left: with S_q ≠ S_k the last query sees the last key": 4 * B * H * top_left * D,
            "the number of heads is missing": want // H,
            "the batch size is missing": want // B,
            "S_q is used for both lengths": 4 * B * H * ledger.visible_pairs(S_q, S_q, is_causal) * D,
            "S_k is used for both lengths": 4 * B * H * ledger.visible_pairs(S_k, S_k, is_causal) * D,
        }
        expect_equal(run(answer, *args), want, on=_call_text("attention_flops", args), otherwise=otherwise, suspects=suspects)

    full = "count 2 matmuls, 2 FLOPs a multiply-add, for every (query, key) pair of every head"
    compare(1, 1, 4, 4, 8, False, otherwise=full)
    compare(2, 3, 4, 4, 8, False, otherwise=full)
    compare(2, 3, 5, 7, 8, False, otherwise=full)
    compare(1, 1, 4, 4, 8, True, otherwise="causal: only the pairs that are seen count")
    compare(1, 1, 2, 5, 8, True, otherwise="causal, S_q < S_k: query i sees keys 0 … i + S_k − S_q")
    compare(
        1, 1, 5, 2, 8, True, otherwise="causal, S_q > S_k: the first S_q − S_k queries see no key and cost nothing, never less than nothing"
    )
    large = (63, 65, 99, 99, 127, True)  # past int32 and float32 by B and H: an answer may build the mask, or walk over its pairs
    expect_equal(
        run(answer, *large),
        ledger.attention_flops(*large),
        on=_call_text("attention_flops", large),
        otherwise="large counts must be exact: stay with integers",
    )
    for _ in range(20):
        args = (random.randint(1, 4), random.randint(1, 8), random.randint(1, 300), random.randint(1, 300), random.randint(1, 128))
        for is_causal in (False, True):
            expect_equal(
                run(answer, *args, is_causal),
                ledger.attention_flops(*args, is_causal),
                on="a random case",
                otherwise=OTHERS,
                values=False,
            )


def grade_naive_hbm_bytes(answer) -> None:
    def compare(*args: int) -> None:
        B, H, S_q, S_k, D, itemsize = args
        heads = B * H
        want = ledger.naive_hbm_bytes(*args)
        score = heads * S_q * S_k * itemsize
        suspects = {
            "elements are counted, not bytes: multiply by itemsize": want // itemsize if itemsize > 1 else -1,
            "itemsize multiplies only the scores: q, k, v and o have it too": heads * (2 * (S_q + S_k) * D + 4 * S_q * S_k * itemsize),
            "S_q is used for both lengths of q, k, v and o: k and v have S_k rows": heads * (4 * S_q * D + 4 * S_q * S_k) * itemsize,
            "only two touches of each score are counted: s is written and read, and p is written and read": want - 2 * score,
            "s and p are each written but one of the reads is missing: each score is touched four times": want - score,
            "s and p never reach HBM in this count: that is what a fused kernel would move": want - 4 * score,
            "o is not counted: the third kernel writes it": want - heads * S_q * D * itemsize,
            "v is not counted: the third kernel reads it": want - heads * S_k * D * itemsize,
            "S_q is used for both lengths: k and v have S_k rows": ledger.naive_hbm_bytes(B, H, S_q, S_q, D, itemsize),
            "the heads are missing: every head has its own s and p": want // H,
            "the batch is missing": want // B,
            "a third matrix of scores is counted: softmax reads s and writes p, nothing else": want + score,
            "half of the bytes are counted: itemsize is an argument, 4 here and not always 2": want // 2 if itemsize == 4 else -1,
            "itemsize is an argument, 2 here and not always 4": 2 * want if itemsize == 2 else -1,
        }
        expect_equal(run(answer, *args), want, on=_call_text("naive_hbm_bytes", args),
                     otherwise="add up what each of the three kernels reads and writes", suspects=suspects)  # fmt: skip

    compare(1, 1, 5, 7, 3, 4)  # no two of the suspects agree here
    compare(1, 1, 5, 7, 3, 2)
    compare(2, 3, 4, 6, 2, 4)
    for _ in range(20):
        args = (*(random.randint(1, 9) for _ in range(2)), *(random.randint(1, 500) for _ in range(3)), random.choice((1, 2, 4)))
        expect_equal(
            run(answer, *args),
            ledger.naive_hbm_bytes(*args),
            on="a random case",
            otherwise=OTHERS,
            values=False,
        )


def grade_naive_attention(answer) -> None:
    generator = torch.Generator().manual_seed(0)

    def draw(B, H, S_q, S_k, D, factor=1.0, seed_from=generator):
        return tuple(factor * torch.randn(B, H, S, D, generator=seed_from) for S in (S_q, S_k, S_k))

    def compare(q, k, v, is_causal, on, otherwise, suspects=None, values=True) -> None:
        o, _ = reference.attention(q, k, v, is_causal)
        expect(run(answer, q, k, v, is_causal), o, on=on, otherwise=otherwise, suspects=suspects, rtol=1e-4, atol=1e-5, values=values)

    # Every query is the first key: s = [2, 0] before the scale and [1, 0] after it. B, H, S and D differ, so that a scale tells its dimension.
    B, H, S, D = 5, 3, 2, 4
    k = torch.tensor([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]]).repeat(B, H, 1, 1)
    q, v = k[..., :1, :].repeat(1, 1, S, 1), torch.eye(S, D).repeat(B, H, 1, 1)

    def scaled(scale: float) -> torch.Tensor:
        return (torch.softmax(scale * torch.tensor([2.0, 0.0]), 0) @ v[0, 0]).expand(B, H, S, D)

    both = torch.ones(S, S) @ v  # what weights of 1 give
    on = f"B = {B}, H = {H}, S = {S}, D = {D}, every q = [1, 1, 0, 0], the keys q and [0, 0, 1, 1],"
    compare(q, k, v, False, on, "o = softmax(q kᵀ / √D) v", {
        "the scores are not scaled: divide q kᵀ by √D": scaled(1.0),
        "the scores are divided by D: the scale is 1/√D": scaled(1 / D),
        "the scores are multiplied by √D: divide": scaled(D**0.5),
        "the scores are divided by the root of S, the number of rows: D is the last dimension": scaled(S**-0.5),
        "the scores are divided by the root of H, the number of heads: D is the last dimension": scaled(H**-0.5),
        "the scores are divided by the root of B, the batch size: D is the last dimension": scaled(B**-0.5),
        "the softmax runs over the queries: each query's weights over the keys must add up to 1": both / S,
        "the softmax runs over the heads: each query's weights over the keys must add up to 1": both / H,
        "the softmax runs over the batch: each query's weights over the keys must add up to 1": both / B,
        "the weights are not divided by their sum": torch.exp(torch.tensor([1.0, 0.0])).expand(B, H, S, 2) @ v,
    })  # fmt: skip

    q, k, v = draw(2, 3, 5, 5, 8)
    scores = q.double() @ k.double().transpose(-1, -2) / math.sqrt(8)
    over_queries = torch.softmax(scores, dim=-2) @ v.double()
    compare(q, k, v, False, "B = 2, H = 3, S = 5, D = 8", "o = softmax(q kᵀ / √D) v for each head", {
        "the softmax runs over the queries: take it over the last dimension, the keys": over_queries,
    })  # fmt: skip

    q, k, v = draw(1, 1, 4, 4, 8)
    scores = q.double() @ k.double().transpose(-1, -2) / math.sqrt(8)
    p, seen = torch.softmax(scores, dim=-1), torch.ones(4, 4, dtype=torch.bool).tril()
    zeroed = torch.softmax(scores * seen, dim=-1)
    strict = torch.softmax(scores.masked_fill(~seen.tril(-1), -math.inf), dim=-1).nan_to_num(0.0)
    upper = torch.softmax(scores.masked_fill(~seen.T, -math.inf), dim=-1)
    compare(q, k, v, True, "S = 4, causal", "query i sees keys 0 … i", {
        "is_causal changes nothing": p @ v.double(),
        "the mask comes after the softmax: the weights that are left no longer add up to 1": (p * seen) @ v.double(),
        "hidden scores are set to 0, and exp(0) = 1 is a weight like any other: use −inf": zeroed @ v.double(),
        "the mask is strict: query i sees key i too": strict @ v.double(),
        "the mask is upside down: it hides the past": upper @ v.double(),
    })  # fmt: skip

    q, k, v = draw(1, 2, 2, 5, 8)
    scores = q.double() @ k.double().transpose(-1, -2) / math.sqrt(8)
    top_left = torch.softmax(scores.masked_fill(~torch.ones(2, 5, dtype=torch.bool).tril(), -math.inf), dim=-1)
    compare(q, k, v, True, "S_q = 2, S_k = 5, causal", "with S_q < S_k query i sees keys 0 … i + S_k − S_q", {
        "the mask starts at the top left: align it so that the last query sees the last key": top_left @ v.double(),
    })  # fmt: skip

    q, k, v = draw(1, 1, 4, 4, 8, factor=20.0)
    result = as_tensor(run(answer, q, k, v, False))
    expect(
        result,
        reference.attention(q, k, v)[0],
        on="scores in the hundreds",
        otherwise="exp overflows: use a softmax that subtracts the maximum",
        rtol=1e-3,
        atol=1e-4,
    )

    for shape in ((1, 1, 1, 1, 1), (2, 3, 17, 33, 16), (1, 2, 33, 70, 5)):
        for is_causal in (False, True):
            q, k, v = draw(*shape, seed_from=fresh())
            on = f"(B, H, S_q, S_k, D) = {shape}, is_causal = {is_causal}"
            compare(q, k, v, is_causal, on, OTHERS, values=False)
    q, k, v = (tensor.transpose(1, 2) for tensor in draw(2, 6, 3, 3, 8, seed_from=fresh()))
    compare(q, k, v, True, "transposed views", "strides other than contiguous must work too", values=False)


def grade_attainable_flops(answer) -> None:
    def compare(intensity: float, peak: float, bandwidth: float) -> None:
        memory = intensity * bandwidth
        suspects = {
            "the memory limit is missing: at low intensity the bytes cannot come fast enough": peak if peak > memory else -1,
            "the arithmetic limit is missing: no intensity lifts it": memory if memory > peak else -1,
            "bandwidth is divided by the intensity: FLOP/byte times byte/s is FLOP/s": min(peak, bandwidth / intensity),
            "intensity is divided by the bandwidth: FLOP/byte times byte/s is FLOP/s": min(peak, intensity / bandwidth),
            "the two limits are combined as if one waited for the other; they overlap, so the slower one decides": 1
            / (1 / peak + 1 / memory),
            "the limits are averaged: the slower one decides": (peak + memory) / 2,
            "the result is cut to a whole number: FLOP/s need not be one": math.floor(min(peak, memory)),
        }
        expect(run(answer, intensity, peak, bandwidth), min(peak, memory), on=f"attainable_flops({intensity:g}, {peak:g}, {bandwidth:g})",
               otherwise="the roof is the smaller of peak_flops and intensity · bandwidth", suspects=suspects, rtol=1e-6, atol=0.0)  # fmt: skip

    larger = [float(as_tensor(run(answer, intensity, 100.0, 10.0))) for intensity in (2.0, 50.0)] == [100.0, 500.0]
    if larger:
        raise Wrong("the larger of the two limits is taken: attainable_flops(2, 100, 10) gives 100, want 20")
    compare(2.0, 100.0, 10.0)  # memory limits
    compare(50.0, 100.0, 10.0)  # arithmetic limits
    compare(10.0, 100.0, 10.0)  # the ridge
    compare(0.25, 100.0, 10.0)  # no whole number
    compare(0.25, 7.83e14, 4.3e12)
    for _ in range(20):
        intensity, peak, bandwidth = (10 ** random.uniform(-2, 3), 10 ** random.uniform(12, 15), 10 ** random.uniform(10, 13))
        expect(run(answer, intensity, peak, bandwidth), min(peak, intensity * bandwidth), on="a random case",
               otherwise=OTHERS, values=False, rtol=1e-6, atol=0.0)  # fmt: skip


EXERCISES = (
    Exercise(
        "0.1", "attention_flops", "Count the FLOPs of attention's two matmuls.", grade_attention_flops,
        ("How many (query, key) pairs are there, and how many multiply-adds does one pair cost in q kᵀ, and again in p v?",
         "A pair costs 4·D FLOPs in a head. For the causal count, add up over the rows how many keys each query sees, "
         "max(0, i + 1 + S_k − S_q), and mind the rows that see none."),
        ledger.attention_flops,
        "Every pair costs D multiply-adds in q kᵀ and D in p v, 4·D FLOPs together. What the causal mask changes is the number of pairs: "
        "the last query sees S_k keys, each one before it one less. visible_pairs is that sum.",
        (ledger.visible_pairs,),
    ),
    Exercise(
        "0.2", "naive_hbm_bytes", "Count the bytes that naive attention moves through HBM.", grade_naive_hbm_bytes,
        ("List the three kernels; beside each, what it reads and what it writes.",
         "q and o have S_q·D elements, k and v S_k·D. s and p have S_q·S_k, and each is written once and read once."),
        ledger.naive_hbm_bytes,
        "q, k, v are read once and o is written once. s is written by the first kernel and read by the second, p is written by the second "
        "and read by the third: four touches of S_q·S_k elements, which is where nearly all the bytes are.",
    ),
    Exercise(
        "0.3", "naive_attention", "Write attention as three steps in PyTorch.", grade_naive_attention,
        ("Three lines: scores, softmax, weighted sum. Which dimension of the scores runs over the keys?",
         "For the mask: torch.ones(S_q, S_k, dtype=torch.bool).tril(S_k - S_q) is True where a query may look; "
         "fill the rest of the scores with −inf before the softmax."),
        reference.naive_attention,
        "The mask goes in before the softmax and holds −inf, so that exp makes it 0 and the rest still adds up to 1. tril's diagonal "
        "S_k − S_q aligns it at the bottom right.",
    ),
    Exercise(
        "0.4", "attainable_flops", "Draw the roof: the FLOP/s that an intensity allows.", grade_attainable_flops,
        ("Bytes arrive at `bandwidth`. How many FLOPs does each of them feed?",
         "intensity · bandwidth is the slope, peak_flops the flat part; the lower of the two is the roof."),
        ledger.attainable_flops,
        "Memory delivers bandwidth bytes a second, and each feeds `intensity` FLOPs; the units do at most peak_flops. Both work at once, "
        "so the slower one decides.",
    ),
)  # fmt: skip
