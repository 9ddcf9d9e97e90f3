"""The attentions that are compared: PyTorch's, flash-attn's, the course's, each a function (q, k, v, is_causal) -> o
that autograd differentiates.

q, o: (B, H_q, S_q, D); k, v: (B, H_k, S_k, D), H_q a multiple of H_k; causal is bottom-right aligned.
"""

import functools
import importlib
from collections.abc import Callable

import torch
from torch.nn.attention import SDPBackend

from fa_tutorial import reference
from fa_tutorial.arguments import check_name
from fa_tutorial.attention import best, flash_attention
from fa_tutorial.hardware import require_triton

require_triton("Measuring (fa_tutorial.bench.peers)")

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], torch.Tensor]

NOT_INSTALLED = "not installed"


class Unsupported(Exception):
    """The provider has no kernel for this input; the message is the row's reason."""


def sdpa(backend: SDPBackend) -> Attention:
    """PyTorch's scaled_dot_product_attention by one backend, and by no other in its place."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool = False) -> torch.Tensor:
        if is_causal and q.shape[2] != k.shape[2]:
            raise Unsupported("SDPA's is_causal is aligned top left: S_q must be S_k")
        try:
            with torch.nn.attention.sdpa_kernel(backend):
                options = {"is_causal": is_causal, "enable_gqa": q.shape[1] != k.shape[1]}
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)
        except RuntimeError as error:
            if "No available kernel" in str(error) or "No viable backend" in str(error):
                raise Unsupported(f"SDPA's {backend.name.lower()} has no kernel for this input") from error
            raise

    return attention


def flex(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool = False) -> torch.Tensor:
    """FlexAttention, compiled; causal as a block mask, so that tiles beyond the diagonal are skipped."""
    attend = _compiled_flex(tuple(q.shape), tuple(k.shape), q.dtype, q.device, is_causal, q.requires_grad)
    mask = _causal_block_mask(q.shape[2], k.shape[2], q.device) if is_causal else None
    return attend(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])


@functools.lru_cache(maxsize=1)
def _compiled_flex(*kind) -> Callable:
    """flex_attention compiled for one kind of input. Each kind starts afresh: past Dynamo's recompile limit it would
    run uncompiled, in silence."""
    from torch._functorch import config
    from torch.nn.attention.flex_attention import flex_attention

    # else the backward overwrites what a second one on the same graph needs, and refuses retain_graph
    config.donated_buffer = False
    torch.compiler.reset()
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


@functools.lru_cache(maxsize=4)
def _causal_block_mask(S_q: int, S_k: int, device: torch.device):
    from torch.nn.attention.flex_attention import create_block_mask

    def seen(b, h, query, key):
        return key <= query + (S_k - S_q)

    return create_block_mask(seen, None, None, S_q, S_k, device=device)


def flash_attn(module: str) -> Attention:
    """flash_attn_func of an installed `module`. Its layout is (B, S, H, D): views go in and a view comes out."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool = False) -> torch.Tensor:
        try:
            function = importlib.import_module(module).flash_attn_func
        except (ImportError, AttributeError) as error:  # flash-attn 4 alone leaves flash_attn empty
            raise Unsupported(NOT_INSTALLED) from error
        if q.dtype == torch.float32:
            raise Unsupported("flash-attn takes fp16 and bf16")
        o = function(*(x.transpose(1, 2) for x in (q, k, v)), causal=is_causal)
        return (o[0] if isinstance(o, tuple) else o).transpose(1, 2)  # flash-attn 4 returns lse too

    return attention


def course(kernel: str) -> Attention:
    """flash_attention with one of its kernels."""

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, is_causal: bool = False) -> torch.Tensor:
        if kernel == "hopper" and best(q) != "hopper":
            raise Unsupported("chapter 9's kernel is for GPUs of compute capability 9.0")
        return flash_attention(q, k, v, is_causal=is_causal, kernel=kernel)

    return attention


PROVIDERS: dict[str, Attention] = {
    "naive": reference.naive_attention,
    "sdpa_flash": sdpa(SDPBackend.FLASH_ATTENTION),
    "sdpa_cudnn": sdpa(SDPBackend.CUDNN_ATTENTION),
    "sdpa_efficient": sdpa(SDPBackend.EFFICIENT_ATTENTION),
    "flex": flex,
    "flash_attn": flash_attn("flash_attn"),
    "flash_attn_4": flash_attn("flash_attn.cute"),
    **{kernel: course(kernel) for kernel in ("basic", "tuned", "hopper")},
}


def provider(name: str) -> Attention:
    """One of PROVIDERS; ValueError that lists them for another name."""
    return PROVIDERS[check_name("provider", name, PROVIDERS)]
