"""What each public function of a chapter says to an argument that it cannot take: the name, the value, and what is allowed.

The checks themselves are tested in test_arguments.py, and flash_attention's arguments in test_attention.py.
"""

import math

import pytest
import torch

from fa_tutorial import algorithm, ledger, reference, softmax

pytest.importorskip("triton")
from fa_tutorial import layout, matmul


def zeros(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


X, ROW, Q, ONE = zeros(2, 3), zeros(4), zeros(1, 2, 3, 4), zeros(1, 1, 2, 4)

BAD_INPUTS = [
    (lambda: ledger.visible_pairs(-1, 2), ValueError, ["S_q", "-1", "at least 0"]),
    (lambda: ledger.attention_flops(1, "1", 1, 1, 1), TypeError, ["H", "'1'", "integer"]),
    (lambda: ledger.backward_flops(1, 1, 1, 1, 1, matmuls=0), ValueError, ["matmuls", "got 0", "at least 1"]),
    (lambda: ledger.score_bytes(1, 1, 1, 1, 0), ValueError, ["itemsize", "got 0", "at least 1"]),
    (lambda: ledger.naive_hbm_bytes(1, 1, 1, 1, 1, 0.5), TypeError, ["itemsize", "0.5", "integer"]),
    (lambda: ledger.flash_hbm_bytes(1, 1, 1, 0, 2), ValueError, ["block_m", "got 0", "at least 1"]),
    (lambda: ledger.saved_bytes(1, 1, -1, 1, 1, 1, 2), ValueError, ["H_k", "-1", "at least 0"]),
    (lambda: ledger.attainable_flops(0, 1, 1), ValueError, ["intensity", "got 0", "greater than 0"]),
    (lambda: ledger.attainable_flops(1, 1, math.inf), ValueError, ["bandwidth", "inf", "finite"]),
    (lambda: softmax.safe_softmax([1.0]), TypeError, ["x", "list", "torch.Tensor"]),
    (lambda: softmax.safe_softmax(zeros(3, 0)), ValueError, ["x", "(3, 0)", "at least one element"]),
    (lambda: softmax.online_normalizer(zeros(2, 2)), ValueError, ["x", "(2, 2)", "1 dimension"]),
    (lambda: softmax.online_softmax(ROW.half(), 2), TypeError, ["x", "float16", "float32, float64"]),
    (lambda: softmax.online_softmax(ROW, 0), ValueError, ["block", "got 0", "at least 1"]),
    (lambda: softmax.running_weighted_sum(ROW, zeros(3, 2), 2), ValueError, ["4 and 3", "same length"]),
    (lambda: softmax.running_weighted_sum(ROW, zeros(4, 2), -1), ValueError, ["block", "-1", "at least 1"]),
    (lambda: layout.contiguous_strides((2, -1)), ValueError, ["size", "-1", "at least 0"]),
    (lambda: layout.flat_offset((1, 2), (3,)), ValueError, ["2", "1", "one length"]),
    (lambda: layout.add(X, X.half()), TypeError, ["x: float32", "y: float16"]),
    (lambda: layout.add(X, X[0]), ValueError, ["(2, 3)", "(3,)", "one shape"]),
    (lambda: layout.transpose_copy(X[None]), ValueError, ["x", "2 dimensions", "(1, 2, 3)"]),
    (lambda: layout.transpose_copy(X, block_r=24), ValueError, ["block_r", "24", "power of two"]),
    (lambda: layout.transpose_copy(zeros(1, 65_536), block_c=1), ValueError, ["65536", "65535"]),
    (lambda: layout.softmax(zeros(1, 65_537)), ValueError, ["65537", "1 to 65536"]),
    (lambda: matmul.matmul(X, X), ValueError, ["(2, 3) and (2, 3)", "must match"]),
    (lambda: matmul.matmul(X, X.half().T), TypeError, ["a: float32", "b: float16"]),
    (lambda: matmul.MatmulConfig(8, 16, 16, 4, 1), ValueError, ["block_m", "8", "at least 16"]),
    (lambda: matmul.blocked_matmul(X, X.T, 0, 1, 1), ValueError, ["block_m", "0", "at least 1"]),
    (lambda: matmul.scores_times_values(X, zeros(3, 3), X), ValueError, ["(3, 3)", "(2, 3)", "one shape"]),
    (lambda: matmul.scores_times_values(*[zeros(2, 129)] * 3), ValueError, ["D", "129", "1 to 128"]),
    (lambda: matmul.tiled_matmul_bytes(-1, 1, 1, 1, 1, 1), ValueError, ["M", "-1", "at least 0"]),
    (lambda: matmul.strips_per_wave(1, 1, 1, True), TypeError, ["wave", "True", "integer"]),
    (lambda: matmul.round_to_tf32(X.half()), TypeError, ["x", "float16", "float32"]),
    (lambda: reference.causal_mask(1, 2.0), TypeError, ["S_k", "2.0", "integer"]),
    (lambda: reference.attention(Q, Q.long(), Q), TypeError, ["k", "int64", "float32"]),
    (lambda: reference.naive_attention(Q, zeros(1, 2, 5, 4), Q), ValueError, ["(1, 2, 5, 4)", "(1, 2, 3, 4)", "one shape"]),
    (lambda: algorithm.flash_forward(ONE, ONE.half(), ONE.half(), 1, 1), TypeError, ["q: float32", "k: float16"]),
    (lambda: algorithm.flash_forward(ONE, ONE, ONE, 0, 1), ValueError, ["block_m", "at least 1", "0"]),
    (lambda: algorithm.flash_forward_fa1(ONE, ONE, ONE, 1, -1), ValueError, ["block_n", "at least 1", "-1"]),
    (lambda: algorithm.causal_tiles(2, 4, 4, 8, 8), ValueError, ["row_block", "below 2", "got 2"]),
    (lambda: algorithm.causal_rows(0, 4, 4, 8, 0), ValueError, ["key_block", "below 0", "got 0"]),
    (lambda: algorithm.recompute_p(ONE, ONE, zeros(1, 1, 2), math.inf), ValueError, ["scale", "inf"]),
    (lambda: algorithm.attention_backward(*[zeros(1, 2, 4)] * 5, zeros(1, 2)), ValueError, ["(B, H, S, D)", "(1, 2, 4)"]),
    (lambda: algorithm.flash_backward(*[ONE] * 5, zeros(1, 1, 2), 4, 1.5), TypeError, ["block_n", "integer"]),
    (lambda: algorithm.fa1_block_sizes(0, 64), ValueError, ["sram_elements", "at least 1"]),
]


@pytest.mark.parametrize(("call", "error", "words"), BAD_INPUTS, ids=[f"{words[0]}-{i}" for i, (_, _, words) in enumerate(BAD_INPUTS)])
def test_bad_input(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value
