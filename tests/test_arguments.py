"""The argument checks: what they accept, and what each public function of a chapter says to an argument that it cannot take.

flash_attention's arguments: test_attention.py.
"""

import fractions
import math

import numpy as np
import pytest
import torch

from fa_tutorial import algorithm, ledger, reference, softmax
from fa_tutorial.arguments import check_alike, check_finite, check_flag, check_int, check_positive, check_scale, check_tensor, dtype_name

pytest.importorskip("triton")
from buffers import assert_refused

from fa_tutorial import flash_attention, flash_attention_varlen, flash_decode, hardware, layout, matmul


def test_dtype_name_is_pytorchs():
    assert [dtype_name(dtype) for dtype in (torch.float16, torch.bfloat16, torch.int64)] == ["float16", "bfloat16", "int64"]


@pytest.mark.parametrize("value", [3, np.int64(3), torch.tensor(3)], ids=["int", "numpy", "tensor"])
def test_integers_are_accepted(value):
    number = check_int("n", value, 3)
    assert number == 3 and type(number) is int


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), torch.tensor(2.0), fractions.Fraction(2)])
def test_numbers_are_accepted(value):
    for number in (check_finite("x", value), check_positive("x", value), check_scale(value)):
        assert number == 2.0 and type(number) is float


def test_finite_numbers_and_scales_may_be_negative():
    assert check_finite("x", -1.5) == check_scale(-1.5) == -1.5 and check_finite("x", 0) == 0.0


def test_tensors_are_returned_as_they_are():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        x = torch.empty(2, 0, dtype=dtype)
        assert check_tensor("x", x) is x
    assert check_tensor("x", x.T, ndim=2, dtypes=iter([torch.float64])).shape == (0, 2)


def test_tensors_of_one_kind_are_alike():
    check_alike(a=torch.zeros(2), b=torch.zeros(3, 4))


@pytest.mark.parametrize("value", [True, False, np.True_, np.False_], ids=str)
def test_flags_are_accepted(value):
    assert check_flag("is_causal", value) is bool(value)


