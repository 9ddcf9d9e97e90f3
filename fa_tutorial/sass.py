"""What ptxas makes of the loops of chapters 8 and 9: the instructions of a reader's loop or step, and what is stored of
the course's by tools/machine_code.py. Any machine with Linux will do."""

import collections
import hashlib
import importlib.util
import itertools
import json
import re
import subprocess
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fa_tutorial import compiling, forward, hardware, hopper, tuned
from fa_tutorial.source import source_of
from fa_tutorial.tiles import TileConfig
from fa_tutorial.tuned import ideas, steps

STORED = Path(__file__).with_name("hopper_sass.json")
D = 128
# A wgmma; warpgroup_mma_wait; exp2; TMA's load of a tile; an mbarrier's wait and arrive; all warps of the warpgroup;
# the loop's branch.
KEPT = ("HGMMA", "WARPGROUP.DEPBAR", "MUFU.EX2", "UTMALDG", "SYNCS", "BAR", "BRA")
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_.]+)(.*)")
LABEL = re.compile(r"(\.L_x_\d+)")
PTX_LABEL, PTX_BRANCH = re.compile(r"(\$L__BB\w+):"), re.compile(r"\bbra(?:\.uni)?\s+(\$L__BB\w+)")
PTX_KEPT = re.compile(r"wgmma\.(mma_async)|wgmma\.(wait_group)\S*\s+(\d+)|(ex2)\.")
COMMENT = re.compile(r"/\*.*?\*/")
REGISTER = re.compile(r"(?<![A-Z])R(\d+)")


def loops(sass: str) -> list[list[str]]:
    """The instructions of each loop, from its label to the branch back, in nvdisasm's text."""
    labels, instructions, found = {}, [], []
    for line in sass.splitlines():
        if line.startswith(".L"):
            labels[line.rstrip(":")] = len(instructions)
        elif match := INSTRUCTION.search(line):
            instructions.append(match[1])
            target = LABEL.search(match[2])
            if match[1].startswith("BRA") and target and target[1] in labels:
                found.append(instructions[labels[target[1]] :])
    return found


def inner_loop(sass: str) -> list[str]:
    """The shortest loop with matmuls and exponentials: the blocks without a mask."""
    wanted = (("HGMMA", "HMMA"), "MUFU.EX2")
    return min((loop for loop in loops(sass) if all(any(op.startswith(k) for op in loop) for k in wanted)), key=len)


class Line(NamedTuple):
    """An instruction: its name and its text."""

    name: str
    text: str


def loop_lines(sass: str) -> list[Line]:
    """The inner loop in nvdisasm's text."""
    found = [(INSTRUCTION.search(line), line) for line in sass.splitlines()]
    lines = [Line(match[1], " ".join(COMMENT.sub("", line).replace(";", "").split())) for match, line in found if match]
    loop, names = inner_loop(sass), [line.name for line in lines]
    start = next(i for i in range(len(names)) if names[i : i + len(loop)] == loop)
    return lines[start : start + len(loop)]


def of_one_score(loop: Sequence[Line]) -> list[Line]:
    """Of a loop's instructions those that have to do with one score: from the register in which q kᵀ leaves it, to its
    p in fp16 and in the row's sum."""
    matmul = next(i for i, line in enumerate(loop) if line.name.startswith("HGMMA"))
    score = f"R{int(REGISTER.search(loop[matmul].text)[1]) + 2}"
    held, found = {score}, []
    for line in loop[next(i for i, line in enumerate(loop) if line.name.startswith("WARPGROUP.DEPBAR")) :]:
        registers = [f"R{number}" for number in REGISTER.findall(line.text)]
        written = [] if line.name.startswith("FSETP") else registers[:1]
        if held & set(registers[len(written) :]):
            found.append(line)
            if line.name.startswith(("FMUL", "FFMA", "MUFU")):
                held.update(written)
        elif not line.text.startswith("@"):
            held.difference_update(written)
    return found


