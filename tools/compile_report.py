"""Compile every kernel of the package, with every configuration that its launcher may pick, for seven kinds of GPU.

That shows, before anyone launches, whether a configuration fits a card's shared memory, whether its registers spill to
local memory, and whether ptxas had to serialise wgmma. It takes some minutes, Linux, and no GPU.
"""

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch

from fa_tutorial import backward, decode, forward, fp8, hardware, hopper, layout, matmul, tuned
from fa_tutorial.bench import tables
from fa_tutorial.compiling import HEADS, LENGTH, SHARED_LIMITS, Call, Row, in_a_process, inputs
from fa_tutorial.tiles import MAX_D, TileConfig
from fa_tutorial.variants.attention import Options, plan
from fa_tutorial.variants.backward import variant_backward
from fa_tutorial.variants.forward import variant_forward

WORKERS = 2

# (dtype, D, is_causal) that stand for the rest: a causal kernel holds both loops, and bf16 compiles to what fp16 does,
# but for the types.
SHAPES = [(torch.float16, 64, False), (torch.bfloat16, 64, True), *((torch.float32, D, True) for D in (64, MAX_D))]
SHAPES += [(torch.float16, D, True) for D in (32, 64, 128, MAX_D)]


def first_kernels(_: int) -> Iterator[Call]:
    """Chapters 2 and 3, but for the softmax."""
    x = torch.empty(4096, 4096, device="meta")
    yield "fp32", partial(layout.add, x, x)
    yield "fp32", partial(layout.transpose_copy, x)
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        yield in_words(dtype), partial(matmul.matmul, x.to(dtype), x.to(dtype))
        yield f"{in_words(dtype)} D=128", partial(matmul.scores_times_values, *[x[:, :128].to(dtype)] * 3)


def softmax_kernels(_: int) -> Iterator[Call]:
    """Chapter 2's softmax, whose row fits in ever fewer registers."""
    for columns in (1024, 4096, 16_384, layout.MAX_SOFTMAX_COLUMNS):
        yield f"fp32 {columns:,} columns", partial(layout.softmax, torch.empty(64, columns, device="meta"))


def basic_kernels(capability: int) -> Iterator[Call]:
    """Chapters 5 and 7."""
    for dtype, D, is_causal in SHAPES:
        q, k, v, o, do, lse = inputs(dtype, D)
        words = f"{in_words(dtype)} D={D} {tables.mask(is_causal)}"
        yield words, partial(forward.flash_forward, q, k, v, is_causal, 0.5)
        if dtype == torch.float32 and D == MAX_D and SHARED_LIMITS[capability] < backward.FP32_BYTES_AT_256:
            continue  # refused with a ValueError
        yield words, partial(backward.flash_backward, q, k, v, o, do, lse, lse, is_causal, 0.5)


def tuned_kernels(capability: int) -> Iterator[Call]:
    """Every tile that chapter 8's kernels may pick on this card, causal; on Hopper two in full, and by pointers."""
    limit = SHARED_LIMITS[capability]
    for D in (64, 128, MAX_D):
        q, k, v, o, do, lse = inputs(torch.float16, D)
        tiles = {name: tuned.autotuning.candidates(name, D, limit) for name in tuned.autotuning.TILES}
        variants = [("causal", True, True, None)]
        if D != MAX_D and capability == hardware.HOPPER_CAPABILITY:
            variants += [("full", False, True, 2), ("full pointers", False, False, 2)]
        for words, is_causal, descriptors, most in variants:
            for tile in tiles["forward"][:most]:
                call = partial(tuned.flash_forward, q, k, v, is_causal, 0.5, tile=tile, descriptors=descriptors)
                yield f"fp16 D={D} {words} {in_words(tile)}", call
            for dkdv, dq in itertools.zip_longest(tiles["dkdv"][:most], tiles["dq"][:most]):
                config = backward.BackwardConfig(dkdv or tiles["dkdv"][0], dq or tiles["dq"][0])
                options = {"config": config, "descriptors": descriptors}
                call = partial(tuned.flash_backward, q, k, v, o, do, lse, None, is_causal, 0.5, **options)
                yield f"fp16 D={D} {words} {in_words(config.dkdv)}, {in_words(config.dq)}", call


