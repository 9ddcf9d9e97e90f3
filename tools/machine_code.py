"""Compile the kernels of chapters 8 and 9 for a Hopper GPU that isn't there, and store what ptxas makes of them.

FOLDER/tuned/steps_sm90.json counts what each step of chapter 8 compiles to. FOLDER/hopper_sass.json has the loops of
chapter 9 over blocks that need no mask: the instructions that issue matmuls, wait, exponentiate or synchronise, in
their order. A file that is there is made again where a kernel has changed. It takes Linux, and no GPU.
"""

import argparse
import ast
import hashlib
import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import astuple
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from fa_tutorial import compiling, hardware, hopper, sass
from fa_tutorial.bench import chapter_9
from fa_tutorial.bench.chapter_8 import TILES
from fa_tutorial.source import source_of, unwrapped
from fa_tutorial.tuned import steps

# Of the chapter's exercises in the ladder, of the forward that is used, of chapter 8's, of the backward.
IN_LADDER = ("two stops", "one stop", "half overlapped", "overlapped")
LOOPS = (*IN_LADDER, "finished", "chapter 8's", "backward")


def disassembled(loop: str) -> str:
    """SASS of the kernel with one of LOOPS, D = sass.D, full. Needs a process with Triton's interpreter off."""
    q, k, v, *rest = compiling.inputs(torch.float16, sass.D)
    with compiling.compiling_for(hardware.HOPPER_CAPABILITY) as launched:
        if loop == "backward":
            hopper.flash_backward(q, k, v, *rest, None, False, 0.5)
        elif loop == "chapter 8's":
            steps.flash_forward(q, k, v, False, 0.5, step=steps.LAST, tile=steps.LARGER[sass.D])
        elif loop == "finished":
            hopper.flash_forward(q, k, v, False, 0.5, step=hopper.forward.STEPS["order"])
        else:
            hopper.ladder.flash_forward(q, k, v, 0.5, attend=chapter_9.attend_of(loop))
    # The backward launches prepare_kernel, backward_kernel, convert_kernel.
    return sass.sass_of(launched[loop == "backward"][1])


def loops() -> dict[str, Any]:
    """Of each of LOOPS {"instructions": how many, "events": sass.events, "maxima": how many before the first wait for
    matmuls, between it and the last, and after that}, with the D that they are compiled for."""
    found: dict[str, Any] = {"D": sass.D}
    for name in LOOPS:
        loop = sass.inner_loop(disassembled(name))
        found[name] = {"instructions": len(loop), "events": sass.events(loop)}
        found[name]["maxima"] = sass.around(loop, "WARPGROUP.DEPBAR")["FMNMX"]
    return found


def step_counts() -> dict[str, list[dict[str, Any]]]:
    """What chapter 8's forward compiles to: "rows", its steps with the tiles that the chapter shows them with; "tiles",
    the last step, full, with every tile that the chapter measures."""
    shown = []
    for D, is_causal in itertools.product((64, 128), (False, True)):
        shown += [(D, is_causal, step, astuple(steps.TILE)) for step in steps.WITH_TILE]
        shown += [(D, is_causal, step, astuple(steps.LARGER[D])) for step in steps.STEPS]
    tiles = [(D, False, steps.LAST, tile) for D, found in TILES.items() for tile in found]
    kinds = list(dict.fromkeys(shown + tiles))  # ptxas reports on a kernel once
    rows = dict(zip(kinds, sass.step_rows(kinds), strict=True))
    return {"rows": [rows[kind] for kind in shown], "tiles": [rows[kind] for kind in tiles]}


OF_THE_MACHINE = ("INTERPRETED",)  # constants that differ where Triton doesn't compile


def fingerprint(kernel) -> str:
    """Of a kernel and all of the package that it uses: what is stored of its machine code is out of date when it
    changes. Comments, docstrings, formatting and the names of local variables don't count. Not a kernel's cache_key:
    that holds all of these, and Triton 3.8 makes another than 3.7."""
    parts: dict[str, str] = {}
    _collect(unwrapped(kernel), parts)
    return hashlib.sha256(repr(sorted(parts.items())).encode()).hexdigest()[:16]


