"""Triton's interpreter, hastened: it still replaces what a kernel calls, once a launch, and puts back what it replaced."""

import pytest
import torch

from fa_tutorial import hardware
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