def hopper_kernels(capability: int) -> Iterator[Call]:
    """Chapter 9's kernels: each configuration, causal and full; one in bf16; a group of heads, ragged."""
    if capability != hardware.HOPPER_CAPABILITY:
        return
    shapes = [(torch.float16, D, LENGTH, is_causal) for D in (64, 128) for is_causal in (False, True)]
    for dtype, D, S, is_causal in [*shapes, (torch.float16, 64, 1024, True), (torch.bfloat16, 64, LENGTH, True)]:
        words = f"{in_words(dtype)} D={D} {tables.mask(is_causal)} S={S}"
        yield words, partial(hopper.flash_forward, *inputs(dtype, D, S)[:3], is_causal, 0.5)
        yield words, partial(hopper.flash_backward, *inputs(dtype, D, S), None, is_causal, 0.5)
    for D in (64, 128):
        q, k, v, o, do, lse = inputs(torch.float16, D, LENGTH - 1)
        call = partial(hopper.flash_backward, q, k[:, :4], v[:, :4], o, do, lse, lse, False, 0.5)
        yield f"fp16 D={D} ragged grouped", call


def ladder_kernels(capability: int) -> Iterator[Call]:
    """Chapter 9's small kernels, and its plain forward's loops; bf16 has the same registers: one D."""
    if capability != hardware.HOPPER_CAPABILITY:
        return
    ladder = hopper.ladder
    for dtype, D in ((torch.float16, 64), (torch.float16, 128), (torch.bfloat16, 64)):
        q, k, v, *_ = inputs(dtype, D)
        x = q[0, 0, : ladder.ROWS.value]  # [ROWS, D]
        words = f"{in_words(dtype)} D={D}"
        yield words, partial(ladder.copy, x)
        yield words, partial(ladder.scores, x[:64], x)
        for attend in (ladder.attend, ladder.attend_overlapped):
            call = partial(ladder.flash_forward, q, k, v, 0.5, attend=attend, stages=3)
            yield f"{words} {attend.__name__}", call


