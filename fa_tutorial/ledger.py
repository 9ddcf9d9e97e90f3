"""Chapter 0: what attention costs. FLOPs, bytes through HBM, and the roofline that turns both into a time.

Each count is an exact integer for the algorithm as written: what an ideal implementation has to compute and to move. It
leaves out caches, padding and launches; the chapters say where these matter. B is the batch size, H the number of
heads, S_q and S_k the numbers of queries and keys, D the head dimension, and `itemsize` the bytes per element
(2 for fp16 and bf16, 4 for fp32). An argument that is not an integer raises TypeError, and one that is too small raises
ValueError: B, H, S_q and S_k may be 0, and everything else is at least 1.
"""

from fa_tutorial.arguments import check_int, check_positive

LSE_BYTES = 4  # the log-sum-exp is float32 whatever the tensors are


def visible_pairs(S_q: int, S_k: int, is_causal: bool = False) -> int:
    """Number of (query, key) pairs that one head computes (0.2). Causal is bottom-right aligned: query i sees keys 0 …
    i + S_k − S_q, and no key where that is negative."""
    S_q, S_k = check_int("S_q", S_q, 0), check_int("S_k", S_k, 0)
    if not is_causal:
        return S_q * S_k
    # The last query sees S_k keys, the one before it S_k − 1, and so on, down to 1 key or to the first query.
    rows = min(S_q, S_k)
    return rows * S_k - rows * (rows - 1) // 2


def attention_flops(B: int, H: int, S_q: int, S_k: int, D: int, is_causal: bool = False) -> int:
    """FLOPs of the two matmuls of attention's forward, q kᵀ and p v (0.3). Counts only the pairs that are seen. Leaves
    out the O(S²) operations of softmax, as the literature does (FA2, section 4.1)."""
    B, H, D = check_int("B", B, 0), check_int("H", H, 0), check_int("D", D)
    return 4 * B * H * visible_pairs(S_q, S_k, is_causal) * D  # of two matmuls, 2 for each multiply-add


BACKWARD_MATMULS = 5  # s again, dp, dv, dq, dk
SPLIT_BACKWARD_MATMULS = 7  # in two kernels, which both compute s and dp


def backward_flops(
    B: int, H: int, S_q: int, S_k: int, D: int, is_causal: bool = False, matmuls: int = BACKWARD_MATMULS
) -> int:
    """FLOPs of attention's backward: `matmuls` matmuls over the pairs that are seen (6.16). The literature counts 5,
    which is 2.5 times the forward (FA2, section 4.1). The kernels of chapter 7 do SPLIT_BACKWARD_MATMULS."""
    return check_int("matmuls", matmuls) * attention_flops(B, H, S_q, S_k, D, is_causal) // 2


def score_bytes(B: int, H: int, S_q: int, S_k: int, itemsize: int) -> int:
    """Bytes that one (B, H, S_q, S_k) tensor of scores or probabilities takes in memory (0.4)."""
    B, H, itemsize = check_int("B", B, 0), check_int("H", H, 0), check_int("itemsize", itemsize)
    return B * H * check_int("S_q", S_q, 0) * check_int("S_k", S_k, 0) * itemsize


def flash_hbm_bytes(S_q: int, S_k: int, D: int, block_m: int, itemsize: int) -> int:
    """Bytes that the programs of one head read and write in FA2's loop order (0.6, 4.7; FA2, algorithm 1). It reads q
    once, and writes o and the float32 lse once. It reads k and v once per block of block_m queries."""
    S_q, S_k, D = check_int("S_q", S_q, 0), check_int("S_k", S_k, 0), check_int("D", D)
    block_m, itemsize = check_int("block_m", block_m), check_int("itemsize", itemsize)
    row_blocks = -(-S_q // block_m)
    return (2 * S_q * D + row_blocks * 2 * S_k * D) * itemsize + S_q * LSE_BYTES


def fa1_hbm_bytes(S_q: int, S_k: int, D: int, block_n: int, itemsize: int) -> int:
    """Bytes that the program of one head reads and writes in FA1's loop order (FA1, algorithm 1). It reads k and v
    once. For each block of block_n keys it reads q, and reads and writes o and the float32 m and l."""
    S_q, S_k, D = check_int("S_q", S_q, 0), check_int("S_k", S_k, 0), check_int("D", D)
    block_n, itemsize = check_int("block_n", block_n), check_int("itemsize", itemsize)
    key_blocks = -(-S_k // block_n)
    return (2 * S_k * D + key_blocks * 3 * S_q * D) * itemsize + key_blocks * 4 * S_q * LSE_BYTES


def attainable_flops(intensity: float, peak_flops: float, bandwidth: float) -> float:
    """FLOP/s that the roofline allows at `intensity` FLOP/byte (0.8; Williams, Waterman and Patterson, 2009).
    peak_flops in FLOP/s, bandwidth in byte/s. Memory is the limit below the ridge, peak_flops / bandwidth, and
    arithmetic above it."""
    intensity = check_positive("intensity", intensity)
    return min(check_positive("peak_flops", peak_flops), intensity * check_positive("bandwidth", bandwidth))
