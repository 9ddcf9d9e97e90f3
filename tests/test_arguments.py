"""The argument checks: what they accept, and which error, with which words, they raise."""

import fractions

import numpy as np
import pytest
import torch

from fa_tutorial.arguments import (
    check_alike,
    check_as,
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
    number = check_int("n", value)
    assert number == 3 and type(number) is int


def test_the_minimum_itself_is_accepted():
    assert check_int("n", 1) == 1
    assert check_int("n", 0, 0) == 0
    assert check_int("n", 10**30, 16) == 10**30


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), torch.tensor(2.0), fractions.Fraction(2)])
def test_numbers_are_accepted(value):
    for check in (check_finite, check_positive):
        number = check("x", value)
        assert number == 2.0 and type(number) is float


def test_finite_numbers_may_be_negative():
    assert check_finite("x", -1.5) == -1.5
    assert check_finite("x", 0) == 0.0


def test_tensors_are_returned_as_they_are():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        x = torch.empty(2, 0, dtype=dtype)
        assert check_tensor("x", x) is x
    assert check_tensor("x", x.T, ndim=2, dtypes=[torch.float64]).shape == (0, 2)
    assert check_tensor("n", torch.tensor(1), ndim=0, dtypes=(torch.int64,)) == 1


def test_dtypes_may_be_an_iterator():
    check_tensor("x", torch.zeros(1), dtypes=iter([torch.float32]))


def test_tensors_of_one_kind_are_alike():
    check_alike(a=torch.zeros(2), b=torch.zeros(3, 4))
    check_alike(a=torch.zeros(2))


def check_like(model, **tensors):
    for name, tensor in tensors.items():
        check_as(name, tensor, model.shape, model.dtype, model.device)


def test_like_tensors_may_have_other_strides():
    check_like(torch.zeros(2, 3), o=torch.ones(3, 2).T, do=torch.zeros(1).expand(2, 3))


@pytest.mark.parametrize("value", [True, False, 1, 0, np.True_, np.False_], ids=str)
def test_flags_are_accepted(value):
    assert check_flag("is_causal", value) is bool(value)


@pytest.mark.parametrize("value", [0.125, -3e38, np.float32(2), torch.tensor(2.0)])
def test_scales_are_accepted(value):
    assert check_scale(value) == float(value)


def nested():
    return torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged)


