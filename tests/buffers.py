"""What the kernel tests share: inputs in every layout inside NaN, outputs inside guard cells, and the bound on the error."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch

from fa_tutorial import hardware, reference
from fa_tutorial.arguments import FLOAT_DTYPES, dtype_name
from fa_tutorial.layout import contiguous_strides

DEVICE = hardware.device()
ON_GPU = DEVICE.type == "cuda"
DTYPES = FLOAT_DTYPES
SIZES = (1, 15, 16, 17)  # around the smallest side that tl.dot takes
GUARD = 4096  # elements before and after a buffer: a multiple of every alignment, and more than a small tile runs over by
SENTINEL = 12_288.0  # exact in fp16, bf16 and fp32
FP8_SENTINEL = 96.0

dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
needs_gpu = pytest.mark.skipif(not ON_GPU, reason="streams exist on a GPU only")
needs_two_gpus = pytest.mark.skipif(not ON_GPU or torch.cuda.device_count() < 2, reason="needs two GPUs")


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Standard normal numbers, the same on every machine: drawn on the CPU, then moved."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(DEVICE)


class Named:
    """What a dataclass of test cases inherits: its name in a test's id is the fields that are not the defaults."""

    def __str__(self) -> str:
        fields = [(field.name, getattr(self, field.name), field.default) for field in dataclasses.fields(self)]
        return ", ".join(f"{name} {value}" for name, value, default in fields if value != default)


def assert_refused(call: Callable, error: type[Exception], words: Sequence[str]) -> None:
    """call() raises this error, and its message holds all of the words."""
    with pytest.raises(error) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value


# ---------------------------------------------------------------- layouts

# Name -> element strides and storage offset of a (rows, cols) tensor.
LAYOUTS: dict[str, Callable[[int, int], tuple[tuple[int, int], int]]] = {
    "contiguous": lambda rows, cols: ((cols, 1), 0),
    "transposed": lambda rows, cols: ((1, rows), 0),
    "every second row": lambda rows, cols: ((2 * cols, 1), 0),
    "every third column": lambda rows, cols: ((3 * cols, 3), 0),
    "padded rows": lambda rows, cols: ((cols + 1, 1), 0),
    "offset of one element": lambda rows, cols: ((cols, 1), 1),
    "one row repeated": lambda rows, cols: ((0, 1), 0),
    "one column repeated": lambda rows, cols: ((1, 0), 0),
}


def in_nan(data: torch.Tensor, strides: Sequence[int], offset: int = 0) -> torch.Tensor:
    """`data` with these strides, in memory whose every other element is NaN. Along a stride of 0 the first entry of `data` repeats."""
    extent = offset + 1 + sum((size - 1) * stride for size, stride in zip(data.shape, strides, strict=True))
    memory = torch.full((GUARD + max(extent, 1) + GUARD,), float("nan"), dtype=data.dtype, device=data.device)
    distinct = data[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)]
    memory.as_strided(distinct.shape, strides, GUARD + offset).copy_(distinct)
    return memory.as_strided(data.shape, strides, GUARD + offset)


def laid_out(data: torch.Tensor, layout: str) -> torch.Tensor:
    """The 2-D `data` in one of LAYOUTS, inside NaN."""
    strides, offset = LAYOUTS[layout](*data.shape)
    return in_nan(data, strides, offset)


# ---------------------------------------------------------------- what a kernel may not change


