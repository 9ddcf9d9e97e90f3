"""flash_attention as an operator of PyTorch's: what torch.compile, torch.export, fake tensors and torch.vmap ask of one."""

import contextlib

import pytest
import torch
from attention_cases import Case
from buffers import DEVICE, ON_GPU, randn
from torch._subclasses.fake_tensor import FakeTensorMode

from fa_tutorial import attention, backward, flash_attention, forward, tuned

BACKENDS = ["aot_eager", *(["inductor"] if ON_GPU else [])]
SMALL = Case(20, 24, D=16, B=1, H_q=2, H_k=1, dtype=torch.float32)


def small_leaves(case: Case = SMALL) -> list[torch.Tensor]:
    return [x.requires_grad_() for x in case.data()]


@pytest.fixture
def launches_nothing(monkeypatch):
    for module in (forward, backward, tuned):
        for name in ("flash_forward", "flash_backward"):
            monkeypatch.setattr(module, name, None, raising=False)


def test_opcheck_of_forward():
    torch.library.opcheck(attention.FORWARD, (*small_leaves(), True, 0.25, "auto"))


@pytest.mark.parametrize("with_dlse", [False, True])
def test_opcheck_of_backward(with_dlse):
    q, k, v = SMALL.data()
    o, lse = attention.FORWARD(q, k, v, True, 0.3, "auto")
    dlse = torch.ones_like(lse) if with_dlse else None
    torch.library.opcheck(attention.BACKWARD, (torch.ones_like(o), dlse, q, k, v, o, lse, True, 0.3, "auto"))


def between(q, k, v):
    """Something before attention and something after it."""
    o, lse = flash_attention(2 * q, k, v, is_causal=True, return_lse=True)
    return o.sin() + lse.exp()[..., None]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_torch_compile_equals_eager(dynamic, backend):
    torch._dynamo.reset()
    compiled = torch.compile(between, fullgraph=True, dynamic=dynamic, backend=backend)
    for S_q, S_k in ((20, 24), (33, 17), (47, 47)):
        leaves = small_leaves(Case(S_q, S_k, D=16, B=1, H_q=2, H_k=1, dtype=torch.float32))
        got, want = compiled(*leaves), between(*leaves)
        torch.testing.assert_close(got, want, equal_nan=True)
        gradients = (torch.autograd.grad(x.sum(), leaves) for x in (got, want))
        torch.testing.assert_close(*gradients, equal_nan=True)
    if dynamic:
        counter = torch._dynamo.testing.CompileCounter()
        compiled = torch.compile(between, fullgraph=True, dynamic=True, backend=counter)
        for S in (20, 33, 47):
            compiled(*Case(S, S, D=16, B=1, dtype=torch.float32).data())
        assert counter.frame_count == 1


class Attention(torch.nn.Module):
    def forward(self, q, k, v):
        return flash_attention(q, k, v, is_causal=True)


def test_torch_export_with_a_dynamic_length():
    S_q, S_k = torch.export.Dim("S_q", min=2, max=512), torch.export.Dim("S_k", min=2, max=512)
    exported = torch.export.export(Attention(), SMALL.data(), dynamic_shapes=({2: S_q}, {2: S_k}, {2: S_k})).module()
    for S in (20, 37):
        q, k, v = Case(S, S + 5, D=16, B=1, H_q=2, H_k=1, dtype=torch.float32).data()
        assert torch.equal(exported(q, k, v), flash_attention(q, k, v, is_causal=True))


@pytest.mark.parametrize(("mode", "device"), [(FakeTensorMode(), DEVICE), (contextlib.nullcontext(), "meta")], ids=["fake", "meta"])
def test_fake_and_meta_tensors(mode, device, launches_nothing):
    with mode:
        shapes = (2, 4, 128, 64), (2, 2, 70, 64), (2, 2, 70, 64)
        q, k, v = (torch.empty(shape, device=device, dtype=torch.float16, requires_grad=True) for shape in shapes)
        o, lse = flash_attention(q, k, v, return_lse=True)
        assert (o.shape, o.dtype, o.device) == (q.shape, q.dtype, q.device) and o.is_contiguous()
        assert (lse.shape, lse.dtype) == (q.shape[:3], torch.float32)
        (o.sum() + lse.sum()).backward()
        assert all(x.grad.shape == x.shape and x.grad.dtype == x.dtype for x in (q, k, v))


@pytest.mark.parametrize("in_dims", [(0, 0, 0), (1, None, 0), (None, 2, None)], ids=str)
def test_vmap_equals_a_loop(in_dims):
    """And so do its gradients."""
    plain = SMALL.data()
    many = [x if dim is None else torch.stack([x, 2 * x, -x], dim) for x, dim in zip(plain, in_dims, strict=True)]

    def loop(*many):
        slices = [[x] * 3 if dim is None else x.unbind(dim) for x, dim in zip(many, in_dims, strict=True)]
        return torch.stack([flash_attention(*each, is_causal=True) for each in zip(*slices, strict=True)])

    def mapped(*many):
        return torch.vmap(lambda *qkv: flash_attention(*qkv, is_causal=True), in_dims)(*many)

    got, want = ([x.requires_grad_() for x in many] for _ in range(2))
    assert torch.equal(mapped(*got), loop(*want))
    do = randn(3, *plain[0].shape, seed=4)
    torch.testing.assert_close(torch.autograd.grad(mapped(*got), got, do), torch.autograd.grad(loop(*want), want, do))
