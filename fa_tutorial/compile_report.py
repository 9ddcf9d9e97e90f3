"""Every kernel of the package compiled for GPUs that are not there: `python -m fa_tutorial.compile_report FILE`, or `make compile-report`.

compiled.json keeps what each compile gave, under a fingerprint of the kernel's source, the case and Triton's version. Rows that stand there are
taken from there; a kernel that was changed is compiled again, and `python -m fa_tutorial.compile_report --store` keeps what that gave.

Triton and its ptxas compile for any NVIDIA GPU on any machine with Linux. That shows, before anyone launches, whether a configuration
fits a card's shared memory, whether its registers spill to local memory, and whether ptxas had to serialise wgmma. FILE ends in .json or .md.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import hashlib
import io
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from pathlib import Path

from fa_tutorial import backward, forward, hardware, hopper, layout, matmul, tuned
from fa_tutorial.bench.cases import DTYPES
from fa_tutorial.source import source_of

# Bytes of shared memory that one block may ask for (opt-in), by compute capability. CUDA programming guide, table of technical specifications.
SHARED_LIMITS = {75: 65_536, 80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}
CARDS = {75: "T4", 80: "A100", 86: "RTX 30xx", 89: "RTX 40xx", 90: "H100, H200", 100: "B200", 120: "RTX 50xx"}
SERIALISED = ("C7511", "C7512", "C7515")  # ptxas waits for every wgmma before it starts the next: right, and slow
KERNELS = {
    "add_kernel": layout.add_kernel,
    "transpose_kernel": layout.transpose_kernel,
    "softmax_kernel": layout.softmax_kernel,
    "matmul_kernel": matmul.matmul_kernel,
    "scores_values_kernel": matmul.scores_values_kernel,
    "flash_forward_kernel": forward.flash_forward_kernel,
    "delta_kernel": backward.delta_kernel,
    "dkdv_kernel": backward.dkdv_kernel,
    "dq_kernel": backward.dq_kernel,
    "tuned.forward_kernel": tuned.forward_kernel,
    "tuned.repair_kernel": tuned.repair_kernel,
    "tuned.prepare_kernel": tuned.prepare_kernel,
    "tuned.dkdv_kernel": tuned.dkdv_kernel,
    "tuned.dq_kernel": tuned.dq_kernel,
    "hopper.forward_kernel": hopper.forward_kernel,
}
# What a case may spill, in bytes stored and loaded a thread: a register or two anywhere, and more where it is named, by words of its title.
# A row of 65,536 columns is 128 elements a thread with 16 warps, the whole of its registers. The attention tiles for D = 128 and 256 spill,
# and still run faster on an H200 than any measured that does not spill, up to more than twice as fast.
# For D = 256 in fp16 the smallest tile there is spills on Turing, and dkdv_kernel's in fp32 with Triton 3.7 on every card but the A100.
# The tuned kernels are measured with each of their tiles on the card that they run on: one that spills is taken only where it is the fastest.
# For D = 256 with 227 KB no tile of the backward that was tried is free of spills on capability 90; two of those here are chapter 7's.
# With Triton 3.6 some tiles for 99 KB spill a little on capability 120 that with 3.7 do not.
# hopper.forward_kernel's threads have 160 registers with three consumers. What spills is what a masked block needs, which is at most two of a row's.
# repair_kernel runs where a row needs it, which is rare, and its tile is not free: its rows and columns are forward_kernel's.
SMALL_SPILL = 32
ACCEPTED_SPILLS = {
    ("softmax_kernel", f"{layout.MAX_SOFTMAX_COLUMNS} columns"): 1_000,
    ("flash_forward_kernel", "fp16 D=256 causal 64x32"): 200,
    ("dkdv_kernel", "fp32 D=64 causal 32x32"): 100,
    ("dkdv_kernel", "fp32 D=256 causal 16x16"): 250,
    ("dkdv_kernel", "D=64 64x64"): 60,
    ("dkdv_kernel", "D=128 32x64"): 300,
    ("dq_kernel", "D=128 64x64"): 80,
    ("dkdv_kernel", "D=256 64x64"): 1_000,
    ("dq_kernel", "D=256 64x32"): 500,
    ("dkdv_kernel", "fp16 D=256 16x16"): 2_100,
    ("dq_kernel", "fp16 D=256 16x16"): 1_300,
    ("tuned.forward_kernel", "D=64 full 64x64"): 80,
    ("tuned.forward_kernel", "D=128 128x64"): 300,
    ("tuned.forward_kernel", "D=128 128x64 pointers"): 900,
    ("tuned.forward_kernel", "D=128 64x64"): 250,
    ("tuned.repair_kernel", "128x64"): 120,
    ("tuned.repair_kernel", "64x64"): 150,
    ("tuned.repair_kernel", "64x128"): 120,
    ("tuned.repair_kernel", "D=256"): 2_000,
    ("tuned.dkdv_kernel", "D=128 64x64"): 800,
    ("tuned.dkdv_kernel", "D=256 64x64"): 2_100,
    ("tuned.dkdv_kernel", "D=128 64x32"): 80,
    ("tuned.dkdv_kernel", "D=256 32x64"): 600,
    ("tuned.dq_kernel", "D=64"): 60,
    ("tuned.dq_kernel", "D=128 32x32"): 80,
    ("tuned.dq_kernel", "D=256 128x32"): 450,
    ("tuned.dq_kernel", "D=256 64x32"): 600,
    ("hopper.forward_kernel", "D=64 causal"): 340,
    ("hopper.forward_kernel", "held"): 120,
}
WORKERS = 2


@dataclass(frozen=True)
class Case:
    """One compile: a kernel, the card, the arguments of a launch (pointers as "*fp16") and its constants. JSON can hold all of it."""

    kernel: str
    title: str
    capability: int
    arguments: dict[str, int | float | str]
    constants: dict[str, int | float | bool]
    num_warps: int = 4
    num_stages: int = 3


@dataclass(frozen=True)
class Row:
    """What a compile gave. registers: a thread's; shared: bytes a block; spills: bytes stored and loaded a thread; warnings: ptxas's."""

    kernel: str
    case: str
    capability: int
    num_warps: int
    num_stages: int
    registers: int
    shared: int
    spills: int
    warnings: list[str] = field(default_factory=list)


# ---------------------------------------------------------------- cases


def cases(capability: int) -> Iterator[Case]:
    """Every kernel with every configuration that its launch rule picks on a card of this capability."""
    yield from layout_cases(capability)
    yield from matmul_cases(capability)
    yield from forward_cases(capability)
    yield from backward_cases(capability)
    if capability >= hardware.TENSOR_CORE_CAPABILITY:
        yield from tuned_cases(capability)
    if capability == hardware.HOPPER_CAPABILITY:
        yield from hopper_cases()


def layout_cases(capability: int) -> Iterator[Case]:
    yield Case("add_kernel", "fp32", capability, {"x_ptr": "*fp32", "y_ptr": "*fp32", "out_ptr": "*fp32", "n": 4096}, {"BLOCK": 1024})
    tile = {"rows": 4096, "cols": 4096, "stride_xr": 4096, "stride_xc": 1, "stride_or": 4096, "stride_oc": 1}
    yield Case("transpose_kernel", "fp32 32x32", capability, {"x_ptr": "*fp32", "out_ptr": "*fp32", **tile}, {"BLOCK_R": 32, "BLOCK_C": 32})
    for columns in (1024, 8192, layout.MAX_SOFTMAX_COLUMNS):
        yield Case(
            "softmax_kernel",
            f"fp32 {columns} columns",
            capability,
            {"x_ptr": "*fp32", "out_ptr": "*fp32", "cols": columns, "stride_x": columns, "stride_out": columns},
            {"BLOCK": columns},
            num_warps=layout.row_warps(columns),
        )


def matmul_cases(capability: int) -> Iterator[Case]:
    for dtype, kind in DTYPES.items():
        yield matmul_case(capability, dtype, matmul.choose_config(kind, SHARED_LIMITS[capability]))
        yield scores_values_case(capability, dtype)


def matmul_case(capability: int, dtype: str, config: matmul.MatmulConfig) -> Case:
    """matmul_kernel on row-major matrices of 4,096 x 4,096."""
    arguments = {f"{name}_ptr": f"*{dtype}" for name in "abc"} | {"M": 4096, "N": 4096, "K": 4096}
    arguments |= {f"stride_{name}": size for name, size in zip(("am", "ak", "bk", "bn", "cm", "cn"), (4096, 1) * 3, strict=True)}
    constants = {"BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "BLOCK_K": config.block_k, "GROUP": config.group}
    title = f"{dtype} {config.block_m}x{config.block_n}x{config.block_k}"
    return Case("matmul_kernel", title, capability, arguments, constants, config.num_warps, config.num_stages)


def scores_values_case(capability: int, dtype: str) -> Case:
    """scores_values_kernel as scores_times_values launches it, with D = 128, the most it takes."""
    arguments = {f"{name}_ptr": f"*{dtype}" for name in "qkvo"} | {"S_q": 4096, "S_k": 4096, "D": 128, "scale": 0.5}
    for name in "qkvo":
        arguments |= {f"stride_{name}s": 128, f"stride_{name}d": 1}
    constants = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_D": 128}
    return Case("scores_values_kernel", f"{dtype} D=128 32x32", capability, arguments, constants, matmul.SCORES_VALUES_WARPS)


# (dtype, D, is_causal) that stand for the rest: a causal kernel holds both loops, and bf16 compiles to what fp16 does, but for the types.
ATTENTION_SHAPES = [("fp16", 64, False), ("bf16", 64, True), ("fp32", 64, True), ("fp32", forward.MAX_D, True)]
ATTENTION_SHAPES += [("fp16", D, True) for D in (32, 64, 128, forward.MAX_D)]


def forward_cases(capability: int) -> Iterator[Case]:
    for dtype, D, is_causal in ATTENTION_SHAPES:
        config = forward.choose_config(D, DTYPES[dtype], SHARED_LIMITS[capability])
        yield forward_case(capability, dtype, D, is_causal, config)


def forward_case(capability: int, dtype: str, D: int, is_causal: bool, config: forward.TileConfig) -> Case:
    return attention_case("flash_forward_kernel", capability, dtype, D, is_causal, config)


def backward_cases(capability: int) -> Iterator[Case]:
    limit = SHARED_LIMITS[capability]
    for dtype, D in (("fp16", 64), ("fp32", forward.MAX_D)):
        yield delta_case(capability, dtype, D)
    for dtype, D, is_causal in ATTENTION_SHAPES:
        if (dtype, D) == ("fp32", forward.MAX_D) and limit < backward.FP32_BYTES_AT_256:
            continue  # refused with a ValueError
        config = backward.choose_config(D, DTYPES[dtype], limit)
        yield attention_case("dkdv_kernel", capability, dtype, D, is_causal, config.dkdv)
        yield attention_case("dq_kernel", capability, dtype, D, is_causal, config.dq)


HEADS, LENGTH = 16, 4096


def attention_case(kernel: str, capability: int, dtype: str, D: int, is_causal: bool, config: forward.TileConfig) -> Case:
    """A kernel that walks over tiles, on contiguous tensors, as its launcher launches it."""
    constants = {"IS_CAUSAL": is_causal, "P_SCALE": forward.p_scale(DTYPES[dtype])}
    constants |= {"BLOCK_M": config.block_m, "BLOCK_N": config.block_n, "BLOCK_D": forward.padded_d(D)}
    title = f"{dtype} D={D} {'causal' if is_causal else 'full'} {config.block_m}x{config.block_n}"
    return Case(kernel, title, capability, attention_arguments(dtype, D), constants, config.num_warps, config.num_stages)


def delta_case(capability: int, dtype: str, D: int) -> Case:
    block_d = forward.padded_d(D)
    constants = {
        "HAS_DLSE": True,
        "P_SCALE": forward.p_scale(DTYPES[dtype]),
        "BLOCK_M": backward.DELTA_ELEMENTS // block_d,
        "BLOCK_D": block_d,
    }
    return Case("delta_kernel", f"{dtype} D={D}", capability, attention_arguments(dtype, D), constants)


def tuned_cases(capability: int) -> Iterator[Case]:
    """Every tile that the tuned kernels may pick on this card. Causal, so that both loops are there; but one forward without, and one in bf16."""
    limit = SHARED_LIMITS[capability]
    for D in (64, 128, forward.MAX_D):
        tiles = {kernel: tuned.candidates(kernel, D, DTYPES["fp16"].itemsize, limit) for kernel in tuned.TILES}
        for kernel, candidates in tiles.items():
            for tile in candidates:
                yield tuned_case(capability, kernel, "fp16", D, True, tile)
        for tile in dict.fromkeys(tuned.repair_tile(tile) for tile in tiles["forward"]):
            yield tuned_case(capability, "repair", "fp16", D, True, tile)
    first = tuned.candidates("forward", 64, DTYPES["fp16"].itemsize, limit)[0]
    yield tuned_case(capability, "forward", "fp16", 64, False, first)
    yield tuned_case(capability, "forward", "bf16", 64, True, first)
    yield replace(delta_case(capability, "fp16", 64), kernel="tuned.prepare_kernel")
    if capability == tuned.TMA_CAPABILITY:  # by pointers too, for strides that no descriptor holds: ptxas has serialised wgmma there
        for D in (64, 128):
            for kernel in tuned.TILES:
                for tile in tuned.candidates(kernel, D, DTYPES["fp16"].itemsize, limit)[:2]:
                    yield tuned_case(capability, kernel, "fp16", D, False, tile, tma=False)


def tuned_case(
    capability: int, kernel: str, dtype: str, D: int, is_causal: bool, tile: forward.TileConfig, tma: bool | None = None
) -> Case:
    """A kernel of fa_tutorial.tuned ("forward", "repair", "dkdv", "dq") as its launcher launches it: without `tma` by descriptors where the
    card has TMA."""
    case = attention_case(f"tuned.{kernel}_kernel", capability, dtype, D, is_causal, tile)
    tma = capability >= tuned.TMA_CAPABILITY if tma is None else tma
    for name in ("q", "k", "v", "o", "do", "dq", "dk", "dv"):
        rows = tile.block_n if name in ("k", "v", "dk", "dv") else tile.block_m
        case.arguments[name] = f"tensordesc<{dtype}[1, 1, {rows}, {forward.padded_d(D)}]>" if tma else f"*{dtype}"
    shift = round(-math.log2(forward.p_scale(DTYPES[dtype])))
    constants = case.constants | {
        "TMA": tma,
        "SHIFT": shift,
        "LAST_FIRST": False,
        "REUSE_DELTA": tuned.STEPS[tuned.BEST].reuse_delta,
        "GROUP": 1,
    }
    names = KERNELS[case.kernel].arg_names
    title = case.title if tma == (capability >= tuned.TMA_CAPABILITY) else f"{case.title} pointers"
    return replace(case, title=title, constants={name: value for name, value in constants.items() if name in names})


def hopper_cases() -> Iterator[Case]:
    """Every configuration of chapter 9's kernel, causal and full; one in bf16; and the step whose wait is held in its place."""
    for D, config in [*hopper.CONFIGS.items(), (64, hopper.SHORT_CAUSAL)]:
        for is_causal in (False, True):
            yield hopper_case("fp16", D, is_causal, config)
    yield hopper_case("bf16", 64, True, hopper.CONFIGS[64])
    yield hopper_case("fp16", 128, False, hopper.CONFIGS[128], "held")