BAD_INPUTS = [
    (lambda: check_int("B", 0), ValueError, ["B", "got 0", "at least 1"]),
    (lambda: check_int("B", -3, 0), ValueError, ["B", "got -3", "at least 0"]),
    (lambda: check_int("B", 2.0), TypeError, ["B", "2.0", "float", "integer"]),
    (lambda: check_int("B", "2"), TypeError, ["B", "'2'", "str", "integer"]),
    (lambda: check_int("B", None), TypeError, ["B", "None", "integer"]),
    (lambda: check_int("B", True), TypeError, ["B", "True", "integer"]),
    (lambda: check_int("B", torch.tensor(2.5)), TypeError, ["B", "2.5", "integer"]),
    (lambda: check_int("B", torch.tensor([1, 2])), TypeError, ["B", "[1, 2]", "integer"]),
    (lambda: check_finite("scale", float("nan")), ValueError, ["scale", "nan", "finite"]),
    (lambda: check_finite("scale", -float("inf")), ValueError, ["scale", "-inf", "finite"]),
    (lambda: check_flag("is_causal", "true"), TypeError, ["is_causal", "'true'", "str", "True or False"]),
    (lambda: check_flag("is_causal", 2), TypeError, ["is_causal", "2", "int", "True or False"]),
    (lambda: check_flag("is_causal", None), TypeError, ["is_causal", "NoneType", "True or False"]),
    (lambda: check_flag("is_causal", torch.tensor(True)), TypeError, ["is_causal", "Tensor", "True or False"]),
    (lambda: check_scale(-4e38), ValueError, ["scale", "finite in float32", "-4e+38"]),
    (lambda: check_scale(torch.ones((), requires_grad=True)), TypeError, ["scale", "gradient", "scale=1.0"]),
    (lambda: check_tensor("q", torch.zeros(1, dtype=torch.complex64).conj().imag), ValueError, ["q ", "opposite sign", "q.resolve_neg()"]),
    (lambda: check_finite("scale", 10**400), ValueError, ["scale", "finite"]),
    (lambda: check_finite("scale", "1"), TypeError, ["scale", "'1'", "str", "number"]),
    (lambda: check_finite("scale", None), TypeError, ["scale", "None", "number"]),
    (lambda: check_finite("scale", True), TypeError, ["scale", "True", "number"]),
    (lambda: check_finite("scale", 1j), TypeError, ["scale", "1j", "number"]),
    (lambda: check_finite("scale", torch.zeros(2)), TypeError, ["scale", "[0., 0.]", "number"]),
    (lambda: check_positive("bandwidth", 0), ValueError, ["bandwidth", "got 0", "greater than 0"]),
    (lambda: check_positive("bandwidth", -1.5), ValueError, ["bandwidth", "-1.5", "greater than 0"]),
    (lambda: check_positive("bandwidth", float("inf")), ValueError, ["bandwidth", "inf", "finite"]),
    (lambda: check_positive("bandwidth", "fast"), TypeError, ["bandwidth", "'fast'", "number"]),
    (lambda: check_tensor("q", np.zeros(2)), TypeError, ["q", "ndarray", "torch.Tensor"]),
    (lambda: check_tensor("q", torch.zeros(2, dtype=torch.int32)), TypeError, ["q", "int32", "float16, bfloat16, float32, float64"]),
    (lambda: check_tensor("q", torch.zeros(2, dtype=torch.complex64)), TypeError, ["q", "complex64", "float32"]),
    (lambda: check_tensor("q", torch.zeros(2), dtypes=[torch.float16]), TypeError, ["q", "float32", "allowed: float16"]),
    (lambda: check_tensor("q", torch.zeros(2).to_sparse()), TypeError, ["q", "sparse_coo", "dense"]),
    (lambda: check_tensor("q", nested()), TypeError, ["q", "dense"]),
    (lambda: check_tensor("q", torch.zeros(2, 3), ndim=4), ValueError, ["q", "4 dimensions", "(2, 3)"]),
    (lambda: check_tensor("q", torch.zeros(2, 3), ndim=1), ValueError, ["q", "1 dimension,", "(2, 3)"]),
    (lambda: check_alike(q=torch.zeros(1), k=torch.zeros(1).half()), TypeError, ["q: float32", "k: float16", "one dtype"]),
    (lambda: check_alike(q=torch.zeros(1), k=torch.zeros(1, device="meta")), ValueError, ["q: cpu", "k: meta", "one device"]),
    (lambda: check_like(torch.zeros(1), o=[0.0]), TypeError, ["o ", "list", "torch.Tensor"]),
    (lambda: check_like(torch.zeros(1), o=torch.zeros(1), do=torch.zeros(1).half()), TypeError, ["do ", "float16", "allowed: float32"]),
    (lambda: check_like(torch.zeros(2, 3), lse=torch.zeros(3, 2)), ValueError, ["lse ", "shape (2, 3)", "got (3, 2)"]),
    (lambda: check_like(torch.zeros(2), lse=torch.zeros(2, 1)), ValueError, ["lse ", "shape (2,)", "got (2, 1)"]),
    (lambda: check_like(torch.zeros(2), o=torch.zeros(2, device="meta")), ValueError, ["o ", "device cpu", "got meta"]),
    (lambda: check_like(torch.zeros(2), o=torch.zeros(2).to_sparse()), TypeError, ["o ", "dense", "sparse"]),
]


@pytest.mark.parametrize(("call", "error", "words"), BAD_INPUTS)
def test_bad_input(call, error, words):
    with pytest.raises(error) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value
