"""Chapter 8: the tiles among which the tuned kernels choose, and @triton.autotune, which measures them on the card at
hand."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from fa_tutorial.forward import INTERPRETER_CONFIG
from fa_tutorial.hardware import card, card_of, require_triton
from fa_tutorial.tiles import MIN_DOT, TileConfig, heads, padded_d
from fa_tutorial.tuned.descriptors import descriptor_template
from fa_tutorial.tuned.launching import Launch, launch_prepared

triton = require_triton("Chapter 8 (fa_tutorial.tuned)")
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

# As forward.CONFIGS: BLOCK_D to candidates, the smallest last, for cards with at least so many bytes of shared memory a
# block. 227 KiB: for BLOCK_D = 64 and 128 the fastest of those tried on an H200. 99 KiB: tiles that ptxas compiles
# without spills, or nearly, for every such card (tools/compile_report.py). Capability 120 keeps what TMA loads in
# registers, so its tiles are the smallest.
FORWARD_TILES = {
    232_448: {
        64: (TileConfig(64, 64, 4, 3), TileConfig(64, 128, 4, 2), TileConfig(128, 64, 4, 3), TileConfig(64, 64, 4, 2)),
        128: (
            TileConfig(128, 64, 4, 2),
            TileConfig(64, 64, 4, 3),
            TileConfig(128, 64, 8, 3),
            TileConfig(128, 64, 8, 2),
            TileConfig(64, 64, 4, 2),
        ),
        256: (TileConfig(128, 64, 8, 2), TileConfig(64, 64, 4, 2), TileConfig(64, 32, 4, 2)),
    },
    101_376: {
        64: (TileConfig(128, 64, 8, 3), TileConfig(64, 64, 4, 3)),
        128: (TileConfig(128, 64, 8, 2), TileConfig(64, 64, 8, 2)),
        256: (TileConfig(32, 64, 8, 1), TileConfig(32, 32, 8, 2)),
    },
}
DKDV_TILES = {
    232_448: {
        64: (TileConfig(64, 64, 4, 3), TileConfig(64, 64, 4, 2), TileConfig(32, 64, 4, 3)),
        128: (TileConfig(64, 64, 4, 2), TileConfig(32, 64, 4, 3)),
        256: (TileConfig(64, 64, 8, 1), TileConfig(32, 64, 8, 2)),
    },
    101_376: {
        64: (TileConfig(32, 64, 4, 1), TileConfig(64, 32, 4, 2)),
        128: (TileConfig(64, 32, 8, 2), TileConfig(32, 32, 8, 2)),
        256: (TileConfig(32, 16, 8, 1), TileConfig(16, 16, 8, 2)),
    },
}
DQ_TILES = {
    232_448: {
        64: (TileConfig(64, 64, 4, 3), TileConfig(128, 64, 8, 3), TileConfig(64, 64, 4, 2)),
        128: (TileConfig(128, 64, 8, 3), TileConfig(64, 64, 4, 2)),
        256: (TileConfig(128, 32, 8, 2), TileConfig(64, 32, 4, 3)),
    },
    101_376: {
        64: (TileConfig(128, 64, 8, 2), TileConfig(64, 64, 8, 2)),
        128: (TileConfig(32, 64, 8, 2), TileConfig(32, 32, 4, 2)),
        256: (TileConfig(16, 64, 8, 1), TileConfig(16, 32, 8, 1)),
    },
}
TILES = {"forward": FORWARD_TILES, "dkdv": DKDV_TILES, "dq": DQ_TILES}
ITEMSIZE = 2  # of fp16 and bf16; fp32 takes the kernels of chapters 5 and 7


def shared_bytes(kernel: str, tile: TileConfig, block_d: int) -> int:
    """Bytes of shared memory that a program of `kernel` ("forward", "dkdv", "dq") needs: tiles that stay, and
    num_stages of those that stream (8.2)."""
    held, streamed = {
        "forward": (tile.block_m, 2 * tile.block_n),  # q; k and v
        "dkdv": (2 * tile.block_n, 2 * tile.block_m),  # k and v; q and do
        "dq": (2 * tile.block_m, 2 * tile.block_n),  # q and do; k and v
    }[kernel]
    return block_d * ITEMSIZE * (held + tile.num_stages * streamed)


@functools.cache
def candidates(kernel: str, D: int, shared_memory: int | None) -> tuple[TileConfig, ...]:
    """The tiles of `kernel` that fit on a card with `shared_memory` bytes per thread block, at least one. None means
    the interpreter, which has its own."""
    if shared_memory is None:
        return (INTERPRETER_CONFIG,)
    block_d, by_memory = max(padded_d(D), 64), TILES[kernel]
    largest = next((least for least in by_memory if least <= shared_memory), min(by_memory))
    tiles = by_memory[largest][block_d]
    return tuple(tile for tile in tiles if shared_bytes(kernel, tile, block_d) <= shared_memory) or tiles[-1:]


# whose rows a tile holds
BLOCK_OF = dict.fromkeys(("q", "o", "do", "dq"), "BLOCK_M") | dict.fromkeys(("k", "v", "dk", "dv"), "BLOCK_N")


def set_block_shapes(arguments: dict[str, Any]) -> None:
    """A config's pre_hook: give each descriptor among the arguments the tile of this configuration."""
    for name, block in BLOCK_OF.items():
        if isinstance(arguments.get(name), TensorDescriptor):
            arguments[name].block_shape[2] = arguments[block]