def hopper_case(dtype: str, D: int, is_causal: bool, config: hopper.HopperConfig, step: str = hopper.BEST) -> Case:
    """hopper.forward_kernel as its launcher launches it."""
    rows = {"q": hopper.ROWS.value, "k": config.block_n, "v": config.block_n, "o": hopper.ROWS.value}
    arguments = attention_arguments(dtype, D) | {"counter_ptr": "*i32", "row_blocks": 22}
    arguments |= {f"{name}_desc": f"tensordesc<{dtype}[1, 1, {size}, {D}],{hopper.layout()!r}>" for name, size in rows.items()}
    title = f"{dtype} D={D} {'causal' if is_causal else 'full'} {config.consumers} x {hopper.ROWS.value}x{config.block_n}"
    constants = hopper.constants_of(is_causal, DTYPES[dtype], hopper.STEPS[step], config)
    words = title if step == hopper.BEST else f"{title} {step}"
    return Case("hopper.forward_kernel", words, hardware.HOPPER_CAPABILITY, arguments, constants, hopper.NUM_WARPS, config.stages)


def attention_arguments(dtype: str, D: int) -> dict[str, int | float | str]:
    """Every argument that one of the attention kernels takes; `specialise` picks those of its kernel."""
    rows = {"b": HEADS * LENGTH, "h": LENGTH, "s": 1}
    arguments = {f"{name}_ptr": f"*{dtype}" for name in ("q", "k", "v", "o", "do", "dq", "dk", "dv")}
    arguments |= {f"{name}_ptr": "*fp32" for name in ("lse", "lse2", "delta", "dlse")}
    arguments |= {"H_q": HEADS, "H_k": HEADS, "heads": HEADS, "heads_at_once": tuned.STEPS[tuned.BEST].heads_at_once(LENGTH)}
    arguments |= {"S_q": LENGTH, "S_k": LENGTH, "S_padded": LENGTH, "D": D, "scale": 0.5, "scale_log2": 0.5}
    tensors = ("q", "k", "v", "o", "do", "dq", "dk")
    arguments |= {f"stride_{name}{axis}": size * D for name in tensors for axis, size in rows.items()}
    arguments |= {f"stride_{name}d": 1 for name in tensors}
    return arguments | {f"stride_dlse{axis}": size for axis, size in rows.items()}


