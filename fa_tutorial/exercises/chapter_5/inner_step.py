"""What chapter 5's exercises say alike, and their inputs of one program."""

import torch

from fa_tutorial.exercises.forward_kernels import attention_case, draw_qkv

OVERLAP = "two programs compute the same rows: program pid computes row block pid % row_blocks of batch and head pid // row_blocks"
HALF = "fp16 works too (and bf16 on a GPU): the scores, m, l and acc stay float32"
KEYS_READ = "keys past S_k are read: pass S_k to load_tile for k and for v"


def half_inputs(**options):
    """fp16 inputs that show a score which is no float32, before or after its scale."""
    options["edge"] = "half"
    q, k, v = (x.half() for x in draw_qkv(1, 1, 16, 16, 16))
    q, k = torch.full_like(q, 64), torch.full_like(k, 64)
    on = "fp16, all of q and k 64, so that q kᵀ is 65536 before it is scaled"
    yield attention_case(q, k, v, on, f"{HALF}: fp16 ends at 65504", **options)
    q, k, v = torch.zeros_like(q), torch.zeros_like(k), torch.ones_like(v)
    q[..., 0], q[..., 1], k[..., 0], k[:, :, 8:, 1], v[:, :, 8:] = 64, 1, 32, 1, 2
    on = "fp16, scores 2048 and 2049, scale = 1"
    yield attention_case(q, k, v, on, f"{HALF}: fp16 rounds 2049 to 2048, and each key weighs the same", scale=1.0, **options)


def half_loop_inputs(**options):
    """fp16 inputs of several tiles, which show an l or an acc that is no float32."""
    options["edge"] = "half"
    q, k = (torch.zeros(1, 1, S, 16, dtype=torch.float16) for S in (16, 48))
    yield attention_case(q, k, k + 60000, "fp16, equal scores, v all 60000", f"{HALF}: fp16 ends at 65504", **options)
    q, k, v = torch.ones_like(q), torch.zeros(1, 1, 128, 16, dtype=torch.float16), torch.ones(1, 1, 128, 16, dtype=torch.float16)
    k[:, :, 16:, 0], v[:, :, 16:] = -7.75, -1
    on = "fp16, scores 0 and v 1 in the first tile, scores −7.75 and v −1 in seven more, scale = 1"
    yield attention_case(q, k, v, on, f"{HALF}: fp16 loses the later tiles' sums, for 16 is followed by 16.016", scale=1.0, **options)


def logits(*tiles, scale=0.25, S_k=None):
    """q, k and v of 16 queries whose logits are equal within each tile of 16 keys, the last one cut off at S_k."""
    q, _, v = draw_qkv(1, 1, 16, 16 * len(tiles), 16)
    k = torch.cat([torch.full((1, 1, 16, 16), tile / (16 * scale)) for tile in tiles], dim=2)
    return torch.ones_like(q), k[:, :, :S_k].clone(), v[:, :, :S_k].clone()


def one_tile_inputs(one_tile="", **options):
    """One program and one step, for whole tiles. one_tile: the rule, for random numbers; options: of every case."""
    fits = "an offset is wrong, not a mask: every tile is full here"
    zeros = torch.zeros(1, 1, 16, 16)
    yield attention_case(
        zeros,
        zeros,
        zeros + 4097,
        "one tile, q = k = 0, v all 4097",
        "all keys weigh the same, so o is the mean of v, 4097, which fp16, bf16 and TF32 round to 4096",
        stray=fits,
        **options,
    )
    one_tile = (
        one_tile or "one tile gives softmax(scale · q kᵀ) v: each row's maximum and sum run over its keys, axis 1, and acc is divided by l"
    )
    yield attention_case(*draw_qkv(1, 1, 16, 16, 16), "S_q = S_k = D = 16, one tile", one_tile, stray=fits, **options)


def two_tiles_input(edge=""):
    q, k, v = draw_qkv(1, 1, 16, 32, 16)
    k[:, :, 16:] *= 3  # most rows' maximum grows
    return attention_case(q, k, v, "S_k = 32, two tiles of keys", "a second tile joins m, l and acc by (4.2) and (4.3), and no key is left out or counts twice",
                          stray="an iteration takes keys start_n to start_n + BLOCK_N − 1, and start_n stays below S_k", edge=edge)  # fmt: skip
