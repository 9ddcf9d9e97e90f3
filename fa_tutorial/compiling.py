"""Compile kernels for GPUs that aren't there, and read what ptxas says.

Triton and its ptxas compile for any NVIDIA GPU on any machine with Linux. The launchers themselves are called, on
tensors without memory (device "meta"), and each launch is compiled instead. That takes a process that was started with
Triton's interpreter off: `in_a_process` starts one.
"""

import contextlib
import functools
import io
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch
import triton.language as tl

from fa_tutorial import forward, hardware, layout, matmul, tuned
from fa_tutorial.source import globals_of, source_of
from fa_tutorial.tiles import TileConfig, heads

# Bytes of shared memory that one block may ask for (opt-in), by compute capability. CUDA programming guide, table of
# technical specifications. T4; A100; RTX 30xx; RTX 40xx; H100, H200; B200; RTX 50xx.
SHARED_LIMITS = {75: 65_536, 80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}
# ptxas waits for a wgmma before it starts the next: right, and slow
SERIALISED = ("C7510", "C7511", "C7512", "C7514", "C7515", "C7517")


class Row(NamedTuple):
    """What a compile gave. registers: a thread's; shared: bytes a block; spills: bytes stored and loaded a thread;
    warnings: of SERIALISED."""

    kernel: str
    case: str
    capability: int
    num_warps: int
    num_stages: int
    registers: int
    shared: int
    spills: int
    warnings: tuple[str, ...]


Call = tuple[str, Callable[[], Any]]  # a case in words, and the call of a launcher
HEADS, LENGTH = 16, 4096


def inputs(dtype: torch.dtype, D: int, S: int = LENGTH) -> list[torch.Tensor]:
    """q, k, v, o, do and lse without memory: (1, HEADS, S, D) each, and (1, HEADS, S)."""
    x = torch.empty(1, HEADS, S, D, dtype=dtype, device="meta")
    return [*(torch.empty_like(x) for _ in range(5)), torch.empty(1, HEADS, S, device="meta")]


@contextlib.contextmanager
def compiling_for(capability: int) -> Iterator[list[tuple[str, Any, str]]]:
    """Within, launches compile for this capability and run nothing. Yields the list of (kernel's name, compiled kernel,
    what ptxas said)."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    launched = []
    run = JITFunction.run

    def compile_only(kernel, *arguments, grid, warmup, **options):
        log = io.StringIO()
        with contextlib.redirect_stdout(log):  # where Triton prints ptxas's words
            compiled = run(kernel, *arguments, grid=grid, warmup=True, **options)
        name = f"{kernel.__module__.removeprefix('fa_tutorial.')}.{kernel.__name__}"
        launched.append((name, compiled, log.getvalue()))

    card = hardware.Card("stand-in", capability, SHARED_LIMITS[capability], multiprocessors=132)
    patched = dict.fromkeys(("card", "card_of"), lambda _: card) | {"require_kernel_device": lambda tensor, name: None}
    modules = [module for key, module in sys.modules.items() if key.startswith("fa_tutorial")]
    stand_in = {
        "get_current_target": lambda: GPUTarget("cuda", capability, 32),
        "get_current_device": lambda: capability,  # so that every capability has compiled kernels of its own
        "get_current_stream": lambda device: 0,
    }
    driver.set_active(SimpleNamespace(**stand_in))
    try:
        with contextlib.ExitStack() as patches:
            patches.enter_context(mock.patch.object(JITFunction, "run", compile_only))
            for module, name in itertools.product(modules, patched):
                if name in vars(module):  # hasattr would import what a module imports when it's asked for
                    patches.enter_context(mock.patch.object(module, name, patched[name]))
            yield launched
    finally:
        tuned.launching._prepared.clear()
        tuned.descriptors.can_use_tma.cache_clear()


def compiled_by(launch: Callable[..., Any], *args: Any, **options: Any) -> tuple[Any, str]:
    """The last kernel that launch(*args, **options) launches, compiled for Hopper, and what ptxas said."""
    with compiling_for(hardware.HOPPER_CAPABILITY) as launched:
        launch(*args, **options)
    return launched[-1][1:]


def compile_calls(capability: int, calls: Iterable[Call]) -> Iterator[Row]:
    """A row for each different kernel that the calls launch."""
    seen = set()
    with compiling_for(capability) as launched:
        for case, call in calls:
            call()
            tuned.launching._prepared.clear()
            for kernel, compiled, log in launched:
                if compiled.hash not in seen:
                    seen.add(compiled.hash)
                    of, (registers, spills, warnings) = compiled.metadata, read_ptxas(log)
                    made = of.num_warps, of.num_stages, registers, of.shared, spills, warnings
                    yield Row(kernel, case, capability, *made)
            launched.clear()


def read_ptxas(log: str) -> tuple[int, int, tuple[str, ...]]:
    """(registers a thread, bytes spilled a thread, warnings of serialised wgmma) in what `ptxas -v` says."""
    registers = re.search(r"Used (\d+) registers", log)
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", log)
    if registers is None or not spills:
        raise RuntimeError(f"ptxas says nothing of registers and spills: {log!r}")
    return int(registers[1]), sum(map(int, spills)), tuple(code for code in SERIALISED if code in log)


# A process that imports once, and then forks for each code that it's told.
SERVER = """
import contextlib, json, os, sys, traceback

