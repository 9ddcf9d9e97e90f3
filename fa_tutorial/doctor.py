"""What this machine can run, and what is wrong with the installation: `python -m fa_tutorial doctor`.

The machine is looked at once, into Facts, from which the findings follow: every bad combination can be tried.
"""

import importlib.util
import os
import platform
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy
import torch

from fa_tutorial import hardware
from fa_tutorial.exercises.progress import STATE_VARIABLE, state_file

# First version inside and first version past the range that the course supports: those of pyproject.toml, which a test
# compares.
SUPPORTED = {"torch": ((2, 11), (2, 15)), "triton": ((3, 6), (3, 9)), "numpy": ((2, 0), (3,))}
NAMES = {"torch": "torch", "triton": "Triton", "numpy": "NumPy"}
ANEW = "Make the installation anew: make clean, then make setup. If that does not help, send us this report."


@dataclass(frozen=True)
class Facts:
    """What doctor looks at. Versions are strings as their packages give them, None where a package is missing.

    torch_cuda: what torch is built for, None for a CPU build. gpu: the name of the GPU that torch can use. driver: the
    driver's own tool lists a GPU. visible_devices: CUDA_VISIBLE_DEVICES. switch: TRITON_INTERPRET as it stands now.
    capability: 90 for 9.0. shared_memory: bytes a block may ask for. python_headers: Python.h is installed.
    """

    system: str
    python: str
    torch: str
    torch_cuda: str | None
    triton: str | None
    numpy: str
    gpu: str | None
    capability: int | None
    shared_memory: int | None
    driver: bool
    visible_devices: str | None
    interpreter: bool
    switch: str | None
    triton_came_first: bool
    compiler: str | None
    python_headers: bool
    jupyterlab: bool
    state: Path
    state_writable: bool

    @property
    def compiles(self) -> bool:
        """Kernels are compiled for a GPU here, rather than interpreted."""
        return self.triton is not None and self.gpu is not None and not self.interpreter


class Finding(NamedTuple):
    """broken: something does not work; otherwise a note. what: the finding in one sentence. remedy: what to do."""

    broken: bool
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{'broken' if self.broken else 'note':7} {self.what}\n        {self.remedy}"


