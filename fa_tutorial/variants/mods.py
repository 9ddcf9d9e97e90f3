"""Chapter 10's mods: small jitted functions that change a score or hide a pair, and that the variants' kernels call for
every pair they compute.

A score mod `(s, b, h, i, j, aux)` returns what takes the place of the scaled score s of query i and key j, in batch
entry b and query head h. Where its derivative by s is not 1, a second function of the same arguments gives the
derivative. A mask mod `(b, h, i, j, aux)` says whether i may see j. s is a tile, b and h are numbers, i and j are int32
tiles that broadcast to s's shape, always inside the sequences. aux is the tuple that the caller gave: tensors, which
must be contiguous, arrive as pointers, numbers as numbers, and None can be asked for while compiling.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fa_tutorial.hardware import require_triton
from fa_tutorial.tuned.forward import LOG2_E

triton = require_triton("Chapter 10 (fa_tutorial.variants)")
import triton.language as tl  # noqa: E402


class Aux(NamedTuple):
    """What the ready mods read. A field is None where its variant is not asked for, and costs nothing then.

    offset: S_k − S_q, so that i + offset is the key on query i's diagonal (bottom-right). Packed rows have three int32
    tensors (S_q,) instead: diagonal, that key's number, and the first and the end key of query i's own sequence; and
    cu_q, cu_k, sequences, from which these are made. left, right: how many keys before and after the diagonal are seen.
    slopes: float32 pointer, one a query head, slope_stride apart from one batch entry to the next. attn_mask:
    pointer to (B, H_q, S_q, S_k), uint8 (1: seen) or float (added), with its four strides, each a field: Triton 3.6
    loses the numbers of a tuple that stands beside None. mask_i is None where every query has the same mask.
    """

    offset: Any = None
    diagonal: Any = None
    first: Any = None
    end: Any = None
    cu_q: Any = None
    cu_k: Any = None
    sequences: Any = None
    left: Any = None
    right: Any = None
    softcap: Any = None
    slopes: Any = None
    slope_stride: Any = None
    attn_mask: Any = None
    mask_b: Any = None
    mask_h: Any = None
    mask_i: Any = None
    mask_j: Any = None


@triton.jit
def on_diagonal(i, aux):
    """The number of the key that stands on query i's diagonal."""
    if aux.diagonal is not None:
        key = tl.load(aux.diagonal + i)
    else:
        key = i + aux.offset
    return key


# ---------------------------------------------------------------- masks


@triton.jit
def sliding_window(b, h, i, j, aux):
    """From `left` keys before the diagonal to `right` keys after it. right = 0 is the causal mask."""
    distance = j - on_diagonal(i, aux)
    seen = distance == distance
    if aux.left is not None:
        seen = seen & (distance >= -aux.left)
    if aux.right is not None:
        seen = seen & (distance <= aux.right)
    return seen


@triton.jit
def mask_pointers(b, h, i, j, aux):
    """Where attn_mask has its entries for a tile of pairs; of a mask that is the same for every query, of j's shape."""
    at = tl.cast(b, tl.int64) * aux.mask_b + tl.cast(h, tl.int64) * aux.mask_h + j.to(tl.int64) * aux.mask_j
    if aux.mask_i is not None:
        at = at + i.to(tl.int64) * aux.mask_i
    return aux.attn_mask + at


@triton.jit
def allowed_in_window(b, h, i, j, aux):
    """attn_mask of booleans, and the window."""
    return sliding_window(b, h, i, j, aux) & (tl.load(mask_pointers(b, h, i, j, aux)) != 0)


@triton.jit
def same_sequence(b, h, i, j, aux):
    """Packed rows: the keys of query i's own sequence."""
    return (j >= tl.load(aux.first + i)) & (j < tl.load(aux.end + i))


@triton.jit
def packed_window(b, h, i, j, aux):
    return same_sequence(b, h, i, j, aux) & sliding_window(b, h, i, j, aux)