def decode_kernels(capability: int) -> Iterator[Call]:
    """Chapter 11's kernels: a token for one sequence, its cache in one piece, in pages, in fp8; 8 tokens; an append."""
    lengths, table = (torch.empty(shape, dtype=torch.int32, device="meta") for shape in ((1,), (1, LENGTH // 16)))
    cases = [(torch.float16, D, 1) for D in (64, 128, MAX_D)]
    for dtype, D, tokens in [*cases, (torch.bfloat16, 128, 8), (torch.float32, 128, 1)]:
        q, k = (torch.empty(1, H, S, D, dtype=dtype, device="meta") for H, S in ((8 * HEADS, tokens), (HEADS, LENGTH)))
        pages = k.view(LENGTH // 16, HEADS, 16, D)
        words = f"{in_words(dtype)} D={D} S_q={tokens}"
        yield words, partial(decode.decode, q, k, k, lengths, None, None, None, 0.5, None)
        yield f"{words} pages", partial(decode.decode, q, pages, pages, lengths, table, None, None, 0.5, None)
        yield words, partial(decode.append, pages, pages, k[:, :, :tokens], k[:, :, :tokens], lengths, table)
        if capability >= decode.FP8_CAPABILITY and dtype != torch.float32:
            scale, k = torch.empty(HEADS, device="meta"), k.to(decode.FP8)
            yield f"{words} fp8", partial(decode.decode, q, k, k, lengths, None, scale, scale, 0.5, None)


def variant_kernels(capability: int) -> Iterator[Call]:
    """Chapter 10: a window, and with it every score mod and a sink, a mask of either kind, dropout, or packed rows. Of
    MAX_D the three that ask most shared memory and spill most; on Hopper all."""
    most = ("scores", "attn_mask", "dropout")
    plain = dict.fromkeys(Options._fields) | {"left": 1023, "right": 0, "dropout_p": 0.0, "scale": 0.5}
    for D in (64, 128, MAX_D) if capability == hardware.HOPPER_CAPABILITY else (128, MAX_D):
        q, k, v, o, do, lse = inputs(torch.float16, D)
        bounds, per_head = torch.empty(9, dtype=torch.int32, device="meta"), lse[0, :, :1].mT
        seen = (q[:, :1, :, :1] > 0).view(torch.uint8)
        for words, given in {
            "window": {},
            "scores": {"softcap": 30.0, "alibi_slopes": per_head, "sinks": per_head[0]},
            "attn_mask": {"attn_mask": q[:, :, :, :1].expand(1, HEADS, LENGTH, LENGTH)},
            "booleans": {"attn_mask": seen.expand(-1, -1, -1, LENGTH)},
            "keys": {"attn_mask": seen.mT.expand(-1, -1, LENGTH, -1)},
            "dropout": {"rng": torch.empty(2, dtype=torch.int64, device="meta"), "dropout_p": 0.25},
            "packed": {"cu_q": bounds, "cu_k": bounds},
        }.items():
            if D < MAX_D or words in most or capability == hardware.HOPPER_CAPABILITY:
                yield f"fp16 D={D} {words}", partial(launch_variant, q, k, v, o, do, lse, Options(**plain | given))


def launch_variant(q, k, v, o, do, lse, options: Options) -> None:
    mods, aux, mask = plan(q, k, options)
    variant_forward(q, k, v, mods, aux, mask, options.sinks)
    added = options.attn_mask if options.attn_mask is not None and options.attn_mask.is_floating_point() else None
    mask_shape = None if added is None else tuple(added.shape)
    variant_backward(q, k, v, o, do, lse, lse, mods._replace(scale=0.5), aux, mask, options.sinks, mask_shape)


def fp8_kernels(capability: int) -> Iterator[Call]:
    """Chapter 14's quantiser, and on Hopper its forward: each configuration, causal and full; one padded, in bf16."""
    shapes = [(torch.float16, D, LENGTH, is_causal) for D in (64, 128) for is_causal in (False, True)]
    for dtype, D, S, is_causal in [*shapes, (torch.float16, 128, 1024, True), (torch.bfloat16, 40, LENGTH, True)]:
        q, k, v, *_ = inputs(dtype, D, S)
        words = f"{in_words(dtype)} D={D} {tables.mask(is_causal)} S={S}"
        yield words, partial(launch_fp8, q, k, v, is_causal, capability == hardware.HOPPER_CAPABILITY)


def launch_fp8(q, k, v, is_causal: bool, is_hopper: bool) -> None:
    x = fp8.quantised(q, k, v, 0.5, False)
    if is_hopper:
        fp8.forward.flash_forward(*x, q.shape[3], q.dtype, is_causal)
    else:
        fp8.quantise(q, rotate=True)


# The least capability that they need, and their calls.
GROUPS = {
    "variants": (hardware.LEAST_CAPABILITY, variant_kernels),
    "tuned": (hardware.TENSOR_CORE_CAPABILITY, tuned_kernels),
    "basic": (hardware.LEAST_CAPABILITY, basic_kernels),
    "hopper": (hardware.HOPPER_CAPABILITY, hopper_kernels),
    "ladder": (hardware.HOPPER_CAPABILITY, ladder_kernels),
    "decode": (hardware.LEAST_CAPABILITY, decode_kernels),
    "fp8": (decode.FP8_CAPABILITY, fp8_kernels),
    "softmax": (hardware.LEAST_CAPABILITY, softmax_kernels),
    "first": (hardware.LEAST_CAPABILITY, first_kernels),
}


def in_words(what: torch.dtype | TileConfig) -> str:
    if isinstance(what, TileConfig):
        return f"{what.block_m}x{what.block_n}"
    return {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}[what]


def rows_for(capabilities: Sequence[int] = tuple(SHARED_LIMITS)) -> list[Row]:
    """The rows of these cards, compiled in WORKERS processes at a time."""
    parts = itertools.product(capabilities, GROUPS)
    with ThreadPoolExecutor(WORKERS) as pool:
        return [row for rows in pool.map(lambda part: compiled_part(*part), parts) for row in rows]


def compiled_part(capability: int, group: str) -> list[Row]:
    """The rows of a group of kernels for a card, from a process of its own."""
    least, kernels = GROUPS[group]
    if capability < least:
        return []
    words = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import compile_report as report"
    words += "; from fa_tutorial import compiling"
    call = f"compiling.compile_calls({capability}, report.{kernels.__name__}({capability}))"
    return [Row(*row) for row in in_a_process(f"{words}; print(json.dumps(list({call})))")]


# ---------------------------------------------------------------- judging and printing

SMALL_SPILL = 32


def accepted_spills(row: Row) -> int:
    """Bytes that the kernel may store and load a thread: a register or two, or more where that was measured to be the
    fastest, or nothing fits."""
    if row.kernel.startswith("tuned.") and "D=64" not in row.case:
        # These tiles are measured on the card that they run on: one that spills is taken only where it is the fastest.
        return 1_500 if f"D={MAX_D}" in row.case or "pointers" in row.case else 300
    if row.kernel == "layout.softmax_kernel":
        return 1_000  # a row of 65,536 columns is 128 elements a thread with 16 warps, the whole of its registers
    if row.kernel == "fp8.forward.forward_kernel":
        return 500  # as the next, and only in the loop with a mask, and around the loops
    if row.kernel == "hopper.forward.forward_kernel" or "grouped" in row.case:
        # Three consumers of the forward have 160 registers a thread; the backward's walk over a group's heads needs
        # what its accumulators leave.
        return 340
    if row.kernel == "variants.tile_lists.tile_lists_kernel":
        return 200  # the pairs of a whole tile are in its registers, and it runs once for a mask
    if row.kernel.startswith("variants.") and (is_heavy(row) or f"D={MAX_D}" in row.case):
        # an added mask on data-center Blackwell: not measured
        return 4_600 if row.capability in (hardware.LEAST_CAPABILITY, 100) else 1_200
    if row.kernel.startswith("forward.") and f"D={MAX_D}" in row.case:
        return 200
    if row.kernel.startswith("backward.") and f"D={MAX_D}" in row.case:
        return 4_000 if row.capability == hardware.LEAST_CAPABILITY else 600
    return SMALL_SPILL


def is_heavy(row: Row) -> bool:
    """The variants whose numbers for each pair, loaded or drawn, cost more than the products that wait for them."""
    return row.kernel.startswith("variants.") and row.case.endswith(("dropout", "attn_mask", "booleans"))


def faults(row: Row) -> list[str]:
    """What is wrong with a configuration; empty where nothing is."""
    found = []
    if row.shared > SHARED_LIMITS[row.capability]:
        found.append(f"asks for {row.shared} bytes of shared memory, the card has {SHARED_LIMITS[row.capability]}")
    if row.spills > accepted_spills(row):
        found.append(f"spills {row.spills} bytes")
    if row.warnings and not is_heavy(row):
        found.append(f"wgmma is serialised ({', '.join(row.warnings)})")
    return found


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    heads = ("kernel", "case", "capability", "warps", "stages", "registers", "shared bytes", "spilled bytes", "faults")
    lines = ([*map(str, row[:-1]), "; ".join(faults(row)) or "none"] for row in rows)
    return tables.markdown(heads, lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the table to the file that is named. Returns 1 where a row has a fault, which is then printed; else 0."""
    words = {"description": __doc__, "formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = argparse.ArgumentParser(prog="python tools/compile_report.py", **words)
    parser.add_argument("file", type=Path, help="where the table goes, in Markdown")
    file = parser.parse_args(arguments).file
    rows = rows_for()
    file.write_text(markdown(rows), encoding="utf-8")
    found = ((row, "; ".join(faults(row))) for row in rows)
    wrong = [f"{row.kernel}, {row.case}, capability {row.capability}: {words}" for row, words in found if words]
    print(f"{len(rows)} compiles, {len(wrong)} with faults: {file}", *wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
