"""The argument checks: what they accept, and what each public function of a chapter says to an argument that it cannot take.

flash_attention's arguments: test_attention.py.
"""

import fractions

import numpy as np
import pytest
import torch

from fa_tutorial import algorithm, ledger, reference, softmax
from fa_tutorial.arguments import check_alike, check_finite, check_flag, check_int, check_positive, check_scale, check_tensor, dtype_name

pytest.importorskip("triton")
from buffers import assert_refused

from fa_tutorial import flash_attention, flash_decode, hardware, layout, matmul


def test_what_is_accepted():
    """Numbers of Python, NumPy and PyTorch become Python's; tensors are returned as they are, and a flag as a bool."""
    for value in (3, np.int64(3), torch.tensor(3)):
        assert (number := check_int("n", value, 3)) == 3 and type(number) is int
    for value in (2, np.float32(2), torch.tensor(2.0), fractions.Fraction(2)):
        for number in (check_finite("x", value), check_positive("x", value), check_scale(value)):
            assert number == 2.0 and type(number) is float
    assert check_finite("x", -1.5) == check_scale(-1.5) == -1.5 and check_finite("x", 0) == 0.0
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        x = torch.empty(2, 0, dtype=dtype)
        assert check_tensor("x", x) is x and dtype_name(dtype) == str(dtype).removeprefix("torch.")
    check_alike(a=torch.zeros(2), b=torch.zeros(3, 4))
    assert [check_flag("is_causal", value) for value in (True, np.False_)] == [True, False]