def loop_of(step: str, tile: TileConfig, D: int) -> list[Line]:
    """The loop of chapter 8's kernel after `step`, full, compiled here. As `compiled`, with no GPU."""
    made = _in_a_process(f"sass._step_loop({step!r}, {astuple(tile)!r}, {D})", "attend")
    return [Line(*line) for line in made]


def _step_loop(step: str, tile: tuple[int, ...], D: int) -> list[Line]:
    return loop_lines(sass_of(_compiled_step(D, False, step, tile)[0]))


def _compiled_step(D: int, is_causal: bool, step: str, tile: tuple[int, ...]) -> tuple[Any, str]:
    qkv = compiling.inputs(torch.float16, D)[:3]
    return compiling.compiled_by(steps.flash_forward, *qkv, is_causal, 0.5, step=step, tile=TileConfig(*tile))


def print_idea(idea: str, tile: TileConfig, D: int, programs: Callable[[int, int, int], int]) -> None:
    """Print what ptxas makes of the loop of one of tuned.ideas.IDEAS, and how many programs fit: programs(num_warps,
    registers, shared_bytes). Compiled here, with no GPU."""
    _, loop, _, *room = _idea(idea, tile, D)
    matmuls, waits, spills = (sum(name.startswith(op) for name in loop) for op in ("HGMMA", "WARPGROUP.DEPBAR", "LDL"))
    words = f"D = {D:3}, {f'{tile.block_m}x{tile.block_n}':6}, {idea:7}: {len(loop)} instructions, {matmuls} HGMMA,"
    print(words, f"waits for them: {waits}, spills loaded: {spills}, programs: {programs(tile.num_warps, *room)}")


def print_idea_in_order(idea: str, tile: TileConfig, D: int) -> None:
    """Print the order of matmuls, waits and exponentials in the idea's loop in Triton's PTX, and what ptxas says of
    matmuls that it serialised."""
    ptx, _, said, *_ = _idea(idea, tile, D)
    print("Triton's PTX:", ", ".join(f"{name} ({many})" if many > 1 else name for name, many in ptx))
    print(textwrap.fill(f"ptxas says: {said or 'nothing'}", 100))


@cache
def _idea(idea: str, tile: TileConfig, D: int) -> list[Any]:
    return _in_a_process(f"sass._idea_made({idea!r}, {astuple(tile)!r}, {D})", "idea_kernel")


def _idea_made(idea: str, tile: tuple[int, ...], D: int) -> tuple[list[tuple[str, int]], list[str], str, int, int]:
    qkv = compiling.inputs(torch.float16, D)[:3]
    kernel, log = compiling.compiled_by(ideas.run, *qkv, idea, TileConfig(*tile))
    said = re.search(r"\(C75.*?(?= in the function)", log)
    words = " ".join(said[0].split()) if said else ""
    room = compiling.read_ptxas(log)[0], kernel.metadata.shared
    return ptx_events(kernel.asm["ptx"]), inner_loop(sass_of(kernel)), words, *room


def print_one_score(*names: str) -> None:
    """Print of_one_score of chapter 8's kernels after these steps, D = 64, beside each other."""
    columns = [[name, *(line.text for line in of_one_score(loop_of(name, steps.TILE, 64)))] for name in names]
    for row in itertools.zip_longest(*columns, fillvalue=""):
        print("    ".join(f"{text:38}" for text in row).rstrip())


def _names_of_loop(compiled: Any) -> dict[str, int]:
    """How many instructions of each name the loop without a mask has."""
    return collections.Counter(name.split(".")[0] for name in inner_loop(sass_of(compiled)))


@compiling.of_a_kernel(forward.flash_forward_kernel)
def forward_loop(kernel: Any, D: int, tile: TileConfig) -> dict[str, int]:
    """How many instructions of each name the loop without a mask has, of a flash_forward_kernel in fp16 on an H200:
    {"FMUL": 166, …}."""
    forward.flash_forward_kernel = kernel
    q, k, v, *_ = compiling.inputs(torch.float16, D)
    return _names_of_loop(compiling.compiled_by(forward.flash_forward, q, k, v, False, 0.5, config=tile)[0])