def same_bits(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Where two tensors hold the same bits: NaN equals itself, −0 is not 0."""
    integers = {2: torch.int16, 4: torch.int32}[a.element_size()]
    return a.view(integers) == b.view(integers)


@contextlib.contextmanager
def unchanged(*tensors: torch.Tensor) -> Iterator[None]:
    """Assert that the storages of `tensors`, surroundings included, hold the same bytes after the block."""
    storages = [torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage()) for tensor in tensors]
    before = [storage.clone() for storage in storages]
    yield
    for storage, bytes_before in zip(storages, before, strict=True):
        assert torch.equal(storage, bytes_before), "an input changed"


@contextlib.contextmanager
def guarded_outputs() -> Iterator[None]:
    """Inside the block what torch.empty, empty_like and empty_strided give is NaN between guard cells, or the largest integer;
    AssertionError where these changed."""
    made, empty = [], torch.empty

    def guarded(shape, strides, *, dtype, device):
        extent = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) if math.prod(shape) else 0
        sentinel = FP8_SENTINEL if dtype == torch.float8_e4m3fn else SENTINEL
        memory = torch.full((GUARD + extent + GUARD,), sentinel, device=device).to(dtype)
        tensor = empty(0, dtype=dtype, device=device).set_(memory.untyped_storage(), GUARD, shape, strides)
        made.append((memory, tensor, sentinel))
        return tensor.fill_(float("nan") if dtype.is_floating_point else torch.iinfo(dtype).max)

    def contiguous(shape, *, dtype, device, **options):
        return guarded(shape, contiguous_strides(shape), dtype=dtype, device=device)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "empty", contiguous)
        patch.setattr(torch, "empty_like", lambda x, **options: contiguous(x.shape, dtype=x.dtype, device=x.device))
        patch.setattr(torch, "empty_strided", guarded)
        yield
    for memory, tensor, sentinel in made:
        around = torch.ones(memory.shape, dtype=torch.bool, device=memory.device)
        around.as_strided(tensor.shape, tensor.stride(), GUARD).fill_(False)
        assert bool((memory.float()[around] == sentinel).all()), "memory changed outside an output"


# ---------------------------------------------------------------- the bound on the error


def copy_of(x: torch.Tensor) -> torch.Tensor:
    """A contiguous copy: some CPUs' bf16 matmul reads what lies between the rows of a view, and 0 · NaN is NaN."""
    return x.detach().clone(memory_format=torch.contiguous_format)


def assert_as_accurate(got: torch.Tensor, want: torch.Tensor, peer: torch.Tensor) -> None:
    """max|got − want| ≤ 2 · max|peer − want| + 1e-5, and no NaN or inf in `got`.

    want: float64. peer: PyTorch's own operation in got's dtype; where it is exact by luck, as happens with few elements, one rounding
    of the largest value is allowed all the same. In the interpreter a store to bf16 truncates: there one unit in the last place is added.
    """
    rounding = torch.finfo(got.dtype).eps / 2 * float(want.abs().max()) if want.numel() else 0.0
    lucky = want.numel() and rounding > 2 * float((peer.double() - want).abs().max())
    reference.assert_accurate(got, want, peer, slack=rounding if lucky else 0.0)


# ---------------------------------------------------------------- far offsets, streams, devices


def vast_memory() -> torch.Tensor:
    """Memory of a little over 2**32 elements of fp16, untouched, so that on a CPU almost none of it is really taken. Skips where there is
    none.

    Tensors are placed from element 2**31 on: an offset that wraps at 32 bits then lands inside the memory, and gives a wrong result
    rather than a crash.
    """
    elements, dtype = 2**32 + 2**16, torch.float16
    if ON_GPU and torch.cuda.mem_get_info()[0] < 1.1 * elements * dtype.itemsize:
        pytest.skip(f"needs {elements * dtype.itemsize / 2**30:.0f} GiB of GPU memory")
    try:
        return torch.empty(elements, dtype=dtype, device=DEVICE)
    except RuntimeError as error:
        pytest.skip(f"no {elements * dtype.itemsize / 2**30:.0f} GiB of address space: {error}")


def far_apart(memory: torch.Tensor, data: torch.Tensor, strides: Sequence[int], offset: int = 0) -> torch.Tensor:
    """`data` in the memory of vast_memory, from element 2**31 + offset on, with these strides."""
    tensor = memory.as_strided(data.shape, tuple(strides), 2**31 + offset)
    return tensor.copy_(data)


def assert_same_on_other_stream(operation: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> None:
    """operation(*inputs) on a stream of its own, where the inputs arrive late, gives what it gives on the default stream."""
    want = operation(*inputs)
    late = [torch.zeros_like(tensor) for tensor in inputs]
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        for tensor, data in zip(late, inputs, strict=True):
            tensor.copy_(data)
        got = operation(*late)
    stream.synchronize()
    assert torch.equal(got, want)


def assert_same_on_second_gpu(operation: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> None:
    """operation on cuda:1, while cuda:0 is the current GPU, gives what it gives on cuda:0."""
    want = operation(*(tensor.to("cuda:0") for tensor in inputs))
    with torch.cuda.device(0):
        got = operation(*(tensor.to("cuda:1") for tensor in inputs))
    assert got.device == torch.device("cuda:1")
    assert torch.equal(got.cpu(), want.cpu())