def _collect(function, parts: dict[str, str]) -> None:
    """Add the code of a function or class, and of each function, class and constant of the package that it uses."""
    tree = _without_names(ast.parse(source_of(function)))
    parts[f"{function.__module__}.{function.__qualname__}"] = ast.unparse(tree)
    names = getattr(function, "__globals__", None) or vars(sys.modules[function.__module__])
    for name in {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} & set(names):
        used = unwrapped(names[name])
        key = f"{getattr(used, '__module__', '')}.{getattr(used, '__qualname__', '')}"
        if hasattr(used, "value") and name not in OF_THE_MACHINE:  # a constexpr
            parts[f"{function.__module__}.{name}"] = repr(used.value)
        elif key.startswith("fa_tutorial.") and key not in parts:
            _collect(used, parts)


def _without_names(tree: ast.Module) -> ast.Module:
    """The code with its local variables numbered in the order in which they appear, and without docstrings."""
    nodes = list(ast.walk(tree))
    parameters = {node.arg for node in nodes if isinstance(node, ast.arg)}
    numbers: dict[str, int] = {}
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id not in parameters:
            numbers.setdefault(node.id, len(numbers))
    for node in nodes:
        if isinstance(node, ast.Name) and node.id in numbers:
            node.id = f"local_{numbers[node.id]}"
        elif isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            del node.body[0]
    return tree


def loop_fingerprints() -> dict[str, str]:
    """Of the kernel of each of LOOPS."""
    kernels = {"finished": hopper.forward.forward_kernel, "backward": hopper.backward.backward_kernel}
    kernels |= {loop: chapter_9.attend_of(loop) for loop in IN_LADDER}
    kernels["chapter 8's"] = steps.kernel(steps.LAST)
    return {loop: fingerprint(kernels[loop]) for loop in LOOPS}


def step_fingerprints() -> dict[str, str]:
    return {step: fingerprint(steps.kernel(step)) for step in steps.STEPS}


# In fa_tutorial: what compiles a file's contents, and their kernels' fingerprints.
STORED = {"hopper_sass.json": (loops, loop_fingerprints), "tuned/steps_sm90.json": (step_counts, step_fingerprints)}


def out_of_date(path: Path, name: str) -> list[str]:
    """The kernels that have changed since one of STORED was made at `path`; all of them where there is no file."""
    stored = json.loads(path.read_text(encoding="utf-8"))["fingerprints"] if path.exists() else {}
    _, fingerprints = STORED[name]
    return [kernel or "chapter 5" for kernel, now in fingerprints().items() if stored.get(kernel) != now]


def made(name: str) -> dict[str, Any]:
    """The contents of one of STORED, compiled now. Needs a process with Triton's interpreter off."""
    compiled, fingerprints = STORED[name]
    return {"triton": metadata.version("triton"), "fingerprints": fingerprints(), **compiled()}


def made_in_a_process(name: str) -> dict[str, Any]:
    """`made` in a process of its own: in one for both, a kernel would be compiled once, and ptxas report on it once."""
    words = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import machine_code"
    return compiling.in_a_process(f"{words}; print(json.dumps(machine_code.made({name!r})))")


def written(contents: dict[str, Any]) -> str:
    """JSON with a row of a table on a line."""
    parts = []
    for key, value in contents.items():
        rows = ",\n ".join(map(json.dumps, value)) if isinstance(value, list) else ""
        parts.append(f'"{key}": ' + (f"[\n {rows}]" if rows else json.dumps(value)))
    return "{" + ", ".join(parts) + "}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write those of STORED that are missing in the folder that is named, or out of date."""
    parser = argparse.ArgumentParser(prog="python tools/machine_code.py", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the two files go; the course's own are in fa_tutorial")
    folder = parser.parse_args(arguments).folder
    for name in STORED:
        path = folder / name
        if not (kernels := out_of_date(path, name)):
            print(f"{path}: of the kernels as they are")
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(written(made_in_a_process(name)), encoding="utf-8")
        print(f"{path}: made, for {', '.join(kernels)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