def descriptor_loops(kernel: Any) -> list[dict[str, Any]]:
    """What becomes of exercise 8.3's kernel in fp16 on an H200 with chapter 8's tile of 64x64, for D = 64 and 128:
    {"D", "registers": a thread's, "loop": how many instructions of each name}."""
    found, sizes = [], (compiling.HEADS, compiling.LENGTH, compiling.LENGTH)
    tile = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3}
    for D in (64, 128):
        on_tiles = [tuned.descriptors.descriptor_template(x, 64)(x) for x in compiling.inputs(torch.float16, D)[:4]]
        compiled, log = compiling.compiled_by(kernel[(1,)], *on_tiles, *sizes, 0.1, D=D, **tile)
        found.append({"D": D, "registers": compiling.read_ptxas(log)[0], "loop": _names_of_loop(compiled)})
    return found


def print_stop(loop: Sequence[Line]) -> None:
    """Print where a loop issues matmuls, waits for them and exponentiates: the first of each run, and how many."""
    kinds = ("HGMMA", "WARPGROUP.DEPBAR", "MUFU.EX2")
    kept = [line for line in loop if line.name.startswith(kinds)]
    for _, run in itertools.groupby(kept, lambda line: line.name.split(".")[0]):
        first, *others = run
        print(f"{first.text:60} {f'and {len(others)} more' if others else ''}".rstrip())


def events(loop: list[str]) -> list[tuple[str, int]]:
    """The instructions of KEPT in order, runs of one as (name, how many)."""
    return _runs(next((name for name in KEPT if op.startswith(name)), None) for op in loop)


def _runs(names: Iterable[str | None]) -> list[tuple[str, int]]:
    return [(name, len(list(run))) for name, run in itertools.groupby(filter(None, names))]


def ptx_events(ptx: str) -> list[tuple[str, int]]:
    """As `events`, of PTX: of the shortest loop with matmuls and exponentials those, and the waits for matmuls."""
    labels, kept, found = {}, [], []
    for line in ptx.splitlines():
        if match := PTX_LABEL.match(line.strip()):
            labels[match[1]] = len(kept)
        elif match := PTX_KEPT.search(line):
            kept.append(" ".join(filter(None, match.groups())))
        elif (match := PTX_BRANCH.search(line)) and match[1] in labels:
            found.append(kept[labels[match[1]] :])
    wanted = (loop for loop in found if {"mma_async", "ex2"} <= set(loop))
    return _runs(min(wanted, key=len, default=[]))


HEAD = """
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from fa_tutorial.hopper.ladder import left_operand, mbarrier, rescaled, softmax_step, warpgroup_mma, warpgroup_mma_wait

"""

BY_TURNS = """

@gluon.jit
def by_turns(q, k, v, full, empty, zeros, m, l, acc, scale_log2, blocks):
    return {}(q, k, v, full, empty, empty, zeros, m, l, acc, scale_log2, blocks, 0)
"""


def compiled(attend) -> dict[str, Any]:
    """What becomes of a loop that takes the place of ladder.attend, D = 128: {"instructions", "events", "maxima"} as
    stored() has them; "counts" of KINDS; "around", where they stand; "spills"; "ptx", a loop whose "events" are
    ptx_events.

    Compiles for capability 9.0, with D = 64 and 128, in a process of its own, with no GPU. ValueError with the
    compiler's words where it refuses. A loop with turns is consumer 0's; their barriers stand for others.
    """
    name = attend.__name__
    by_turns = BY_TURNS.format(name) if "turns" in attend.arg_names else ""
    source = f"{HEAD}{source_of(attend)}\n{by_turns}"
    return _in_a_process(f"sass._loop_with({'by_turns' if by_turns else name!r})", name, source)