# ---------------------------------------------------------------- what is compiled already

STORE = Path(__file__).with_name("compiled.json")


def source_closure(kernel, seen: dict[str, str] | None = None) -> dict[str, str]:
    """Name -> source of a kernel and of all that it calls, and name -> value of the constants that they use.

    INTERPRETED is left out: compiling happens where the interpreter is off, whatever it is here.
    """
    seen = {} if seen is None else seen
    seen[f"{kernel.fn.__module__}.{kernel.__name__}"] = text = source_of(kernel)
    for name in sorted({node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)} - {"INTERPRETED"}):
        value = kernel.fn.__globals__.get(name)
        if hasattr(value, "fn") and f"{value.fn.__module__}.{value.__name__}" not in seen:
            source_closure(value, seen)
        elif type(value).__name__ == "constexpr":
            seen[name] = repr(value.value)
    return seen


@functools.cache
def kernel_fingerprint(name: str) -> str:
    return hashlib.sha256(repr(sorted(source_closure(KERNELS[name]).items())).encode()).hexdigest()


def fingerprint(case: Case) -> str:
    """What a compile depends on, in 20 digits: the kernel and what it calls, the arguments and constants, the card, Triton."""
    return hashlib.sha256(repr((metadata.version("triton"), kernel_fingerprint(case.kernel), asdict(case))).encode()).hexdigest()[:20]


