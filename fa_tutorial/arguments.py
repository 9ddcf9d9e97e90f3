"""Argument checks that the chapters share: each names the value, what is allowed, and raises."""

import math
import operator
from collections.abc import Iterable

import torch

FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
FLOAT_DTYPES_AND_64 = (*FLOAT_DTYPES, torch.float64)


def check_name(what: str, name: str, allowed: Iterable[str]) -> str:
    """Return `name` if it is one of `allowed`; ValueError that lists them otherwise."""
    allowed = tuple(allowed)
    if name not in allowed:
        raise ValueError(f"{what} must be one of {', '.join(map(repr, allowed))}, got {name!r}")
    return name


def dtype_name(dtype: torch.dtype) -> str:
    """PyTorch's name of a dtype without its module: "float16"."""
    return str(dtype).removeprefix("torch.")


def check_flag(name: str, value) -> bool:
    """Return `value` as a bool, Python's or NumPy's; TypeError otherwise, because a text, a number or a mask would
    count as True."""
    import numpy as np  # here, so that doctor runs where it is missing

    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise TypeError(f"{name} must be True or False, got a {type(value).__name__}: {value!r}")


def check_int(name: str, value, minimum: int = 1) -> int:
    """Return `value` as an int of at least `minimum`; TypeError or ValueError otherwise."""
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r} of type {type(value).__name__}") from None
    if number < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {number}")
    return number


def check_finite(name: str, value) -> float:
    """Return `value` as a finite float; TypeError for what is no number, ValueError for NaN and infinities."""
    if isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {value!r}")
    try:
        finite = math.isfinite(value)
    except OverflowError:
        raise ValueError(f"{name} must be finite, got an integer that no float holds") from None
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name} must be a number, got {value!r} of type {type(value).__name__}") from None
    if not finite:
        raise ValueError(f"{name} must be finite, got {value!r}")
    return float(value)


def check_positive(name: str, value) -> float:
    """Return `value` as a float that is finite and above zero; TypeError or ValueError otherwise."""
    number = check_finite(name, value)
    if number <= 0:
        raise ValueError(f"{name} must be finite and greater than 0, got {value!r}")
    return number


def check_tensor(
    name: str, value, *, ndim: int | None = None, dtypes: Iterable[torch.dtype] = FLOAT_DTYPES_AND_64
) -> torch.Tensor:
    """Return `value` if it is a dense tensor of an allowed dtype (and rank); TypeError or ValueError otherwise."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if value.layout != torch.strided or value.is_nested:
        raise TypeError(f"{name} must be a dense (strided) tensor, got layout {value.layout}")
    allowed = tuple(dtypes)
    if value.dtype not in allowed:
        names = ", ".join(map(dtype_name, allowed))
        raise TypeError(f"{name} has dtype {dtype_name(value.dtype)}; allowed: {names}")
    if ndim is not None and value.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} dimension{'s' * (ndim != 1)}, got shape {tuple(value.shape)}")
    return value


def check_alike(**tensors: torch.Tensor) -> None:
    """Raise unless all tensors share a dtype (TypeError) and a device (ValueError)."""
    if len({tensor.dtype for tensor in tensors.values()}) > 1:
        dtypes = ", ".join(f"{name}: {dtype_name(tensor.dtype)}" for name, tensor in tensors.items())
        raise TypeError(f"{', '.join(tensors)} must have one dtype, got {dtypes}")
    check_devices(**tensors)


def check_devices(**tensors: torch.Tensor) -> None:
    """Raise ValueError unless all tensors are on one device."""
    if len({tensor.device for tensor in tensors.values()}) > 1:
        devices = ", ".join(f"{name}: {tensor.device}" for name, tensor in tensors.items())
        raise ValueError(f"{', '.join(tensors)} must be on one device, got {devices}")


def check_attention(
    q, k, v, scale: float | None = None, *, dtypes: Iterable[torch.dtype] = FLOAT_DTYPES, max_d: int | None = None
) -> float:
    """Check attention's arguments, and return the scale: `scale`, or 1/√D where it is None. q: (B, H_q, S_q, D); k, v:
    (B, H_k, S_k, D), H_q a multiple of H_k, one dtype of `dtypes`, one device, 1 ≤ D ≤ max_d. TypeError for what is no
    such tensor or number, ValueError for shapes, devices, D and a scale that is not finite."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        check_tensor(name, tensor, dtypes=dtypes)
        if tensor.ndim != 4:
            got = f"{tensor.ndim} dimensions, shape {tuple(tensor.shape)}"
            raise ValueError(f"{name}: expected (B, H, S, D), got {got}")
    check_alike(q=q, k=k, v=v)
    if k.shape != v.shape:
        raise ValueError(f"k and v must have one shape, got k {tuple(k.shape)} and v {tuple(v.shape)}")
    (B, H_q, _, D), H_k = q.shape, k.shape[1]
    if k.shape[0] != B or k.shape[3] != D:
        got = f"q {tuple(q.shape)} and k {tuple(k.shape)}"
        raise ValueError(f"q and k must agree in batch and head dimension, got {got}")
    if H_q % H_k if H_k else H_q:
        raise ValueError(f"query heads must be a multiple of key heads, got {H_q} query heads and {H_k} key heads")
    if D < 1 or (max_d is not None and max_d < D):
        raise ValueError(f"head dimension D must be {f'1 to {max_d}' if max_d else 'at least 1'}, got {D}")
    return 1 / math.sqrt(D) if scale is None else check_scale(scale)


def check_scale(scale) -> float:
    """As check_finite, in the kernels' float32; TypeError for a tensor that asks for a gradient it would not get."""
    if isinstance(scale, torch.Tensor) and scale.requires_grad:
        instead = "to learn it, multiply q by it and pass scale=1.0"
        raise TypeError(f"scale is a number without a gradient, got a tensor that requires one; {instead}")
    number = check_finite("scale", scale)
    if abs(number) > torch.finfo(torch.float32).max:
        raise ValueError(f"scale must be finite in float32, got {scale!r}")
    return number
