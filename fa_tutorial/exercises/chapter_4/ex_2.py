"""Exercise 4.2, flash_forward."""

import math

import torch

from fa_tutorial.exercises.forward_twin import forward_twin
from fa_tutorial.exercises.harness import Exercise, case, generator, show_nested
from fa_tutorial.exercises.watch import Scores


def flash_forward(q, k, v, block_m, block_n, is_causal, scale):
    """(o, lse) of attention, block by block.

    q: (B, H, S_q, D); k, v: (B, H, S_k, D); o: like q; lse: (B, H, S_q).
    """
    S_q, S_k = q.shape[2], k.shape[2]
    o = torch.empty_like(q)
    lse = torch.empty(q.shape[:3])
    for start_m in range(0, S_q, block_m):
        rows = slice(start_m, min(start_m + block_m, S_q))
        q_tile = q[:, :, rows].float()
        i = torch.arange(rows.start, rows.stop)[:, None]  # positions in the sequence
        m = torch.full(q_tile.shape[:3], -math.inf)
        l = torch.zeros(q_tile.shape[:3])
        acc = torch.zeros(q_tile.shape)
        for start_n in range(0, S_k, block_n):
            keys = slice(start_n, min(start_n + block_n, S_k))
            s = scale * (q_tile @ k[:, :, keys].float().transpose(-1, -2))
            if is_causal:
                j = torch.arange(keys.start, keys.stop)[None, :]
                s = s.masked_fill(j > i + S_k - S_q, -math.inf)
            m_new = torch.maximum(m, s.amax(dim=-1))
            shift = torch.where(m_new == -math.inf, 0.0, m_new)  # rows that have seen nothing
            p = torch.exp(s - shift[..., None])
            alpha = torch.exp(m - shift)
            l = alpha * l + p.sum(dim=-1)
            acc = alpha[..., None] * acc + p @ v[:, :, keys].float()
            m = m_new
        o[:, :, rows] = acc / torch.where(l == 0, 1.0, l)[..., None]
        lse[:, :, rows] = m + torch.log(l)
    return o, lse