def stored_rows(path: Path = STORE) -> dict[str, Row]:
    """Fingerprint -> row of everything that `path` keeps; empty where there is no such file."""
    if not path.exists():
        return {}
    return {row.pop("fingerprint"): Row(**row) for row in json.loads(path.read_text())["rows"]}


def rows_of(todo: Sequence[Case], path: Path = STORE) -> list[Row]:
    """The row of each case, in their order: kept ones as they are, the others compiled."""
    found = stored_rows(path)
    missing = [case for case in todo if fingerprint(case) not in found]
    found |= zip(map(fingerprint, missing), compile_cases(missing), strict=True)
    return [found[fingerprint(case)] for case in todo]


def keep(todo: Sequence[Case], rows: Sequence[Row], path: Path = STORE) -> None:
    """Write the rows of all cases to `path`, and nothing else that was there."""
    lines = [json.dumps({"fingerprint": fingerprint(case)} | asdict(row)) for case, row in zip(todo, rows, strict=True)]
    path.write_text(f'{{"triton": {json.dumps(metadata.version("triton"))}, "rows": [\n' + ",\n".join(lines) + "\n]}\n", encoding="utf-8")


# ---------------------------------------------------------------- compiling, in processes whose interpreter is off


def specialise(case: Case, names: Sequence[str], not_specialised: Collection[str] = ()) -> tuple[dict, dict, dict]:
    """(signature, constants, attributes) as a launch with these arguments gives them to Triton's compiler.

    Triton makes an argument of 1 a constant, and notes which pointers and integers are multiples of 16, but for `not_specialised` ones.
    """
    signature, constants, attributes = {}, dict(case.constants), {}
    for position, name in enumerate(names):
        value = case.arguments.get(name)
        if name in case.constants or (value == 1 and isinstance(value, int) and name not in not_specialised):
            constants.setdefault(name, 1)
            signature[name] = "constexpr"
            continue
        if isinstance(value, str):
            signature[name] = value
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32" if abs(value) < 2**31 else "i64"
        if str(value).startswith("*") or (isinstance(value, int) and value % 16 == 0 and name not in not_specialised):
            attributes[position,] = [["tt.divisibility", 16]]
    return signature, constants, attributes


