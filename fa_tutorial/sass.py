"""What ptxas makes of the loops of chapters 8 and 9: `python -m fa_tutorial.sass`, on any machine with Linux.

It writes tuned/steps_sm90.json, counts for each step of chapter 8, and hopper_sass.json: of chapter 9's loop over blocks of keys that need no mask,
the instructions that ask for matmuls, wait, exponentiate or synchronise, in their order.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from fa_tutorial import compile_report, hardware, hopper
from fa_tutorial.tiles import TileConfig
from fa_tutorial.tuned import steps

STORED = Path(__file__).with_name("hopper_sass.json")
D = 128
STEPS = ("order", "held")
# By D: a tile of chapter 8 that needs more registers than steps.TILE.
LARGER = {64: TileConfig(64, 128, 4, 2), 128: TileConfig(128, 64, 4, 2)}
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
    """The shortest loop with matmuls and exponentials: the blocks of keys without a mask."""
    wanted = (loop for loop in loops(sass) if any(op.startswith("HGMMA") for op in loop) and any(op.startswith("MUFU.EX2") for op in loop))
    return min(wanted, key=len)


def events(loop: list[str]) -> list[tuple[str, int]]:
    """The instructions of KEPT in order, runs of one as (name, how many)."""
    names = (next((name for name in KEPT if op.startswith(name)), None) for op in loop)
    return [(name, len(list(run))) for name, run in itertools.groupby(filter(None, names))]


def disassembled(step: str) -> str:
    """SASS of chapter 9's kernel, D = 128, full. Needs a process with Triton's interpreter off."""
    q, k, v, *_ = compile_report.inputs(torch.float16, D)
    with compile_report.compiling_for(hardware.HOPPER_CAPABILITY) as launched:
        hopper.flash_forward(q, k, v, False, 0.5, step=hopper.forward.STEPS[step])
    return sass_of(launched[0][1])


def sass_of(compiled) -> str:
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        return subprocess.run([knobs.nvidia.nvdisasm.path, "-c", file.name], capture_output=True, text=True, check=True).stdout


def chapter_8() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What each step of chapter 8's forward compiles to with steps.TILE, and the last two by pointers and descriptors with LARGER. Interpreter off."""
    with compile_report.compiling_for(hardware.HOPPER_CAPABILITY) as launched:
        kinds = itertools.product((64, 128), (False, True), ("", *steps.STEPS))
        rows = [_step_row(launched, D, is_causal, step, steps.TILE) for D, is_causal, step in kinds]
        kinds = itertools.product(LARGER.items(), ("round up", "descriptors"))
        larger = [{"tile": f"{tile.block_m}x{tile.block_n}"} | _step_row(launched, D, False, step, tile) for (D, tile), step in kinds]
        return rows, larger


def _step_row(launched: list, D: int, is_causal: bool, step: str, tile: TileConfig) -> dict[str, Any]:
    """Registers a thread, bytes of shared memory, bytes spilled (stores and loads), and instructions: all, and those of the loop without a mask."""
    steps.flash_forward(*compile_report.inputs(torch.float16, D)[:3], is_causal, 0.5, step=step, tile=tile)
    _, compiled, log = launched.pop()
    sass = sass_of(compiled)
    loop = inner_loop(sass)
    registers, spilled, _ = compile_report.read_ptxas(log)
    row = {"step": step, "D": D, "is_causal": is_causal, "registers": registers, "spilled_bytes": spilled}
    row |= {"shared_bytes": compiled.metadata.shared, "instructions": len(INSTRUCTION.findall(sass)), "loop": len(loop)}
    return row | {name: sum(op.startswith(name) for op in loop) for name in ("FMUL", "FSETP", "MUFU.EX2")}


def stored() -> dict[str, Any]:
    """What main wrote: "triton", the version; "kernel", its source's fingerprint; "D"; and for each step of STEPS {"instructions": of the loop, "events": events()}."""
    return json.loads(STORED.read_text(encoding="utf-8"))


def make() -> None:
    """Compile, and write STORED. Needs a process with Triton's interpreter off."""
    found = {"triton": metadata.version("triton"), "kernel": hopper.forward.forward_kernel.cache_key, "D": D}
    for step in STEPS:
        loop = inner_loop(disassembled(step))
        found[step] = {"instructions": len(loop), "events": events(loop)}
    STORED.write_text(json.dumps(found) + "\n", encoding="utf-8")


def make_steps() -> None:
    """As make, for chapter 8's steps: write steps.STORED."""
    rows, larger = (",\n ".join(map(json.dumps, found)) for found in chapter_8())
    text = f'{{"source": "{steps.fingerprint()}", "rows": [\n {rows}], "larger tiles": [\n {larger}]}}\n'
    steps.STORED.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    subprocess.run(
        [sys.executable, "-c", "from fa_tutorial import sass; sass.make(); sass.make_steps()"],
        env=compile_report.compiling_environment(),
        check=True,
    )
    print(STORED, steps.STORED)