def autotune(name: str) -> Callable:
    """@triton.autotune for the kernel that TILES calls `name`.

    key: `autotune_key` stands for everything that the fastest tile depends on, so lengths of one bucket share a
    measurement. early_config_prune keeps the tiles for this card and this D. A second process measures again, with
    compiled kernels from the disk cache, because Triton stores no timings of configurations with a pre_hook.
    """
    tiles = [tile for by_d in TILES[name].values() for tiles in by_d.values() for tile in tiles]
    configs = {tile: config_of(tile) for tile in tiles}

    def prune(_, arguments: dict[str, Any], **constants: Any) -> list[triton.Config]:
        shared_memory = card(torch.cuda.current_device()).shared_memory
        return [configs[tile] for tile in candidates(name, arguments["D"], shared_memory)]

    return triton.autotune(
        configs=list(configs.values()), key=["autotune_key"], prune_configs_by={"early_config_prune": prune}
    )


def config_of(tile: TileConfig) -> triton.Config:
    blocks = {"BLOCK_M": tile.block_m, "BLOCK_N": tile.block_n}
    return triton.Config(blocks, num_warps=tile.num_warps, num_stages=tile.num_stages, pre_hook=set_block_shapes)


def bucket(S: int) -> int:
    """S rounded up to a power of two, at least 256 and at most 16,384. Lengths of one bucket share a measurement."""
    return min(max(1 << (S - 1).bit_length(), 256), 16_384)


_fastest: dict[tuple, dict[str, int]] = {}  # what the fastest tile depends on -> that tile


def fastest(
    name: str, kernel, grid: Callable, tensors: dict[str, torch.Tensor], arguments: tuple, tma: bool,
    constants: dict[str, Any],
) -> dict[str, int] | None:  # fmt: skip
    """The fastest of the candidates, measured by the autotuner once for each card, dtype, BLOCK_D, mask, bucket of
    lengths, and with or without TMA.

    None while a CUDA graph is captured, or where memory does not suffice to measure.
    """
    q, k = tensors["q"], tensors["k"]
    fit = candidates(name, q.shape[3], card_of(q).shared_memory)
    if len(fit) == 1:
        return fit[0].launch()
    key = (name, card_of(q).name, q.dtype, tma, bucket(q.shape[2]), bucket(k.shape[2]), *constants.values())
    if key not in _fastest:
        if torch.cuda.is_current_stream_capturing():
            return None
        on_tiles = [descriptor_template(x, MIN_DOT)(x) if tma else heads(x) for x in tensors.values()]
        try:
            kernel[grid](*on_tiles, *arguments, autotune_key=hash(key) % 2**31, **constants)
        except torch.cuda.OutOfMemoryError:
            return None
        _fastest[key] = kernel.best_config.all_kwargs()
    return _fastest[key]


def launch(
    name: str, kernel, grid: Callable, tensors: dict[str, torch.Tensor], *arguments: Any, signature: tuple, tma: bool,
    tile: TileConfig | None = None, **constants: Any,
) -> None:  # fmt: skip
    """kernel[grid](*tensors, *arguments, **constants) with `tile`, or else with the fastest one; each tensor as a
    descriptor, or as Heads.

    Where none can be measured now, the first candidate is taken for this one call. signature: launching.signature_of
    all that decides how the kernel is compiled.
    """

    def prepare() -> Launch:
        found = tile.launch() if tile else fastest(name, kernel, grid, tensors, arguments, tma, constants)
        q = tensors["q"]
        blocks = found or candidates(name, q.shape[3], card_of(q).shared_memory)[0].launch()
        to_argument = [descriptor_template(x, blocks[BLOCK_OF[what]]) if tma else heads for what, x in tensors.items()]
        return Launch(
            kernel.fn, grid(blocks)[0], to_argument, {"autotune_key": 0, **constants, **blocks}, keep=found is not None
        )

    launch_prepared((name, tile, tma, *constants.values(), *signature), prepare, tensors.values(), arguments)
