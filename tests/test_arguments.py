"""The argument checks: what they accept, and which error, with which words, they raise."""

import fractions

import numpy as np
import pytest
import torch

from fa_tutorial.arguments import (
    check_alike,
    check_finite,
    check_flag,
    check_int,
    check_positive,
    check_scale,
    check_tensor,
    dtype_name,
)


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


@pytest.mark.parametrize("value", [True, False, 1, 0, np.True_, np.False_], ids=str)
def test_flags_are_accepted(value):
    assert check_flag("is_causal", value) is bool(value)


X = torch.zeros(2, 3)
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
    (lambda: check_flag("is_causal", 2), TypeError, ["is_causal", "2", "int", "True or False"]),
    (lambda: check_flag("is_causal", torch.tensor(True)), TypeError, ["is_causal", "Tensor", "True or False"]),
    (lambda: check_tensor("q", np.zeros(2)), TypeError, ["q", "ndarray", "torch.Tensor"]),
    (lambda: check_tensor("q", X.int()), TypeError, ["q", "int32", "float16, bfloat16, float32, float64"]),
    (lambda: check_tensor("q", X, dtypes=[torch.float16]), TypeError, ["q", "float32", "allowed: float16"]),
    (lambda: check_tensor("q", X.to_sparse()), TypeError, ["q", "sparse_coo", "dense"]),
    (lambda: check_tensor("q", torch.nested.nested_tensor([X, X], layout=torch.jagged)), TypeError, ["q", "dense"]),
    (lambda: check_tensor("q", X, ndim=1), ValueError, ["q", "1 dimension,", "(2, 3)"]),
    (lambda: check_alike(q=X, k=X.half()), TypeError, ["q: float32", "k: float16", "one dtype"]),
    (lambda: check_alike(q=X, k=X.to("meta")), ValueError, ["q: cpu", "k: meta", "one device"]),
]


@pytest.mark.parametrize(("call", "error", "words"), BAD_INPUTS)
def test_bad_input(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value
