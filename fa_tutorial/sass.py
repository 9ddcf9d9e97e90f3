"""What ptxas makes of the loops of chapters 8 and 9: `python -m fa_tutorial.sass FOLDER`, on any machine with Linux.

It writes FOLDER/tuned/steps_sm90.json, counts for each step of chapter 8, and FOLDER/hopper_sass.json: of chapter 9's loops over blocks that need no mask,
the instructions that issue matmuls, wait, exponentiate or synchronise, in their order. `compiled` and `counted` do the same for a reader's loop and step.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import itertools
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from fa_tutorial import compile_report, hardware, hopper
from fa_tutorial.source import source_of, unwrapped
from fa_tutorial.tiles import TileConfig
from fa_tutorial.tuned import steps

STORED = Path(__file__).with_name("hopper_sass.json")
D = 128
# Of the ladder, of the forward that is used, of chapter 8's, of the backward.
LOOPS = ("attend", "attend_overlapped", "attend_one_by_one", "order", "tuned", "backward")
# A wgmma; warpgroup_mma_wait; exp2; an mbarrier's wait and arrive; all warps of the warpgroup; the loop's branch.
KEPT = ("HGMMA", "WARPGROUP.DEPBAR", "MUFU.EX2", "SYNCS", "BAR", "BRA")
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_.]+)(.*)")
LABEL = re.compile(r"(\.L_x_\d+)")


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
    wanted = (loop for loop in loops(sass) if any(op.startswith("HGMMA") for op in loop) and any(op.startswith("MUFU.EX2") for op in loop))
    return min(wanted, key=len)


def events(loop: list[str]) -> list[tuple[str, int]]:
    """The instructions of KEPT in order, runs of one as (name, how many)."""
    names = (next((name for name in KEPT if op.startswith(name)), None) for op in loop)
    return [(name, len(list(run))) for name, run in itertools.groupby(filter(None, names))]


def disassembled(loop: str) -> str:
    """SASS of the kernel with one of LOOPS, D = 128, full. Needs a process with Triton's interpreter off."""
    q, k, v, *rest = compile_report.inputs(torch.float16, D)
    with compile_report.compiling_for(hardware.HOPPER_CAPABILITY) as launched:
        if loop == "backward":
            hopper.flash_backward(q, k, v, *rest, None, False, 0.5)
        elif loop == "tuned":
            steps.flash_forward(q, k, v, False, 0.5, step="order", tile=steps.LARGER[D])
        elif loop in hopper.forward.STEPS:
            hopper.flash_forward(q, k, v, False, 0.5, step=hopper.forward.STEPS[loop])
        else:
            hopper.ladder.flash_forward(q, k, v, 0.5, attend=getattr(hopper.ladder, loop))
    return sass_of(launched[loop == "backward"][1])  # its launches: prepare_kernel, backward_kernel, convert_kernel


HEAD = """
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from fa_tutorial.hopper.ladder import left_operand, mbarrier, rescaled, softmax_step, warpgroup_mma, warpgroup_mma_wait

"""


def compiled(attend) -> dict[str, Any]:
    """What becomes of a loop that takes the place of ladder.attend, D = 128: {"instructions", "events"} as stored() has them; "spills".

    Compiles for capability 9.0, with D = 64 and 128, in a process of its own, with no GPU. ValueError with the compiler's words where it refuses.
    """
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "loop.py").write_text(HEAD + source_of(attend) + "\n", encoding="utf-8")
        setup = f"import sys; sys.path.append({folder!r}); import loop"
        return _in_a_process(setup, f"sass._loop_with(loop.{attend.__name__})", attend.__name__)


def counted(step: str) -> dict[str, Any]:
    """What becomes of chapter 8's kernel after `step`, one of steps.STEPS, D = 128, full, with steps.TILE: a row as steps_sm90.json has it.

    As `compiled`, with no GPU.
    """
    setup = f"from fa_tutorial.tuned import steps; steps.STEPS = {steps.STEPS!r}"
    return _in_a_process(setup, f"sass._rows_of([(128, False, {step!r}, steps.TILE)])[0]", "attend")


