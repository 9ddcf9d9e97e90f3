"""What holds of every launcher of chapters 2 and 3: any layout, nothing, far offsets, the current stream and the input's GPU."""

import functools

import pytest
import torch
from buffers import (
    LAYOUTS,
    assert_as_accurate,
    assert_same_on_other_stream,
    assert_same_on_second_gpu,
    copy_of,
    far_apart,
    guarded_outputs,
    laid_out,
    needs_gpu,
    needs_two_gpus,
    randn,
    unchanged,
    vast_memory,
)

from fa_tutorial import layout, matmul

# Name -> the launcher, PyTorch's own operation, and the shapes of its inputs.
LAUNCHERS = {
    "add": (layout.add, torch.add, [(5, 33)] * 2),
    "transpose_copy": (layout.transpose_copy, torch.t, [(5, 33)]),
    "softmax": (layout.softmax, functools.partial(torch.softmax, dim=-1), [(5, 33)]),
    "matmul": (matmul.matmul, torch.mm, [(17, 33), (33, 15)]),
    "scores_times_values": (matmul.scores_times_values, lambda q, k, v: q @ k.T @ v, [(17, 40)] * 3),
}
launchers = pytest.mark.parametrize(("launcher", "own", "shapes"), LAUNCHERS.values(), ids=LAUNCHERS)


def inputs(shapes, dtype=torch.float32):
    """Small numbers: a product's errors are near 1, which the bound's 1e-5 is meant for."""
    return [randn(*shape, dtype=dtype, seed=seed) / 4 for seed, shape in enumerate(shapes)]


@launchers
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(launcher, own, shapes, name):
    """Of each input in turn."""
    for place in range(len(shapes)):
        given = inputs(shapes, torch.bfloat16)
        given[place] = laid_out(given[place], name)
        with unchanged(*given), guarded_outputs():
            out = launcher(*given)
        assert out.is_contiguous()
        assert_as_accurate(out, own(*(x.double() for x in given)), own(*map(copy_of, given)))


@launchers
@pytest.mark.parametrize("strides", [(2**30, 1), (1, 2**30)], ids=["rows", "columns"])
def test_offsets_of_2_to_the_31_and_more(launcher, own, shapes, strides):
    data = inputs([(3, 3)] * len(shapes), torch.float16)
    memory = vast_memory()
    far = [far_apart(memory, x, strides, offset=64 * i) for i, x in enumerate(data)]
    assert_as_accurate(launcher(*far), own(*(x.double() for x in data)), own(*data))


@needs_gpu
@launchers
def test_the_current_stream(launcher, own, shapes):
    assert_same_on_other_stream(launcher, *inputs(shapes))


@needs_two_gpus
@launchers
def test_the_gpu_of_the_input(launcher, own, shapes):
    assert_same_on_second_gpu(launcher, *inputs(shapes))