def compiled_kernel(case: Case):
    """What Triton's compiler makes of a case: its metadata, and in asm the PTX and the cubin. Needs a process with the interpreter off."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction

    kernel = KERNELS[case.kernel]
    options = {"num_warps": case.num_warps}
    if isinstance(kernel, GluonJITFunction):  # whose stages are its own affair
        source = GluonASTSource
    else:
        source, options = ASTSource, options | {"num_stages": case.num_stages}
    described = specialise(case, kernel.arg_names, kernel.do_not_specialize)
    return triton.compile(source(kernel, *described), target=GPUTarget("cuda", case.capability, 32), options=options)


def compile_case(case: Case) -> Row:
    """Compile one case. Needs a process that was started with Triton's interpreter off (compile_cases starts such)."""
    log = io.StringIO()
    with contextlib.redirect_stdout(log):  # where Triton prints ptxas's words
        compiled = compiled_kernel(case)
    registers, spills, warnings = read_ptxas(log.getvalue())
    return Row(
        case.kernel, case.title, case.capability, case.num_warps, case.num_stages, registers, compiled.metadata.shared, spills, warnings
    )


def read_ptxas(log: str) -> tuple[int, int, list[str]]:
    """(registers a thread, bytes spilled a thread, warnings of serialised wgmma) in what `ptxas -v` says."""
    registers = re.search(r"Used (\d+) registers", log)
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", log)
    if registers is None or not spills:
        raise RuntimeError(f"ptxas says nothing of registers and spills: {log!r}")
    return int(registers[1]), sum(map(int, spills)), [code for code in SERIALISED if code in log]


