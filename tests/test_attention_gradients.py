"""flash_attention in autograd's graph: what is kept, who gets a gradient, lse's gradient, calls again. Accuracy: test_attention.py."""

import pytest
import torch
from attention_cases import Case, assert_gradients, causal, differentiate, same
from buffers import DEVICE, randn
from test_attention import every_kernel  # noqa: F401
from torch.utils.checkpoint import checkpoint

from fa_tutorial import flash_attention


def small_leaves(**more):
    """q, k, v that ask for gradients, and do."""
    case = Case(20, 40, **{"D": 24, "B": 1} | more)
    return [x.requires_grad_() for x in case.data()], case.output_gradients()[0]


@causal
def test_gradients_of_lse_alone(is_causal):
    q, k, v = Case(20, 45, D=24, B=1).inputs()
    dlse = torch.stack([randn(1, 2, 20, seed=5)] * 2, dim=-1)[..., 0]  # not contiguous
    got = differentiate(q, k, v, None, is_causal, dlse=dlse)
    assert_gradients(got, q, k, v, torch.zeros_like(q), is_causal, dlse=dlse)
    assert (got[2] == 0).all()
    leaves, do = small_leaves()
    want = torch.autograd.grad(flash_attention(*leaves, is_causal=is_causal), leaves, do)
    assert same(differentiate(*leaves, do, is_causal, dlse=torch.zeros(1, 2, 20, device=DEVICE)), want), "an lse that is not used"


def saved_by(call) -> list[torch.Tensor]:
    """What autograd keeps while `call` runs."""
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        call()
    return saved


def test_saved_are_q_k_v_o_and_lse_and_nothing_else():
    leaves, _ = small_leaves(H_q=4, H_k=2)
    outputs = []
    saved = saved_by(lambda: outputs.extend(flash_attention(*leaves, return_lse=True)))
    assert [x.data_ptr() for x in saved] == [x.data_ptr() for x in (*leaves, *outputs)]


def test_nothing_is_saved_where_nobody_asks_for_gradients():
    leaves, _ = small_leaves()
    outputs = []
    with torch.no_grad():
        assert not saved_by(lambda: outputs.extend(flash_attention(*leaves, return_lse=True)))
    assert not saved_by(lambda: outputs.extend(flash_attention(*(x.detach() for x in leaves), return_lse=True)))
    assert all(x.grad_fn is None and not x.requires_grad for x in outputs)


@pytest.mark.parametrize("which", range(3), ids="qkv")
def test_only_one_of_q_k_v_requires_grad(which):
    """The others' grads are None."""
    leaves, do = small_leaves()
    want = torch.autograd.grad(flash_attention(*leaves), leaves, do)[which]
    for i, x in enumerate(leaves):
        x.requires_grad_(i == which)
    flash_attention(*leaves).backward(do)
    assert [x.grad is not None for x in leaves] == [i == which for i in range(3)]
    assert same([leaves[which].grad], [want])


def test_backward_twice_with_retain_graph():
    leaves, do = small_leaves()
    o = flash_attention(*leaves, is_causal=True)
    first = torch.autograd.grad(o, leaves, do, retain_graph=True)
    assert same(torch.autograd.grad(o, leaves, do, retain_graph=True), first)
    o.backward(do)
    assert same([x.grad for x in leaves], first)
    with pytest.raises(RuntimeError, match="second time"):
        o.backward(do)


@pytest.mark.parametrize("do_asks", [True, False], ids=["do asks for a gradient", "do asks for none"])
@pytest.mark.parametrize("output", [0, 1], ids=["o", "lse"])
def test_a_second_derivative_is_refused(output, do_asks):
    """The first one is right all the same."""
    leaves, _ = small_leaves()
    result = flash_attention(*leaves, return_lse=True)[output]
    gradient = torch.ones_like(result)
    want = torch.autograd.grad(result, leaves, gradient, retain_graph=True)
    first = torch.autograd.grad(result, leaves, gradient.requires_grad_(do_asks), create_graph=True)
    assert same([x.detach() for x in first], want)
    with pytest.raises(RuntimeError, match="once differentiable"):
        first[0].sum().backward()


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing(use_reentrant):
    leaves, do = small_leaves()
    want = torch.autograd.grad(flash_attention(*leaves, is_causal=True), leaves, do)
    checkpoint(lambda *qkv: flash_attention(*qkv, is_causal=True), *leaves, use_reentrant=use_reentrant).backward(do)
    assert same([x.grad for x in leaves], want)
