"""Triton's interpreter, hastened: it still replaces what a kernel calls, once a launch, and puts back what it replaced."""

import numpy as np
import pytest
import torch

from fa_tutorial import hardware, interpreter
from fa_tutorial.matmul import matmul, tl

pytestmark = pytest.mark.skipif(not hardware.interpreter_on(), reason="no interpreter runs here")


def test_functions_are_replaced_once_a_launch_and_put_back(monkeypatch):
    from triton.runtime import interpreter as tritons

    replace, modules = tritons._patch_lang, []
    monkeypatch.setattr(tritons, "_patch_lang", lambda function: modules.append(id(function.__globals__)) or replace(function))
    load, counted = tl.load, tritons._patch_lang
    matmul(torch.ones(40, 40), torch.ones(40, 40))
    assert len(modules) == len(set(modules)) > 0
    assert tl.load is load and tritons._patch_lang is counted


def test_a_second_call_changes_nothing():
    from triton.runtime import interpreter as tritons

    launch = tritons.GridExecutor.__call__
    interpreter.hasten()
    assert tritons.GridExecutor.__call__ is launch


def test_a_type_that_is_known_is_tritons():
    """And what Triton refuses, it refuses beside one that is known, too."""
    one, two = (tl.block_type(tl.float32, shape) for shape in ([4, 8], tl.core.tuple([tl.constexpr(4), 8])))
    assert one == two and str(one) == str(two) and (*two.shape, two.numel) == (4, 8, 32)
    others = [tl.block_type(element, shape) for element, shape in ((tl.int32, [4, 8]), (tl.float32, [8, 4]))]
    assert one not in others and len({str(one), *map(str, others)}) == 3
    assert tl.block_type(tl.pointer_type(tl.int32, 3), [4]).element_ty != tl.block_type(tl.pointer_type(tl.int32), [4]).element_ty
    tensor = tl.tensor(None, tl.block_type(tl.pointer_type(tl.float32), [4, 8]))
    assert [size.value for size in tensor.shape] == [4, 8] and tensor.numel.value == 32
    assert tensor.dtype == tl.pointer_type(tl.float32) and not len(tl.tensor(None, tl.int32).shape)
    for shape, error in (([4, np.int64(8)], AttributeError), ([4, 8.0], TypeError), ([4, 6], ValueError), ([], TypeError)):
        with pytest.raises(error):
            tl.block_type(tl.float32, shape)