def compile_cases(todo: Sequence[Case]) -> list[Row]:
    """The row of each case, in their order, compiled now. In WORKERS processes, with a cache of their own that is thrown away."""
    with tempfile.TemporaryDirectory() as cache, ThreadPoolExecutor(WORKERS) as pool:
        environment = os.environ | {hardware.INTERPRETER_SWITCH: "0", "TRITON_CACHE_DIR": cache, "TRITON_DUMP_PTXAS_LOG": "1"}
        order = random.Random(0).sample(range(len(todo)), len(todo))  # so that every worker gets as many of the slow ones
        parts = [order[i::WORKERS] for i in range(WORKERS)]
        rows = pool.map(lambda part: run_worker([todo[i] for i in part], environment), parts)
        found = {i: row for part, done in zip(parts, rows, strict=True) for i, row in zip(part, done, strict=True)}
    return [found[i] for i in range(len(todo))]


def run_worker(todo: Sequence[Case], environment: dict[str, str]) -> list[Row]:
    """The rows of `todo`, from a process of its own."""
    command = [sys.executable, "-m", "fa_tutorial.compile_report", "--worker"]
    run = subprocess.run(command, input=json.dumps([asdict(case) for case in todo]), capture_output=True, text=True, env=environment)
    if run.returncode:
        raise RuntimeError(f"compiling failed:\n{run.stdout[-2000:]}\n{run.stderr[-4000:]}")
    return [Row(**row) for row in json.loads(run.stdout)]