_SHORT = "3 keys are a block of 2 and a block of 1"
_AGAIN = "each block of rows begins with m = −inf, l = 0, acc = 0"
MISTAKES = {
    "exchanged": "o and lse are exchanged: return (o, lse)",
    "not_divided": "acc is not divided by l",
    "exp_alone": "p = exp(s) is neither shifted nor divided",
    "exponent_sign": "the exponent has the wrong sign: it is s − m, which is never positive",
    "o_zero": "o stays 0: write each finished block of rows to it",
    "k_for_v": "k stands where v belongs",
    "scale_own": "the scores are scaled by 1/√D: multiply them by the scale that is given, and nothing else",
    "scale_both": "the scores are scaled by 1/√D too: multiply them by the scale that is given, and nothing else",
    "scale_ignored": "the scale is ignored",
    "scale_twice": "the scale is applied twice",
    "scale_divides": "the scores are divided by the scale: multiply them",
    "scale_zero": "a scale of 0 is taken for none given: all keys weigh the same",
    "lse_m": "lse is m alone: add log l",
    "lse_log_l": "lse is log l alone: it is relative to m, so add m",
    "lse_l": "lse is l: take its logarithm and add m",
    "lse_m_l": "lse is m + l: take the logarithm of l",
    "lse_log2": "log l is in base 2: lse is the natural logarithm",
    "lse_minus": "log l is subtracted: lse is m + log l",
    "lse_never": "lse is never written, or stays 0: write each finished block of rows to it",
    "lse_raw": "lse is that of the scores before the scale",
    "lse_last_l": "the l in lse is the last block's alone",
    "lse_first_m": "the m in lse is the first block's",
    "lse_last_m": "the m in lse is the last block's, not the running maximum",
    "acc_kept": "your acc is not rescaled when the maximum grows, and l is",
    "l_kept": "your l is not rescaled when the maximum grows, and acc is",
    "both_kept": "neither acc nor l is rescaled: each block's p is relative to its own maximum, and counts alike",
    "by_itself": "each block is normalised by itself, and the results are added",
    "inverted": "acc and l are rescaled with alpha inverted: it is exp(m − m_new)",
    "acc_inverted": "acc is rescaled with alpha inverted: it is exp(m − m_new)",
    "l_inverted": "l is rescaled with alpha inverted: it is exp(m − m_new)",
    "last_block": "only the last block is left in o: m, l and acc are carried on from block to block",
    "last_acc": "only the last block is left in acc: add to the rescaled acc",
    "last_l": "only the last block is left in l: add to the rescaled l",
    "first_block": "only the first block of keys is used",
    "new_rescaled": "the new block's p v is rescaled as well: only what was summed before it is",
    "own_maximum": "p is relative to its block's own maximum, and acc and l to the running one",
    "own_l": "acc is right, but l adds the second block relative to its own maximum",
    "falls": "m is the last block's own maximum: it is the maximum of all that was seen, and it never falls",
    "divided_early": "acc is divided by l in every block, and the next one takes it for the undivided sum: divide once, at the end",
    "keys_dropped": f"the ragged last block of keys is dropped: {_SHORT}",
    "keys_zeros": "the ragged last block of keys is filled up with zeros, and a score of 0 counts: hide it with −inf",
    "unshifted": "exp overflows: the scores must be shifted by the running maximum before exp",
    "from_zero": "exp underflows: m starts at 0, above every score",
    "one_l": "l is summed over the whole tile: each row has its own",
    "over_queries": "the softmax runs over the queries: each query's weights over the keys must add up to 1",
    "one_maximum": "one maximum is taken over the whole tile: each row has its own",
    "carried": f"the state of one block of rows is carried over to the next: {_AGAIN}",
    "first_rows": "only the first block of rows is computed",
    "first_place": "every block of rows is written to the place of the first",
    "first_q": "every block of rows takes the first block of q",
    "rows_dropped": "the ragged last rows are dropped: 3 rows are a block of 2 and a block of 1",
    "keys_to_S_q": "the loop over keys runs to S_q: k and v have S_k rows",
    "one_head": "every head gets the result of head 0",
    "one_batch": "every batch element gets the result of batch element 0",
    "no_mask": "is_causal changes nothing",
    "strict": "the mask is strict: query i sees key i too",
    "upside": "the mask is upside down: it hides the past",
    "hide_zero": "hidden scores are set to 0, and exp(0 − m) is a weight like any other: use −inf",
    "mask_after": "the mask comes after the softmax: the weights that are left no longer add up to 1",
    "by_place": "the mask is by positions in the tile: compare positions in the sequence, the tile's own start added",
    "diagonal_open": "the tile on the diagonal is not masked: some of its keys come after some of its queries",
    "diagonal_skipped": "the tile on the diagonal is skipped: some of its keys are seen",
    "above_open": "tiles above the diagonal are left unmasked",
    "numbers_skip": "row_block is compared with key_block as if block_m and block_n were equal: too many tiles are skipped",
    "numbers_mask": "row_block is compared with key_block as if block_m and block_n were equal: too few tiles are masked",
    "last_skipped": "the last tile that the block of rows sees is skipped",
    "top_left": "the mask starts at the top left: align it so that the last query sees the last key",
    "shift_sign": "S_k − S_q has the wrong sign: query i sees keys 0 … i + S_k − S_q",
    "skip_top_left": "the tiles to skip are found top left: S_k − S_q is missing where the walk over the keys ends",
    "unseen_nan": "rows that see nothing give NaN, by −inf − (−inf) in an exponent or 0 / 0 at the end: o must be 0",
    "no_keys_nan": "no key at all, and o is 0 / 0 = NaN: it must be 0",
    "unseen_finite": "hidden scores are a finite number such as −1e6: where a row sees nothing, that is its maximum, and p is 1",
    "unseen_lse_nan": "lse of rows that see nothing is NaN: it must be −inf",
    "unseen_lse_zero": "lse of rows that see nothing is 0: log 0 is −inf",
    "unseen_lse_inf": "lse of rows that see nothing is +inf: it must be −inf",
    "half_scores": "the scores are computed in float16, which ends at 65,504 and rounds 2,049 to 2,048: compute the scores in float32",
    "half_acc": "acc passes 65,504, where float16 ends: keep acc in float32",
    "half_lse": "lse has lost digits: keep m, l and lse in float32",
    "half_scale": "q or k times the scale is rounded to float16: scale the scores, which are float32",
}  # fmt: skip