X, ROW, Q, ONE = torch.zeros(2, 3), torch.zeros(4), torch.zeros(1, 2, 3, 4), torch.zeros(1, 1, 2, 4)
BAD_INPUTS = [
    (lambda: check_int("B", 0), ValueError, ["B", "got 0", "at least 1"]),
    (lambda: check_int("B", 2.0), TypeError, ["B", "2.0", "float", "integer"]),
    (lambda: check_int("B", True), TypeError, ["B", "True", "integer"]),
    (lambda: check_finite("scale", float("nan")), ValueError, ["scale", "nan", "finite"]),
    (lambda: check_finite("scale", "1"), TypeError, ["scale", "'1'", "str", "number"]),
    (lambda: check_positive("bandwidth", 0), ValueError, ["bandwidth", "got 0", "greater than 0"]),
    (lambda: check_scale(-4e38), ValueError, ["scale", "finite in float32", "-4e+38"]),
    (lambda: check_scale(torch.ones((), requires_grad=True)), TypeError, ["scale", "gradient", "scale=1.0"]),
    (lambda: check_flag("is_causal", 1), TypeError, ["is_causal", "1", "int", "True or False"]),
    (lambda: check_tensor("q", np.zeros(2)), TypeError, ["q", "ndarray", "torch.Tensor"]),
    (lambda: check_tensor("q", X.int()), TypeError, ["q", "int32", "float16, bfloat16, float32, float64"]),
    (lambda: check_tensor("q", torch.nested.nested_tensor([X, X], layout=torch.jagged)), TypeError, ["q", "dense"]),
    (lambda: check_tensor("q", X, ndim=1), ValueError, ["q", "1 dimension,", "(2, 3)"]),
    (lambda: check_alike(q=X, k=X.half()), TypeError, ["q: float32", "k: float16", "one dtype"]),
    (lambda: check_alike(q=X, k=X.to("meta")), ValueError, ["q: cpu", "k: meta", "one device"]),
    (lambda: ledger.score_bytes(1, 1, 1, 1, 0.5), TypeError, ["itemsize", "0.5", "integer"]),
    (lambda: ledger.flash_hbm_bytes(1, 1, 1, 0, 2), ValueError, ["block_m", "got 0", "at least 1"]),
    (lambda: ledger.attainable_flops(0, 1, 1), ValueError, ["intensity", "got 0", "greater than 0"]),
    (lambda: softmax.safe_softmax([1.0]), TypeError, ["x", "list", "torch.Tensor"]),
    (lambda: softmax.safe_softmax(torch.zeros(3, 0)), ValueError, ["x", "(3, 0)", "at least one element"]),
    (lambda: softmax.online_softmax(ROW.half(), 2), TypeError, ["x", "float16", "float32, float64"]),
    (lambda: softmax.online_softmax(ROW, 0), ValueError, ["block", "got 0", "at least 1"]),
    (lambda: softmax.running_weighted_sum([(ROW, torch.zeros(3, 2))], 2), ValueError, ["D = 2", "4 scores", "(3, 2)"]),
    (lambda: softmax.running_weighted_sum([(ROW, torch.zeros(4, 2).double())], 2), TypeError, ["float64"]),
    (lambda: layout.flat_offset((1, 2), (3,)), ValueError, ["2", "1", "one length"]),
    (lambda: layout.add(X, X[0]), ValueError, ["(2, 3)", "(3,)", "one shape"]),
    (lambda: layout.transpose_copy(X, block_r=24), ValueError, ["block_r", "24", "power of two"]),
    (lambda: layout.softmax(torch.zeros(1, 65_537, device=hardware.device())), ValueError, ["65537", "1 to 65536"]),
    (lambda: matmul.matmul(X, X), ValueError, ["(2, 3) and (2, 3)", "must match"]),
    (lambda: matmul.MatmulConfig(8, 16, 16, 4, 1), ValueError, ["block_m", "8", "at least 16"]),
    (lambda: matmul.scores_times_values(X, torch.zeros(3, 3), X), ValueError, ["(3, 3)", "(2, 3)", "one shape"]),
    (lambda: matmul.scores_times_values(*[torch.zeros(2, 129)] * 3), ValueError, ["D", "129", "1 to 128"]),
    (lambda: reference.causal_mask(1, 2.0), TypeError, ["S_k", "2.0", "integer"]),
    (lambda: reference.naive_attention(Q, torch.zeros(1, 2, 5, 4), Q), ValueError, ["(1, 2, 5, 4)", "(1, 2, 3, 4)", "one shape"]),
    (lambda: algorithm.flash_forward(ONE, ONE, ONE, 0, 1), ValueError, ["block_m", "at least 1", "0"]),
    (lambda: algorithm.causal_tiles(2, 4, 4, 8, 8), ValueError, ["row_block", "below 2", "got 2"]),
    (lambda: algorithm.attention_backward(*[torch.zeros(1, 2, 4)] * 5, torch.zeros(1, 2)), ValueError, ["(B, H, S, D)", "(1, 2, 4)"]),
    (lambda: algorithm.flash_backward(*[ONE] * 5, torch.zeros(1, 1, 2), 4, 1.5), TypeError, ["block_n", "integer"]),
    (lambda: flash_attention(ONE, ONE, ONE, is_causal=1), TypeError, ["is_causal", "1", "True or False"]),
    (lambda: flash_attention(ONE, ONE, ONE, causal=True), TypeError, ["causal=", "is_causal=", "(B, H, S, D)"]),
    (lambda: flash_attention(ONE, ONE, ONE, ONE), TypeError, ["takes q, k, v by", "attn_mask"]),
    (lambda: flash_attention(ONE, ONE, ONE, mask=ONE), TypeError, ["mask=", "attn_mask="]),
]


@pytest.mark.parametrize(("call", "error", "words"), BAD_INPUTS, ids=[f"{words[0]}-{i}" for i, (_, _, words) in enumerate(BAD_INPUTS)])
def test_bad_input(call, error, words):
    assert_refused(call, error, words)


LAUNCHERS = {
    "add": lambda: layout.add(X, X),
    "transpose_copy": lambda: layout.transpose_copy(X),
    "softmax": lambda: layout.softmax(X),
    "matmul": lambda: matmul.matmul(X, X.T),
    "scores_times_values": lambda: matmul.scores_times_values(X, X, X),
    "flash_attention": lambda: flash_attention(ONE, ONE, ONE),
    "flash_attention without queries": lambda: flash_attention(ONE[:, :, :0], ONE, ONE),
    "flash_decode": lambda: flash_decode(ONE, ONE, ONE, torch.ones(1, dtype=torch.int32)),
}


@pytest.mark.parametrize("launch", LAUNCHERS.values(), ids=LAUNCHERS)
def test_a_cpu_tensor_where_the_interpreter_is_off(launch, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(RuntimeError, match=r"is on cpu.*TRITON_INTERPRET=1"):
        launch()