with contextlib.suppress(Exception):  # without Triton the code itself says so
    from fa_tutorial import sass
    from triton.runtime.cache import triton_key

    triton_key()  # the digest of its files, 0.3 s, which it keeps
    import torch.fx.experimental.symbolic_shapes  # sympy, 0.4 s, which tensors without memory ask for
for line in sys.stdin:
    environment, sys.path[:], folder, code = json.loads(line)
    if not os.fork():
        status = 1
        try:
            os.chdir(folder)
            for number, name in enumerate((os.devnull, "said", "warned")):
                os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
            os.environ.clear()
            os.environ.update(environment)
            exec(code, {"json": json, "__name__": "__main__"})
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    print(os.wait()[1], flush=True)
"""
_servers = threading.local()


def in_a_process(code: str) -> Any:
    """What `code` prints in its last line, JSON, where Triton compiles everything anew. `code` has json, and imports
    what this process could. RuntimeError with its words where it fails. Its process is a fork of one that has imported
    torch and Triton, and that waits for this thread's next code."""
    settings = {hardware.INTERPRETER_SWITCH: "0", "TRITON_ALWAYS_COMPILE": "1", "TRITON_DUMP_PTXAS_LOG": "1"}
    environment = os.environ | settings
    process, server = getattr(_servers, "mine", (None, None))
    if process != os.getpid() or server.poll() is not None:
        path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        server = subprocess.Popen(
            [sys.executable, "-c", SERVER], env=environment | path, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        _servers.mine = os.getpid(), server
    with tempfile.TemporaryDirectory() as folder:
        try:
            print(json.dumps([environment, sys.path, folder, code]), file=server.stdin, flush=True)
            status = server.stdout.readline()
        except BaseException:  # an interrupt: what it answers later would be taken for the next code's
            server.kill()
            raise
        if not status:
            raise RuntimeError("the process that compiles was ended")
        said, warned = (Path(folder, name).read_text(encoding="utf-8") for name in ("said", "warned"))
    if status != "0\n":
        raise RuntimeError(f"{said[-2000:]}\n{warned[-4000:]}")
    return json.loads(said.splitlines()[-1])


def of_a_kernel(course: Any, of: Callable | None = None) -> Callable:
    """Decorates function(kernel, *args), JSON's, which runs where Triton compiles, with `kernel` made anew, with the
    functions, constants and modules that it names. Where that fails a line says so, and `course` takes its place. args:
    as repr tells them. of: what is made of each row that the function gives."""

    def decorated(function: Callable) -> Callable:
        @functools.wraps(function)
        def in_its_process(kernel: Any, *args: Any, **options: Any) -> Any:
            name = f"{function.__module__}.{function.__name__}"
            code = f"import {function.__module__}\nfound = inspect.unwrap({name})(kernel, *{args!r}, **{options!r})"
            try:
                found = in_a_process(f"{_made_anew(kernel, course)}{code}\nprint(json.dumps(found))")
            except RuntimeError as error:
                if kernel is course:
                    raise
                why = str(error).splitlines()[-1]
                print(f"your kernel doesn't compile, so these are the course's numbers: {why}")
                return in_its_process(course, *args, **options)
            return [of(*row) for row in found] if of else found

        return in_its_process

    return decorated


def _made_anew(kernel: Any, course: Any) -> str:
    """Code that makes `kernel`, with all that it names, in the course's module."""
    kernels = list(dict.fromkeys(_with_its_own(kernel)))
    named = {name: value for one in kernels for name, value in globals_of(one).items()}
    imports = [f"import {value.__name__} as {name}" for name, value in named.items() if isinstance(value, ModuleType)]
    constexprs = {name: value.value for name, value in named.items() if isinstance(value, tl.constexpr)}
    constants = [f"{name} = tl.constexpr({value!r})" for name, value in constexprs.items()]
    text = "\n".join(["from math import inf", *imports, *constants, *map(source_of, kernels)])
    module = course.fn.__module__
    return f"""
import inspect, {module}
from fa_tutorial.source import defined
from fa_tutorial.tiles import TileConfig

kernel = defined({text!r}, vars({module}))[{kernel.fn.__name__!r}]
"""


def _with_its_own(kernel: Any) -> Iterator[Any]:
    """The jitted functions that `kernel` calls and that aren't the package's, and at last the kernel."""
    for called in globals_of(kernel).values():
        if hasattr(called, "fn") and not called.fn.__module__.startswith(("fa_tutorial.", "triton.")):
            yield from _with_its_own(called)
    yield kernel


@of_a_kernel(layout.softmax_kernel)
def softmax_registers(kernel: Any, launches: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """(registers, bytes spilled) of a thread of a softmax_kernel in fp32 on an H200, for each (columns, warps)."""
    found = []
    for columns, num_warps in launches:
        x = torch.empty(64, columns, device="meta")
        strides = columns, columns, columns
        _, log = compiled_by(kernel[(64,)], x, x, *strides, BLOCK=columns, num_warps=num_warps)
        found.append(read_ptxas(log)[:2])
    return found


class Loop(NamedTuple):
    """How a loop multiplies. piece: the rows and columns of c that a warp computes by mma.sync, or four warps together
    by wgmma. flops_per_byte: by count, of what mma.sync's warps copy from shared memory; None for wgmma, which copies
    nothing. spilled: bytes a thread."""

    instruction: str
    piece: tuple[int, int]
    flops_per_byte: float | None
    spilled: int


PTX_LOOP = re.compile(r"(\$L\w+):.*?bra\S*\s+\1;", re.DOTALL)


@of_a_kernel(matmul.matmul_kernel, lambda name, piece, *rest: Loop(name, tuple(piece), *rest))
def matmul_loops(kernel: Any, launches: Sequence[tuple[int, int, int, str]]) -> list[Loop]:
    """What an H200 gets for a matmul_kernel in fp16, for each (BLOCK_M, BLOCK_N, warps, instruction): "mma.sync" is
    compiled with the launch option arch="sm80". BLOCK_K is 64, with three stages."""
    a, found = torch.empty(4096, 4096, dtype=torch.float16, device="meta"), []
    for block_m, block_n, num_warps, wanted in launches:
        options = {"arch": "sm80"} if wanted == "mma.sync" else {}
        options |= {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": 64, "num_warps": num_warps, "num_stages": 3}
        compiled, log = compiled_by(kernel[(1,)], *[a] * 3, *a.shape, len(a), *[*a.stride()] * 3, **options)
        loop = PTX_LOOP.search(compiled.asm["ptx"])[0]
        instruction, columns = re.search(r"(mma.sync|wgmma)\S+m\d+n(\d+)k\d+", loop).groups()
        warps = re.search(r"nvidia_mma<.*?warpsPerCTA = \[(\d+), (\d+)\]", compiled.asm["ttgir"])
        down, across = map(int, warps.groups())
        copies, products = loop.count("ldmatrix"), len(re.findall(r"mma.sync\S+m16n8k16", loop))
        piece = (64, int(columns)) if instruction == "wgmma" else (block_m // down, block_n // across)
        rate = products * 2 * 16 * 8 * 16 / (copies * 512) if copies else None  # a warp's ldmatrix copies 512 bytes
        found.append((instruction, piece, rate, read_ptxas(log)[1]))
    return found


@of_a_kernel(forward.flash_forward_kernel, Row)
def forward_rows(kernel: Any, cases: Sequence[tuple[str, int, TileConfig]]) -> list[Row]:
    """What a compile of a flash_forward_kernel gives on an H200, for each (dtype's name, D, tile)."""
    forward.flash_forward_kernel, calls = kernel, []
    for dtype, D, tile in cases:
        q, k, v, *_ = inputs(getattr(torch, dtype), D)
        calls.append(("", functools.partial(forward.flash_forward, q, k, v, False, 0.5, config=tile)))
    return list(compile_calls(hardware.HOPPER_CAPABILITY, calls))


@of_a_kernel(forward.flash_forward_kernel)
def loop_order(kernel: Any, stages: int) -> list[str]:
    """What an iteration of a flash_forward_kernel's loop without a mask does by Ampere's mma.sync, in the order of its
    PTX. fp16, D = 128, tiles of 128 rows and 32 keys, 4 warps, on an H200."""
    q, k, v, o, _, lse = inputs(torch.float16, 128)
    options = TileConfig(128, 32, 4, stages).launch() | {"IS_CAUSAL": False, "BLOCK_D": 128, "arch": "sm80"}
    tensors, sizes = (*map(heads, (q, k, v, o)), lse), (HEADS, HEADS, LENGTH, LENGTH, 128)
    compiled, _ = compiled_by(kernel[(1,)], *tensors, *sizes, 0.1, **options)
    steps, products = [], iter(("q kᵀ", "p v"))
    for step in re.findall(r"wait_group\s+\d+|commit_group|mma\.sync|ex2", PTX_LOOP.search(compiled.asm["ptx"])[0]):
        if step == "mma.sync":
            steps += [] if steps[-1] in ("q kᵀ", "p v") else [next(products)]
        elif step == "ex2":
            steps += [] if steps[-1] == "softmax" else ["softmax"]
        elif step == "commit_group":
            steps.append("begin a copy")
        else:
            left = int(step.split()[1])
            steps.append(f"wait until {left} copies are left" if left else "wait for all copies")
    return steps


def split_resources(kernel: Any, *stages: int) -> list[tuple[int, int]]:
    """(registers a thread, bytes of shared memory a block) of exercise 11.3's kernel, or 11.5's, on an H200.

    For each number of stages, as the chapter launches it: in fp16, with D = 128, and tiles and pages of 64 keys.
    """
    tensors = [heads(torch.empty(1, 8, n, 128, dtype=torch.float16, device="meta")) for n in (8, 128, 128)]
    o, lse = heads(torch.empty(2, 8, 8, 128, device="meta")), torch.empty(2, 8, 8, device="meta")
    paged = "PAGE_SIZE" in kernel.arg_names
    tables = [torch.empty(n, dtype=torch.int32, device="meta") for n in (2, 1)] if paged else []
    blocks = {"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_D": 128} | ({"PAGE_SIZE": 64} if paged else {})
    found = []
    for each in stages:
        call = (*tensors, *tables, o, lse, 8, 1, 8, 128, 128, 128**-0.5)  # 11.3's S, or 11.5's pages, then D
        compiled, log = compiled_by(kernel[(8, 2)], *call, **blocks, num_stages=each)
        found.append((read_ptxas(log)[0], compiled.metadata.shared))
    return found


def scored_loops(scores: dict[str, Any], D: int) -> dict[str, list[int]]:
    """[instructions in the whole tiles' loop, bytes of shared memory] of chapter 10's causal forward on an H200 in
    fp16, by name. scores: a score mod, which finds softcap (the page's: c), slopes and attn_mask in aux; None; Dropout.
    """
    of_mods = [
        (source_of(mod), mod.fn.__name__) if hasattr(mod, "fn") else ("", "Dropout" if mod else "")
        for mod in scores.values()
    ]
    code = f"""
import collections
import torch
from fa_tutorial import compiling, sass
from fa_tutorial.source import defined
from fa_tutorial.variants import forward, mods
from fa_tutorial.variants.tile_lists import BlockMask

(q, k, v, *_), S = compiling.inputs(torch.float16, {D}), compiling.LENGTH
bias, rng = q.new_empty(1, compiling.HEADS, S, S), q.new_empty(2, dtype=torch.int64)
given = dict(zip(("mask_b", "mask_h", "mask_i", "mask_j"), bias.stride())) | {{"attn_mask": bias, "c": 50.0}}
slopes = {{"slopes": q.new_empty(compiling.HEADS, dtype=torch.float32), "slope_stride": 0}}
fields = mods.Aux(offset=0, right=0, softcap=50.0)._asdict() | given | slopes
aux, found = collections.namedtuple("Aux", fields)(**fields), []
mask = BlockMask(mods.sliding_window, aux, 1, 1, S, S, q.device)
for text, name in {of_mods!r}:
    drop = mods.Dropout(rng, 2**28, 1.1, compiling.HEADS) if name == "Dropout" else None
    score = defined(text, vars(mods))[name] if text else None
    both = mods.Mods(score, mask=mods.sliding_window, drop=drop)
    kernel, _ = compiling.compiled_by(forward.variant_forward, q, k, v, both, aux, mask)
    found.append((len(sass.inner_loop(sass.sass_of(kernel))), kernel.metadata.shared))
print(json.dumps(found))
"""
    return dict(zip(scores, in_a_process(code), strict=True))