def version_numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: (2, 13, 0) for "2.13.0+cpu"."""
    return tuple(int(number) for number in re.match(r"\d+(?:\.\d+)*", version)[0].split("."))


def gather() -> Facts:
    state = state_file()
    return Facts(
        system=platform.system(),
        python=platform.python_version(),
        torch=torch.__version__,
        torch_cuda=torch.version.cuda,
        triton=hardware.require_triton("doctor").__version__ if hardware.has_triton() else None,
        numpy=numpy.__version__,
        gpu=torch.cuda.get_device_name() if hardware.has_gpu() else None,
        capability=hardware.capability(),
        shared_memory=hardware.shared_memory_limit(),
        driver=hardware.nvidia_smi("name") is not None,
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        interpreter=hardware.interpreter_on(),
        switch=os.environ.get(hardware.INTERPRETER_SWITCH),
        triton_came_first=hardware.triton_imported_without_interpreter(),
        compiler=os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang"),
        python_headers=(Path(sysconfig.get_paths()["include"]) / "Python.h").exists(),
        jupyterlab=importlib.util.find_spec("jupyterlab") is not None,
        state=state,
        state_writable=writable(state.parent),
    )


def writable(folder: Path) -> bool:
    """True where `folder` can be written, or made."""
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    return nearest.is_dir() and os.access(nearest, os.W_OK)


def examine(facts: Facts) -> list[Finding]:
    """Everything that holds for `facts`."""
    return [*examine_triton(facts), *examine_gpu(facts), *examine_versions(facts)]


def examine_triton(facts: Facts) -> Iterator[Finding]:
    switch = hardware.INTERPRETER_SWITCH
    if facts.triton is None:
        is_linux = facts.system == "Linux"
        missing = "Triton is not installed" + ("." if is_linux else f": it is not published for {facts.system}.")
        yield Finding(is_linux, missing, hardware.without_triton(facts.system))
        return
    if facts.interpreter and version_numbers(facts.triton) < (3, 7) and version_numbers(facts.numpy) >= (2, 4):
        error = "in the interpreter: a kernel's loop with a run-time bound raises TypeError."
        remedy = 'Install an older NumPy, pip install "numpy<2.4", or Triton 3.7 or newer.'
        yield Finding(True, f"NumPy {facts.numpy} with Triton {facts.triton} {error}", remedy)
    if facts.triton_came_first:
        late = "Triton was imported before fa_tutorial, while its interpreter was off: its own functions are compiled."
        yield Finding(True, late, f"Restart, and import fa_tutorial first; or set {switch}=1 before Python starts.")
    if facts.gpu is None and not facts.interpreter:
        off = f"{switch} is set to {facts.switch!r}, and there is no CUDA GPU that torch can use: no kernel can run."
        yield Finding(True, off, f"Unset {switch}, or set it to 1: kernels then run in the interpreter.")
    if facts.compiles and facts.compiler is None:
        remedy = "Install one, such as gcc (Debian and Ubuntu: apt install build-essential), or name it in CC."
        yield Finding(True, "No C compiler is found; Triton needs one to build what launches a kernel.", remedy)
    elif facts.compiles and not facts.python_headers:
        remedy = "Install Python's headers (Debian and Ubuntu: apt install python3-dev)."
        yield Finding(True, "Python.h is not found; Triton needs it to build what launches a kernel.", remedy)


def examine_gpu(facts: Facts) -> Iterator[Finding]:
    switch, listed = hardware.INTERPRETER_SWITCH, "nvidia-smi lists a GPU, but"
    if facts.driver and facts.torch_cuda is None:
        remedy = "Install a CUDA build of torch: its site's selector gives the command for your driver."
        yield Finding(True, f"{listed} torch {facts.torch} is a CPU build.", remedy)
    elif facts.driver and facts.gpu is None and facts.visible_devices is not None:
        hidden = f"{listed} CUDA_VISIBLE_DEVICES={facts.visible_devices!r} leaves torch none."
        yield Finding(False, hidden, "Unset CUDA_VISIBLE_DEVICES to use it.")
    elif facts.driver and facts.gpu is None:
        remedy = f"Update the driver to one for CUDA {facts.torch_cuda}, or install a torch built for an older CUDA."
        yield Finding(True, f"{listed} torch {facts.torch}, built for CUDA {facts.torch_cuda}, cannot use it.", remedy)
    if facts.gpu is not None and facts.interpreter:
        slow = f"{switch}={facts.switch} although there is a GPU: kernels run in the interpreter, on the CPU: slow."
        yield Finding(False, slow, f"Unset {switch} to use {facts.gpu}.")
    if facts.compiles and facts.capability < hardware.TENSOR_CORE_CAPABILITY:
        shown = f"{facts.gpu} has compute capability {facts.capability / 10:.1f}"
        if facts.capability < hardware.LEAST_CAPABILITY:
            least = f"{shown}; the course's kernels need {hardware.LEAST_CAPABILITY / 10:.1f} or more."
            yield Finding(True, least, f"Set {switch}=1 before Python starts: kernels then run in the interpreter.")
        else:
            slow = f"{shown}: Triton does not use its tensor cores (from 8.0 on it does), so matmuls are slow here."
            yield Finding(False, slow, "Results are right; for speed, look at the stored times of an H200.")


def examine_versions(facts: Facts) -> Iterator[Finding]:
    for package, (first, past) in SUPPORTED.items():
        version = getattr(facts, package)
        if version is not None and not first <= version_numbers(version) < past:
            wanted = f"{'.'.join(map(str, first))} or newer, below {'.'.join(map(str, past))}"
            outside = f"{NAMES[package]} {version} is outside the range that the course supports: {wanted}."
            yield Finding(False, outside, f"For the versions of constraints.txt: {hardware.HOW_TO_INSTALL}")
    if not facts.jupyterlab:
        yield Finding(False, "JupyterLab is not installed: make lab opens no notebook.", hardware.HOW_TO_INSTALL)
    if not facts.state_writable:
        lost = f"{facts.state} cannot be written: progress is not kept."
        yield Finding(False, lost, f"Set {STATE_VARIABLE} to a folder that can be.")


def try_kernel() -> Finding | None:
    """Run a small tiled matmul with ragged edges here: None if it is right, else what went wrong."""
    a, b = torch.arange(17.0 * 40).reshape(17, 40) / 100, torch.arange(40.0 * 19).reshape(40, 19) / 100
    try:
        from fa_tutorial.matmul import matmul

        c = matmul(a.to(hardware.device()), b.to(hardware.device())).cpu()
    except Exception as error:  # whatever stops a kernel here is what the reader came to learn
        reason = str(error).strip().splitlines() or [""]
        return Finding(True, f"A tiled matmul does not run: {type(error).__name__}: {reason[-1]}", ANEW)
    if torch.allclose(c, a @ b, rtol=1e-4):
        return None
    return Finding(True, f"A tiled matmul gives a wrong result: it is off by {(c - a @ b).abs().max():.3g}.", ANEW)


def describe(facts: Facts) -> str:
    where = "compiled, on the GPU" if facts.compiles else "cannot run here"
    if facts.triton is not None and facts.interpreter:
        where = f"in the interpreter, on the CPU ({hardware.INTERPRETER_SWITCH}={facts.switch})"
    build = f"built for CUDA {facts.torch_cuda}" if facts.torch_cuda else "CPU build"
    rows = {
        "Python": f"{facts.python} on {facts.system}",
        "torch": f"{facts.torch} ({build})",
        "Triton": facts.triton or "not installed",
        "NumPy": facts.numpy,
        "GPU": facts.gpu or "none that torch can use",
    }
    if facts.gpu is not None:
        rows["capability"] = f"{facts.capability / 10:.1f}"
        rows["shared memory"] = f"{facts.shared_memory:,} bytes a block"
    rows |= {"kernels": where, "progress": f"kept in {facts.state}"}
    return "\n".join(f"{name:14} {value}" for name, value in rows.items())


def main() -> int:
    """Print the report. Returns the exit status: 1 where something is broken, otherwise 0."""
    facts = gather()
    print(describe(facts), end="\n\n", flush=True)  # a first kernel takes a while to compile
    findings = examine(facts)
    # A kernel is tried only where nothing stands in its way: its own error would say less than what is found already.
    tried = facts.triton is not None and not any(finding.broken for finding in findings)
    if tried and (failure := try_kernel()):
        findings.append(failure)
    broken = sum(finding.broken for finding in findings)
    print(*findings, sep="\n", end="\n" * bool(findings))
    if tried and not broken:
        where = "on the GPU" if facts.compiles else "in the interpreter"
        print(f"{'ok':7} a tiled matmul ran {where} and gave the right result")
    print(f"\n{broken} broken" if broken else "\nNothing is broken.")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