def compiled_backward(source: str) -> dict[str, Any]:
    """What becomes of the loop over blocks in a changed hopper.backward, D = 128, full: {"instructions", "events"} as
    stored() has them, and "spills". Compiles as `compiled` does."""
    return _in_a_process("sass._backward_with_mine()", "one_block", source)


def compiled_or(mine, ours) -> tuple[Any, dict[str, Any]]:
    """(the loop to go on with, what becomes of it): `mine` where it compiles; else `ours`, and say why."""
    try:
        return mine, compiled(mine)
    except (ValueError, RuntimeError) as refused:
        print(refused, "We go on with the course's loop.", sep="\n")
        if "layout" in str(refused).lower() and "warpgroup_mma_accumulator" not in str(refused):
            print("left_operand and rescaled convert layouts.")
        return ours, compiled(ours)


def has_overlap(loop: dict[str, Any]) -> bool:
    """True where a loop that `compiled` or `stored` gives exponentiates while a matmul is under way."""
    under_way = False
    for name, _ in loop["events"]:
        under_way = name == "HGMMA" or (under_way and name != "WARPGROUP.DEPBAR")
        if under_way and name == "MUFU.EX2":
            return True
    return False


def print_loop(name: str, loop: dict[str, Any]) -> None:
    """The events of a loop that `compiled` or `stored` gives, in order."""
    names = (event if n == 1 else f"{n}\N{NO-BREAK SPACE}{event}" for event, n in loop["events"])
    print(f"{name}, {loop['instructions']} instructions:" if "instructions" in loop else f"{name}:")
    print(textwrap.fill(", ".join(names), 100, initial_indent="    ", subsequent_indent="    "))


def counted(step: str, tiles: dict[int, TileConfig] | None = None, **functions) -> list[dict[str, Any]]:
    """What becomes of chapter 8's kernel after `step`, one of steps.STEPS, full: rows as steps_sm90.json has them, for
    D = 64 and 128. tiles: D -> the tile, steps.TILE unless given. functions: jitted functions that take the place of
    the step's own: attend=mine. As `compiled`, with no GPU."""
    tile_of = dict.fromkeys((64, 128), steps.TILE) | (tiles or {})
    own = [f"{source_of(function)}\n{name} = {function.__name__}" for name, function in functions.items()]
    kinds = [(D, False, step, astuple(tile)) for D, tile in tile_of.items()]
    name = next((function.__name__ for function in functions.values()), "attend")
    source = "\n\n\n".join([steps.file_of(step).read_text(), *own])
    return _in_a_process(f"sass.step_rows({kinds!r}, {step!r})", name, source)