CONDITIONS = {
    "unseen": "a row that sees no key gets o = 0 and lse = −inf: causal with S_q > S_k, or S_k = 0",
    "half": "for fp16 and bf16 the scores, m, l, acc and lse are float32, and o has q's dtype",
    "views": "q, k and v may be views: any strides work",
}


def tolerance(args, part):
    """Scores are sums of products: each is rounded by a few float32 units of the sum of their absolute values; halves round p and o once."""
    q, k, v, *_, scale = args
    noise = 4 * torch.finfo(torch.float32).eps * abs(scale) * float((q.abs().double() @ k.abs().double().mT).max()) if k.numel() else 0.0
    if part == "lse":
        return 1e-6, noise + (2e-5 if q.dtype == torch.float32 else 1e-3)
    rounding = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 5e-5}[q.dtype]
    return 0.0, (rounding + noise) * (float(v.double().abs().max()) if v.numel() else 1.0)


def inputs():
    def scores(s, blocks, otherwise, is_causal=False, scale=1.0, **options):
        """q is the identity and k = sᵀ, so that q kᵀ is s; v is the identity, so that o is the weights themselves."""
        s = torch.tensor(s)
        (S_q, S_k), D = s.shape, max(s.shape)
        q, k, v = torch.eye(S_q, D), torch.zeros(S_k, D), torch.eye(S_k, D)
        k[:, :S_q] = s.T
        on = f"q kᵀ = {show_nested(s.tolist())}, v = the identity, blocks {blocks[0]} × {blocks[1]}, scale = {scale:g}{', causal' if is_causal else ''}"
        return case(q[None, None], k[None, None], v[None, None], *blocks, is_causal, scale, on=on, otherwise=otherwise, **options)

    def column(*values, dtype=torch.float32):
        return torch.tensor(values, dtype=dtype).view(1, 1, -1, 1)

    yield scores([[1.0, 2.0]], (1, 2), "one tile: o = acc / l and lse = m + log l")
    mixed = "o is the sum of the rows of v, each times its key's weight"
    yield case(
        column(1.0),
        column(1.0, 2.0),
        column(3.0, 5.0),
        1,
        2,
        False,
        1.0,
        on="q = [[1]], k = [[1], [2]], v = [[3], [5]], one tile",
        otherwise=mixed,
    )
    yield scores([[2.0, 4.0]], (1, 2), "s = scale · q kᵀ", scale=0.5)
    yield scores(
        [[1.0, 2.0]],
        (1, 2),
        "the maximum is taken before the scale: a negative scale turns the order round, so take it of the scaled scores",
        scale=-1.0,
    )
    yield scores([[1.0, 2.0]], (1, 2), "a scale of 0 is a scale too: all keys weigh the same", scale=0.0)
    yield scores([[1.0, 2.0]], (1, 1), "two blocks: when the maximum grows, rescale acc and l alike")
    yield scores([[2.0, 1.0]], (1, 1), "the maximum is in the first block: the second must be relative to it")
    yield scores([[1.0, 2.0, 3.0]], (1, 1), "three blocks: acc and l are carried on from block to block")
    yield scores([[1.0, 2.0, 3.0]], (1, 2), f"the last block of keys may be ragged: {_SHORT}")
    yield scores([[1.0, 2.0]], (8, 8), "blocks may be larger than S_q and S_k")
    yield scores([[1000.0, 1001.0]], (1, 1), MISTAKES["unshifted"])
    yield scores([[1000.0, 0.0]], (1, 1), "exp overflows: m is the maximum of all that was seen, and it never falls")
    yield scores([[-1000.0, -1001.0]], (1, 1), "exp underflows: shift by the running maximum")
    yield scores([[1.0, 2.0], [4.0, 1.0]], (2, 2), "two rows of one tile: each has its own m and l")
    yield scores([[1.0, 2.0], [4.0, 1.0]], (1, 2), f"two blocks of rows: {_AGAIN}")
    yield scores(
        [[1.0, 2.0], [4.0, 1.0], [0.0, 3.0]], (2, 2), "the last block of rows may be ragged: 3 rows are a block of 2 and a block of 1"
    )
    yield scores([[1.0, 2.0, 3.0], [4.0, 1.0, 0.0]], (1, 1), "the loop over rows runs to S_q, the loop over keys to S_k")
    yield scores([[0.0, 0.0], [1000.0, 1000.0]], (2, 2), "row 0 underflows (it would if one maximum were taken for the whole tile)")
    seed = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, S, 4, generator=seed) for S in (3, 5, 5))
    yield case(q, k, v, 2, 2, False, 0.5, on="B = 2, H = 3, S_q = 3, S_k = 5, D = 4, blocks 2 × 2, scale = 0.5",
               otherwise="every head of every batch element is attention of its own")  # fmt: skip
    yield scores([[1.0, 2.0], [4.0, 1.0]], (2, 2), "one tile: query i sees keys 0 … i", True)
    four = [[1.0, 2.0, 0.0, 3.0], [2.0, 1.0, 3.0, 0.0], [0.0, 3.0, 1.0, 2.0], [3.0, 0.0, 2.0, 1.0]]
    for blocks, words in (((2, 2), "four tiles: query i sees keys 0 … i"),
                          ((2, 1), "tiles of 2 rows and 1 key: a block of rows may need several masked tiles"),
                          ((1, 2), "tiles of 1 row and 2 keys: the tile on the diagonal is found by positions, not by block numbers"),
                          ((2, 3), "4 keys in blocks of 3: masked tiles may be ragged"),
                          ((3, 2), "4 rows in blocks of 3: the last block has one row")):  # fmt: skip
        yield scores(four, blocks, words, True)
    below = "S_q < S_k: query i sees keys 0 … i + S_k − S_q"
    yield scores([[1.0, 2.0, 0.0], [4.0, 1.0, 3.0]], (2, 3), f"one tile, {below}", True)
    yield scores([[1.0, 2.0, 0.0], [4.0, 1.0, 3.0]], (1, 1), f"tiles of one score, {below}", True)
    q, k, v = (torch.randn(1, 2, S, 3, generator=seed) for S in (11, 14, 14))
    yield case(q, k, v, 4, 6, False, 1.0, on="S_q = 11, S_k = 14, D = 3, blocks 4 × 6", otherwise="the tiles are block_m × block_n")
    draw = generator()

    def fresh(words, sizes, blocks, is_causal, scale, factor=1.0, edge="", change=lambda x: x):
        (B, H, S_q, S_k, D) = sizes
        q, k, v = (change(torch.randn(B, H, S, D, generator=draw)) for S in (S_q, S_k, S_k))
        on = f"{words}, (B, H, S_q, S_k, D) = {sizes}, blocks {blocks[0]} × {blocks[1]}{', causal' if is_causal else ''}"
        return case(factor * q, factor * k, v, *blocks, is_causal, scale, on=on, fresh=True, edge=edge)

    for sizes, blocks, scale in (((1, 1, 1, 1, 1), (4, 4), 1.0), ((2, 3, 9, 17, 8), (8, 4), 0.3), ((1, 2, 33, 33, 5), (32, 16), 0.5)):
        for words, factor in (("randn", 1.0), ("3·randn", 3.0), ("30·randn", 30.0)):
            for is_causal in (False, True):
                yield fresh(words, sizes, blocks, is_causal, scale, factor)
    ones = column(1.0, 1.0, 1.0)
    for blocks, words in (((4, 1), "all rows in one tile"), ((1, 1), "a row a tile")):
        yield case(
            ones, column(2.0), column(5.0), *blocks, True, 1.0, on=f"causal, S_q = 3, S_k = 1, q kᵀ = 2, v = 5, {words}", edge="unseen"
        )
    yield case(ones, column(), column(), 2, 2, False, 1.0, on="S_q = 3, S_k = 0", edge="unseen")
    yield fresh("randn", (2, 2, 20, 9, 4), (8, 4), True, 0.5, edge="unseen")
    half = {"edge": "half"}
    one, three = (column(*[1.0] * n, dtype=torch.float16) for n in (1, 3))
    yield case(
        300 * one, 300 * one, one, 1, 1, False, 1e-4, on="float16, q = k = 300, scale = 1e-4", otherwise=MISTAKES["half_scores"], **half
    )
    pair = torch.tensor([[2048.0, 1.0], [2048.0, 0.0]], dtype=torch.float16)[None, None]
    eye = torch.eye(2, dtype=torch.float16)[None, None]
    yield case(
        torch.ones_like(pair[:, :, :1]),
        pair,
        eye,
        1,
        2,
        False,
        1.0,
        on="float16, scores 2,049 and 2,048",
        otherwise=MISTAKES["half_scores"],
        **half,
    )
    yield case(
        one, 0 * three, 6e4 * three, 1, 2, False, 1.0, on="float16, three equal keys, v = 60,000", otherwise=MISTAKES["half_acc"], **half
    )
    yield case(one, 9 * three, 9 * three, 1, 2, False, 1.0, on="float16, three scores of 9", otherwise=MISTAKES["half_lse"], **half)
    yield case(
        one, 9.5 * one, one, 1, 1, False, 1.0004, on="float16, q = 1, k = 9.5, scale = 1.0004", otherwise=MISTAKES["half_scale"], **half
    )
    yield case(
        column(1.0, dtype=torch.bfloat16), *(column(2.0, dtype=torch.bfloat16),) * 2, 1, 1, False, 1.0, on="bfloat16, one key", **half
    )
    for dtype in (torch.float16, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        yield fresh(f"randn in {name}", (2, 3, 7, 10, 8), (4, 4), True, 0.35, edge="half", change=lambda x, dtype=dtype: x.to(dtype))
    yield fresh(
        "transposed views",
        (2, 3, 7, 10, 8),
        (4, 4),
        True,
        0.35,
        edge="views",
        change=lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    )


EXERCISE = Exercise(
    id="4.2",
    task="Write attention's forward tile by tile, block_m queries by block_n keys.",
    conditions=CONDITIONS,
    hints=(
        "Two loops: over blocks of rows, and within one over blocks of keys. What must a block of rows begin with, and what may it write at its end?",
        "For each tile: s = scale · q kᵀ, hidden scores set to −inf, p, m, l, alpha as in 4.1, acc = alpha[..., None] · acc + p v. "
        "After the last key block: o = acc / l, lse = m + log l. Slices past the end are cut short by PyTorch.",
        "Causal, bottom right: i and j are positions in the sequence, not in the tile, and key j is hidden where j > i + S_k − S_q. A row that "
        "sees nothing ends with l = 0: divide by 1 there, and let log 0 give −inf.",
    ),
    solution=flash_forward,
    reasoning="Each block of rows walks over its blocks of keys with a state of its own, (m, l, acc), and writes o and lse once, at the end. The division "
    "waits until then, because acc and l are rescaled by the same alpha.",
    more="The package's version, algorithm.flash_forward, skips the tiles that the mask hides, takes fewer heads for k and v than for q, and counts the bytes "
    "that its tiles move.",
    inputs=inputs,
    twin=forward_twin,
    mistakes=MISTAKES,
    parts=("o", "lse"),
    tolerance=tolerance,
    watch=Scores,
)