# ---------------------------------------------------------------- judging and printing


def accepted_spills(row: Row) -> int:
    """The bytes that this row's case may spill."""
    named = (
        spill for (kernel, words), spill in ACCEPTED_SPILLS.items() if kernel == row.kernel and set(words.split()) <= set(row.case.split())
    )
    return max(named, default=SMALL_SPILL)


def faults(row: Row) -> list[str]:
    """What is wrong with a default configuration; empty where nothing is."""
    found = []
    limit = SHARED_LIMITS[row.capability]
    if row.shared > limit:
        found.append(f"asks for {row.shared} bytes of shared memory, the card has {limit}")
    if row.spills > accepted_spills(row):
        found.append(f"spills {row.spills} bytes")
    if row.warnings:
        found.append(f"wgmma is serialised ({', '.join(row.warnings)})")
    return found


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    heads = ("kernel", "case", "capability", "warps", "stages", "registers", "shared bytes", "spilled bytes", "faults")
    lines = [line_of(heads), line_of(["---"] * len(heads))]
    for row in rows:
        wrong = "; ".join(faults(row)) or ("accepted" if row.spills else "none")
        run = (f"{row.capability} ({CARDS[row.capability]})", row.num_warps, row.num_stages)
        lines.append(line_of((row.kernel, row.case, *run, row.registers, row.shared, row.spills, wrong)))
    return "\n".join(lines) + "\n"


def line_of(cells: Sequence) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def as_json(rows: Sequence[Row]) -> str:
    """{"triton": version, "shared_limits": bytes by capability, "rows": [Row's fields and its faults]}."""
    found = [json.dumps(asdict(row) | {"faults": faults(row)}) for row in rows]
    head = f'{{"triton": {json.dumps(metadata.version("triton"))}, "shared_limits": {json.dumps(SHARED_LIMITS)}, "rows": [\n'
    return head + ",\n".join(found) + "\n]}\n"


WRITERS = {".json": as_json, ".md": markdown}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the table to the file that is named. Returns 1 where a row has a fault, which is then printed; else 0."""
    parser = argparse.ArgumentParser(prog="python -m fa_tutorial.compile_report", description=__doc__.splitlines()[0])
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("file", type=Path, nargs="?", help="where the table goes: a name ending in .json or .md")
    where.add_argument("--store", action="store_true", help=f"bring {STORE.name} up to date: compile what it does not hold")
    where.add_argument("--worker", action="store_true", help="compile the cases that stdin holds as JSON: what this starts for itself")
    options = parser.parse_args(arguments)
    if options.worker:
        json.dump([asdict(compile_case(Case(**case))) for case in json.load(sys.stdin)], sys.stdout)
        return 0
    if not options.store and options.file.suffix not in WRITERS:
        parser.error(f"FILE must end in {' or '.join(WRITERS)}, got {options.file}")
    todo = [case for capability in SHARED_LIMITS for case in cases(capability)]
    rows = rows_of(todo)
    if options.store:
        keep(todo, rows)
    else:
        options.file.write_text(WRITERS[options.file.suffix](rows), encoding="utf-8")
    wrong = [f"{row.kernel}, {row.case}, capability {row.capability}: {'; '.join(faults(row))}" for row in rows if faults(row)]
    print(f"{len(rows)} compiles, {len(wrong)} with faults: {STORE if options.store else options.file}", *wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