X, ROW, Q, ONE = torch.zeros(2, 3), torch.zeros(4), torch.zeros(1, 2, 3, 4), torch.zeros(1, 1, 2, 4)
BAD_INPUTS = [
    (lambda: check_int("B", 0), ValueError, ["B", "got 0", "at least 1"]),
    (lambda: check_int("B", -3, 0), ValueError, ["B", "got -3", "at least 0"]),
    (lambda: check_int("B", 2.0), TypeError, ["B", "2.0", "float", "integer"]),
    (lambda: check_int("B", "2"), TypeError, ["B", "'2'", "str", "integer"]),
    (lambda: check_int("B", True), TypeError, ["B", "True", "integer"]),
    (lambda: check_int("B", torch.tensor(2.5)), TypeError, ["B", "2.5", "integer"]),
    (lambda: check_int("B", torch.tensor([1, 2])), TypeError, ["B", "[1, 2]", "integer"]),
    (lambda: check_finite("scale", float("nan")), ValueError, ["scale", "nan", "finite"]),
    (lambda: check_finite("scale", 10**400), ValueError, ["scale", "finite"]),
    (lambda: check_finite("scale", "1"), TypeError, ["scale", "'1'", "str", "number"]),
    (lambda: check_finite("scale", True), TypeError, ["scale", "True", "number"]),
    (lambda: check_finite("scale", 1j), TypeError, ["scale", "1j", "number"]),
    (lambda: check_finite("scale", torch.zeros(2)), TypeError, ["scale", "[0., 0.]", "number"]),
    (lambda: check_positive("bandwidth", 0), ValueError, ["bandwidth", "got 0", "greater than 0"]),
    (lambda: check_positive("bandwidth", float("inf")), ValueError, ["bandwidth", "inf", "finite"]),
    (lambda: check_scale(-4e38), ValueError, ["scale", "finite in float32", "-4e+38"]),
    (lambda: check_scale(torch.ones((), requires_grad=True)), TypeError, ["scale", "gradient", "scale=1.0"]),
    (lambda: check_flag("is_causal", "true"), TypeError, ["is_causal", "'true'", "str", "True or False"]),
    (lambda: check_flag("is_causal", 1), TypeError, ["is_causal", "1", "int", "True or False"]),
    (lambda: check_flag("is_causal", torch.tensor(True)), TypeError, ["is_causal", "Tensor", "True or False"]),
    (lambda: check_tensor("q", np.zeros(2)), TypeError, ["q", "ndarray", "torch.Tensor"]),
    (lambda: check_tensor("q", X.int()), TypeError, ["q", "int32", "float16, bfloat16, float32, float64"]),
    (lambda: check_tensor("q", X, dtypes=[torch.float16]), TypeError, ["q", "float32", "allowed: float16"]),
    (lambda: check_tensor("q", X.to_sparse()), TypeError, ["q", "sparse_coo", "dense"]),
    (lambda: check_tensor("q", torch.nested.nested_tensor([X, X], layout=torch.jagged)), TypeError, ["q", "dense"]),
    (lambda: check_tensor("q", X, ndim=1), ValueError, ["q", "1 dimension,", "(2, 3)"]),
    (lambda: check_alike(q=X, k=X.half()), TypeError, ["q: float32", "k: float16", "one dtype"]),
    (lambda: check_alike(q=X, k=X.to("meta")), ValueError, ["q: cpu", "k: meta", "one device"]),
    (lambda: ledger.visible_pairs(-1, 2), ValueError, ["S_q", "-1", "at least 0"]),
    (lambda: ledger.attention_flops(1, "1", 1, 1, 1), TypeError, ["H", "'1'", "integer"]),
    (lambda: ledger.backward_flops(1, 1, 1, 1, 1, matmuls=0), ValueError, ["matmuls", "got 0", "at least 1"]),
    (lambda: ledger.score_bytes(1, 1, 1, 1, 0), ValueError, ["itemsize", "got 0", "at least 1"]),
    (lambda: ledger.naive_hbm_bytes(1, 1, 1, 1, 1, 0.5), TypeError, ["itemsize", "0.5", "integer"]),
    (lambda: ledger.flash_hbm_bytes(1, 1, 1, 0, 2), ValueError, ["block_m", "got 0", "at least 1"]),
    (lambda: ledger.attainable_flops(0, 1, 1), ValueError, ["intensity", "got 0", "greater than 0"]),
    (lambda: ledger.attainable_flops(1, 1, math.inf), ValueError, ["bandwidth", "inf", "finite"]),
    (lambda: softmax.safe_softmax([1.0]), TypeError, ["x", "list", "torch.Tensor"]),
    (lambda: softmax.safe_softmax(torch.zeros(3, 0)), ValueError, ["x", "(3, 0)", "at least one element"]),
    (lambda: softmax.online_normalizer(torch.zeros(2, 2)), ValueError, ["x", "(2, 2)", "1 dimension"]),
    (lambda: softmax.online_softmax(ROW.half(), 2), TypeError, ["x", "float16", "float32, float64"]),
    (lambda: softmax.online_softmax(ROW, 0), ValueError, ["block", "got 0", "at least 1"]),
    (lambda: softmax.running_weighted_sum([(ROW, torch.zeros(3, 2))], 2), ValueError, ["D = 2", "4 scores", "(3, 2)"]),
    (lambda: softmax.running_weighted_sum([(ROW, torch.zeros(4, 2))], 3), ValueError, ["D = 3", "(4, 2)"]),
    (lambda: softmax.running_weighted_sum([(ROW[:0], torch.zeros(0, 2))], 2), ValueError, ["at least one element"]),
    (lambda: softmax.running_weighted_sum([(ROW, torch.zeros(4, 2).double())], 2), TypeError, ["float64"]),
    (lambda: softmax.running_weighted_sum([], -1), ValueError, ["D", "-1", "at least 1"]),
    (lambda: layout.contiguous_strides((2, -1)), ValueError, ["size", "-1", "at least 0"]),
    (lambda: layout.flat_offset((1, 2), (3,)), ValueError, ["2", "1", "one length"]),
    (lambda: layout.add(X, X.half()), TypeError, ["x: float32", "y: float16"]),
    (lambda: layout.add(X, X[0]), ValueError, ["(2, 3)", "(3,)", "one shape"]),
    (lambda: layout.transpose_copy(X[None]), ValueError, ["x", "2 dimensions", "(1, 2, 3)"]),
    (lambda: layout.transpose_copy(X, block_r=24), ValueError, ["block_r", "24", "power of two"]),
    (lambda: layout.transpose_copy(torch.zeros(1, 65_536, device=hardware.device()), block_c=1), ValueError, ["65536", "65535"]),
    (lambda: layout.softmax(torch.zeros(1, 65_537, device=hardware.device())), ValueError, ["65537", "1 to 65536"]),
    (lambda: matmul.matmul(X, X), ValueError, ["(2, 3) and (2, 3)", "must match"]),
    (lambda: matmul.matmul(X, X.half().T), TypeError, ["a: float32", "b: float16"]),
    (lambda: matmul.MatmulConfig(8, 16, 16, 4, 1), ValueError, ["block_m", "8", "at least 16"]),
    (lambda: matmul.blocked_matmul(X, X.T, 0, 1, 1), ValueError, ["block_m", "0", "at least 1"]),
    (lambda: matmul.scores_times_values(X, torch.zeros(3, 3), X), ValueError, ["(3, 3)", "(2, 3)", "one shape"]),
    (lambda: matmul.scores_times_values(*[torch.zeros(2, 129)] * 3), ValueError, ["D", "129", "1 to 128"]),
    (lambda: matmul.strips_per_wave(1, 1, 1, True), TypeError, ["wave", "True", "integer"]),
    (lambda: reference.causal_mask(1, 2.0), TypeError, ["S_k", "2.0", "integer"]),
    (lambda: reference.attention(Q, Q.long(), Q), TypeError, ["k", "int64", "float32"]),
    (lambda: reference.naive_attention(Q, torch.zeros(1, 2, 5, 4), Q), ValueError, ["(1, 2, 5, 4)", "(1, 2, 3, 4)", "one shape"]),
    (lambda: algorithm.flash_forward(ONE, ONE.half(), ONE.half(), 1, 1), TypeError, ["q: float32", "k: float16"]),
    (lambda: algorithm.flash_forward(ONE, ONE, ONE, 0, 1), ValueError, ["block_m", "at least 1", "0"]),
    (lambda: algorithm.flash_forward_fa1(ONE, ONE, ONE, 1, -1), ValueError, ["block_n", "at least 1", "-1"]),
    (lambda: algorithm.causal_tiles(2, 4, 4, 8, 8), ValueError, ["row_block", "below 2", "got 2"]),
    (lambda: algorithm.causal_rows(0, 4, 4, 8, 0), ValueError, ["key_block", "below 0", "got 0"]),
    (lambda: algorithm.recompute_p(ONE, ONE, torch.zeros(1, 1, 2), math.inf), ValueError, ["scale", "inf"]),
    (lambda: algorithm.attention_backward(*[torch.zeros(1, 2, 4)] * 5, torch.zeros(1, 2)), ValueError, ["(B, H, S, D)", "(1, 2, 4)"]),
    (lambda: algorithm.flash_backward(*[ONE] * 5, torch.zeros(1, 1, 2), 4, 1.5), TypeError, ["block_n", "integer"]),
    (lambda: flash_attention(ONE, ONE, ONE, is_causal=1), TypeError, ["is_causal", "1", "True or False"]),
    (lambda: flash_attention(ONE, ONE, ONE, causal=True), TypeError, ["causal=", "is_causal=", "(B, H, S, D)"]),
    (lambda: flash_attention(ONE, ONE, ONE, soft_cap=1.0), TypeError, ["unexpected keyword", "soft_cap"]),
    (lambda: flash_attention_varlen(ONE, ONE, ONE, softmax_scale=1.0), TypeError, ["flash_attention_varlen", "is scale="]),
    (lambda: flash_attention(ONE, ONE, ONE, ONE), TypeError, ["takes q, k, v by", "attn_mask"]),
    (lambda: flash_attention(ONE, ONE, ONE, mask=ONE), TypeError, ["mask=", "attn_mask="]),
    (
        lambda: flash_attention_varlen(*[ONE[0]] * 3, *[torch.tensor([0, 1], dtype=torch.int32)] * 2, is_causal=0),
        TypeError,
        ["is_causal", "0"],
    ),
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