@triton.jit
def prefix_lm(b, h, i, j, aux):
    """Every query sees the prefix, the rest is causal. aux: (prefix lengths (B,) int32, S_k − S_q)."""
    return (j < tl.load(aux[0] + b)) | (j <= i + aux[1])


@triton.jit
def document_mask(b, h, i, j, aux):
    """Query and key are of one document. aux: (documents of the queries (S_q,) int32,
    of the keys (S_k,) int32)."""
    return tl.load(aux[0] + i) == tl.load(aux[1] + j)


@triton.jit
def causal_documents(b, h, i, j, aux):
    """Query i sees its own document, up to itself. aux: (the first key of each query's document (S_q,) int32,).

    For documents laid end to end, and as many keys as queries. Each query brings its number, so the forward loads it
    once. document_mask's numbers of the keys differ from tile to tile: they are loaded ahead into shared memory, and
    at D = 128 a second program doesn't fit on a Hopper SM.
    """
    return (j >= tl.load(aux[0] + i)) & (j <= i)


# ---------------------------------------------------------------- scores


@triton.jit
def tanh(x):
    """Relative error below 1e-6. Near 0 a series, because 2 / (1 + exp(−2x)) − 1 cancels there."""
    x2 = x * x
    series = x * (1 + x2 * (-1 / 3 + x2 * (2 / 15 - 17 / 315 * x2)))
    return tl.where(tl.abs(x) < 0.2, series, 2 / (1 + tl.exp2(x * (-2 * LOG2_E))) - 1)


@triton.jit
def soft_cap(s, b, h, i, j, aux):
    """softcap · tanh(s / softcap): no score leaves ±softcap (Gemma 2). aux: Aux(softcap=…)."""
    return aux.softcap * tanh(s * (1 / aux.softcap))


@triton.jit
def soft_cap_grad(s, b, h, i, j, aux):
    t = tanh(s * (1 / aux.softcap))
    return 1 - t * t


@triton.jit
def alibi(s, b, h, i, j, aux):
    """A penalty that grows with the distance from the diagonal (Press et al., 2022)."""
    slope = tl.load(aux.slopes + b * aux.slope_stride + h)
    return s - slope * tl.abs(j - on_diagonal(i, aux))


@triton.jit
def add_mask(s, b, h, i, j, aux):
    """attn_mask of numbers: one is added to each score; −inf hides the pair."""
    return s + tl.load(mask_pointers(b, h, i, j, aux)).to(tl.float32)


@triton.jit
def all_scores(s, b, h, i, j, aux):
    """Those of soft_cap, alibi and add_mask that aux asks for, in this order. Its derivative is soft_cap_grad, or 1."""
    if aux.softcap is not None:
        s = soft_cap(s, b, h, i, j, aux)
    if aux.slopes is not None:
        s = alibi(s, b, h, i, j, aux)
    if aux.attn_mask is not None:  # noqa: SIM102, where it is None it has no dtype
        if aux.attn_mask.dtype.element_ty != tl.uint8:  # booleans hide pairs by the mask mod
            s = add_mask(s, b, h, i, j, aux)
    return s


@triton.jit
def unchanged(s, b, h, i, j, aux):
    return s


class Mods(NamedTuple):
    """What makes a variant, as one argument of a kernel: three functions, the scale that comes before score, Dropout.

    Each but scale may be None. aux isn't in it: inside another tuple, Triton 3.6 loses the numbers behind a None.
    """

    score: Any = None
    grad: Any = None
    mask: Any = None
    scale: Any = 1.0
    drop: Any = None


class Dropout(NamedTuple):
    """rng: (2,) int64, seed and offset; threshold: a pair is kept where its random word, a uint32, isn't below it;
    rescale: 1 / (1 − p)."""

    rng: Any
    threshold: Any
    rescale: Any
    H_q: Any