def _in_a_process(setup: str, expression: str, name: str) -> dict[str, Any]:
    """The value of `expression` where Triton compiles. name: the function whose line an error quotes."""
    code = f"import json; from fa_tutorial import sass; {setup}; print(json.dumps(sass._or_refused(lambda: {expression}, {name!r})))"
    run = subprocess.run([sys.executable, "-c", code], env=compile_report.compiling_environment(), capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(run.stderr)
    made = json.loads(run.stdout.splitlines()[-1])
    if "refused" in made:
        raise ValueError(f"{name} does not compile: {made['refused']}")
    return made


def _or_refused(make: Callable[[], dict[str, Any]], name: str) -> dict[str, Any]:
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


def _loop_with(attend) -> dict[str, Any]:
    with compile_report.compiling_for(hardware.HOPPER_CAPABILITY) as launched:
        for d in (64, D):  # their layouts differ
            q, k, v, *_ = compile_report.inputs(torch.float16, d)
            hopper.ladder.flash_forward(q, k, v, 0.5, attend=attend)
    _, kernel, log = launched[-1]
    loop = inner_loop(sass_of(kernel))
    return {"instructions": len(loop), "events": events(loop), "spills": compile_report.read_ptxas(log)[1]}


def fingerprints() -> dict[str, str]:
    """Of the source of each of LOOPS: what STORED holds is out of date when it changes. Not a kernel's cache_key: Triton 3.8 makes another than 3.7."""
    kernels = {"order": hopper.forward.forward_kernel, "backward": hopper.backward.backward_kernel}
    kernels |= {loop: getattr(hopper.ladder, loop) for loop in LOOPS if loop.startswith("attend")}
    return {loop: _digest(_parts(kernel, {})) for loop, kernel in kernels.items()} | {"tuned": steps.fingerprint()}


def _digest(parts: dict[str, str]) -> str:
    return hashlib.sha256(repr(sorted(parts.items())).encode()).hexdigest()[:16]


def _parts(kernel, parts: dict[str, str]) -> dict[str, str]:
    """`parts`, with the text of a kernel, without comments, and of each function, class and constant of the package that it uses."""
    function = unwrapped(kernel)
    tree = ast.parse(source_of(function))
    parts[f"{function.__module__}.{function.__qualname__}"] = ast.unparse(tree)
    defined = vars(sys.modules[function.__module__])
    for name in {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} & set(defined):
        used = unwrapped(defined[name])
        key = f"{getattr(used, '__module__', '')}.{getattr(used, '__qualname__', '')}"
        if hasattr(used, "value"):  # a constexpr
            parts[f"{function.__module__}.{name}"] = repr(used.value)
        elif key.startswith("fa_tutorial.") and key not in parts:
            _parts(used, parts)
    return parts


def sass_of(compiled) -> str:
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        return subprocess.run([knobs.nvidia.nvdisasm.path, "-c", file.name], capture_output=True, text=True, check=True).stdout


def chapter_8() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What each step of chapter 8's forward compiles to with steps.TILE, and some of them, full, with steps.LARGER. Interpreter off."""
    rows = _rows_of(
        (D, is_causal, step, steps.TILE) for D, is_causal, step in itertools.product((64, 128), (False, True), ("", *steps.STEPS))
    )
    kinds = [(D, False, step, tile) for (D, tile), step in itertools.product(steps.LARGER.items(), ("", "round up", "order"))]
    return rows, [{"tile": f"{tile.block_m}x{tile.block_n}"} | row for (*_, tile), row in zip(kinds, _rows_of(kinds), strict=True)]


def _rows_of(kinds: Iterable[tuple[int, bool, str, TileConfig]]) -> list[dict[str, Any]]:
    """_step_row of each (D, is_causal, step, tile)."""
    with compile_report.compiling_for(hardware.HOPPER_CAPABILITY) as launched:
        return [_step_row(launched, *kind) for kind in kinds]


def _step_row(launched: list, D: int, is_causal: bool, step: str, tile: TileConfig) -> dict[str, Any]:
    """Registers a thread, and those spilled, as the driver counts them: the stack frame; bytes of shared memory; instructions: all, and those of the
    loop without a mask; of some kinds, LDL being loads of spilled registers.

    "code" is a digest of that loop's instructions in their order.
    """
    steps.flash_forward(*compile_report.inputs(torch.float16, D)[:3], is_causal, 0.5, step=step, tile=tile)
    _, compiled, log = launched.pop()
    sass = sass_of(compiled)
    loop = inner_loop(sass)
    registers, _, _ = compile_report.read_ptxas(log)
    spilled = int(re.search(r"(\d+) bytes stack frame", log)[1]) // 4
    row = {"step": step, "D": D, "is_causal": is_causal, "registers": registers, "spilled_registers": spilled}
    row |= {"shared_bytes": compiled.metadata.shared, "instructions": len(INSTRUCTION.findall(sass)), "loop": len(loop)}
    row["code"] = hashlib.sha256(" ".join(loop).encode()).hexdigest()[:8]
    return row | {name: sum(op.startswith(name) for op in loop) for name in ("FMUL", "FSETP", "MUFU.EX2", "LDL")}


def stored() -> dict[str, Any]:
    """What main wrote: "triton", the version; "sources": fingerprints(); "D"; for each of LOOPS {"instructions": of the loop, "events": events()}."""
    return json.loads(STORED.read_text(encoding="utf-8"))


def make(path: Path) -> None:
    """Compile, and write what `stored` reads. Needs a process with Triton's interpreter off."""
    found = {"triton": metadata.version("triton"), "sources": fingerprints(), "D": D}
    for name in LOOPS:
        loop = inner_loop(disassembled(name))
        found[name] = {"instructions": len(loop), "events": events(loop)}
    path.write_text(json.dumps(found) + "\n", encoding="utf-8")


def make_steps(path: Path) -> None:
    """As make, for chapter 8's steps: what steps.STORED holds."""
    rows, larger = (",\n ".join(map(json.dumps, found)) for found in chapter_8())
    text = f'{{"triton": "{metadata.version("triton")}", "source": "{steps.fingerprint()}", "rows": [\n {rows}], "larger tiles": [\n {larger}]}}\n'
    path.write_text(text, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fa_tutorial.sass", description=__doc__.splitlines()[0])
    parser.add_argument(
        "folder", type=Path, help="where hopper_sass.json and tuned/steps_sm90.json go; the course's own are in fa_tutorial"
    )
    folder = parser.parse_args().folder
    (folder / "tuned").mkdir(parents=True, exist_ok=True)
    # A process each: in one, a kernel that both need is compiled once, and ptxas reports on it once.
    for make_file, path in ((make, folder / STORED.name), (make_steps, folder / "tuned" / steps.STORED.name)):
        words = f"from pathlib import Path; from fa_tutorial import sass; sass.{make_file.__name__}(Path({str(path)!r}))"
        subprocess.run([sys.executable, "-c", words], env=compile_report.compiling_environment(), check=True)
        print(path)


if __name__ == "__main__":
    main()