def _in_a_process(expression: str, name: str, source: str = "") -> Any:
    """The value of `expression` where Triton compiles, and `source` is a module, mine. name: the function whose line an
    error quotes."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "mine.py").write_text(source, encoding="utf-8")
        code = f"import sys; sys.path.append({folder!r}); from fa_tutorial import sass"
        made = compiling.in_a_process(f"{code}; print(json.dumps(sass._or_refused(lambda: {expression}, {name!r})))")
    if isinstance(made, dict) and "refused" in made:
        raise ValueError(f"{name} does not compile: {made['refused']}")
    return made


def _or_refused(make: Callable[[], Any], name: str) -> Any:
    try:
        return make()
    except Exception as error:
        return {"refused": _in_words(error, f"def {name}(")}


def _in_words(error: BaseException, head: str) -> str:
    """The first of a chain of compile errors, with the line of the function that begins with `head`."""
    line = ""
    while True:
        if head in (source := getattr(error, "src", None) or ""):
            line = f", in “{source.splitlines()[error.node.lineno - 1].strip()}”"
        if (before := error.__cause__ or error.__context__) is None:
            return f"{getattr(error, 'error_message', None) or error}{line}"
        error = before


def _loop_with(name: str) -> dict[str, Any]:
    attend = getattr(importlib.import_module("mine"), name)
    for d in (64, D):  # their layouts differ
        qkv = compiling.inputs(torch.float16, d)[:3]
        kernel, log = compiling.compiled_by(hopper.ladder.flash_forward, *qkv, 0.5, attend=attend)
    loop = inner_loop(sass_of(kernel))
    return {
        "instructions": len(loop),
        "events": events(loop),
        "counts": counts(loop),
        "around": around(loop),
        "maxima": around(loop, "WARPGROUP.DEPBAR")["FMNMX"],
        "spills": compiling.read_ptxas(log)[1],
        "ptx": {"events": ptx_events(kernel.asm["ptx"])},
    }


def _backward_with_mine() -> dict[str, Any]:
    q, k, v, *rest = compiling.inputs(torch.float16, D)
    with compiling.compiling_for(hardware.HOPPER_CAPABILITY) as launched:
        importlib.import_module("mine").flash_backward(q, k, v, *rest, None, False, 0.5)
    _, kernel, log = launched[1]  # between what prepares and what converts
    loop = inner_loop(sass_of(kernel))
    return {"instructions": len(loop), "events": events(loop), "spills": compiling.read_ptxas(log)[1]}


def sass_of(compiled) -> str:
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        return subprocess.check_output([knobs.nvidia.nvdisasm.path, "-c", file.name], text=True)


def step_rows(kinds: Iterable[tuple[int, bool, str, tuple[int, ...]]], mine: str = "") -> list[dict[str, Any]]:
    """_step_row of each (D, is_causal, step, tile); the module `mine` takes the place of the step of this name."""
    if mine:
        steps.STEPS[mine] = importlib.util.find_spec("mine").origin
    return [_step_row(*kind) for kind in kinds]


# Kinds of instructions that a step's row counts: matmuls, exponentials, the softmax's arithmetic, loads of spilled
# registers.
KINDS = ("HGMMA", "MUFU.EX2", "FMNMX", "FADD", "FFMA", "FMUL", "FSETP", "ISETP", "FSEL", "F2FP", "LDL")


def _step_row(D: int, is_causal: bool, step: str, tile: tuple[int, ...]) -> dict[str, Any]:
    """Registers a thread, and those spilled, as the driver counts them: the stack frame; bytes of shared memory.
    Instructions: all, and those of the loop without a mask, of them those of KINDS. "code" is a digest of that loop's
    instructions in their order."""
    compiled, log = _compiled_step(D, is_causal, step, tile)
    sass = sass_of(compiled)
    loop = inner_loop(sass)
    spilled = int(re.search(r"(\d+) bytes stack frame", log)[1]) // 4
    row = {"step": step, "tile": tile, "D": D, "is_causal": is_causal}
    row |= {"registers": compiling.read_ptxas(log)[0], "spilled_registers": spilled}
    row |= {"shared_bytes": compiled.metadata.shared, "instructions": len(INSTRUCTION.findall(sass)), "loop": len(loop)}
    return row | {"code": hashlib.sha256(" ".join(loop).encode()).hexdigest()[:8]} | counts(loop)


def counts(loop: Sequence[str]) -> dict[str, int]:
    """How many instructions of each of KINDS a loop has."""
    return {name: sum(op.startswith(name) for op in loop) for name in KINDS}


def around(loop: Sequence[str], middle: str = "MUFU.EX2") -> dict[str, list[int]]:
    """How many instructions of each of KINDS stand before the first `middle`, between the first and the last, and
    after the last."""
    places = [place for place, op in enumerate(loop) if op.startswith(middle)]
    parts = loop[: places[0]], loop[places[0] : places[-1] + 1], loop[places[-1] + 1 :]
    return {name: [sum(op.startswith(name) for op in part) for part in parts] for name in KINDS}


def stored() -> dict[str, Any]:
    """The loops of chapter 9 as they are stored: "triton", its version; "fingerprints", the kernels'; "D"; and for each
    loop {"instructions": of the loop, "events": events(), "maxima": of its FMNMX how many stand before the first wait
    for matmuls, between it and the last, and after that}."""
    return json.loads(STORED.read_text(encoding="utf-8"))
