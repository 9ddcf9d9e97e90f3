"""What this machine can run, and what is wrong with the installation: `python -m fa_tutorial doctor`.

The machine is looked at once, into Facts. Each finding is a small function of them that gives a Finding or None, so that every
bad combination can be shown to it without having one.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch

from fa_tutorial import hardware
from fa_tutorial.exercises.progress import STATE_VARIABLE, state_file

# First version inside and first version past the range that the course supports: those of pyproject.toml, which a test compares.
SUPPORTED = {
    "torch": ((2, 11), (2, 15)),
    "triton": ((3, 6), (3, 10)),
    "numpy": ((2, 0), (3,)),
}
NAMES = {"torch": "torch", "triton": "Triton", "numpy": "NumPy"}


@dataclass(frozen=True)
class Facts:
    """What doctor looks at. Versions are strings as their packages give them, None where a package is missing.

    torch_cuda: the CUDA version that torch is built for, None for a CPU build. gpu: the name of the GPU that torch can use.
    nvidia_smi: the driver's own tool lists a GPU. visible_devices: CUDA_VISIBLE_DEVICES. switch: TRITON_INTERPRET as it stands now.
    capability: 90 for 9.0. shared_memory: bytes a block may ask for. python_headers: Python.h is installed.
    """

    system: str
    python: str
    torch: str
    torch_cuda: str | None
    triton: str | None
    numpy: str | None
    gpu: str | None
    capability: int | None
    shared_memory: int | None
    nvidia_smi: bool
    visible_devices: str | None
    interpreter: bool
    switch: str | None
    triton_came_first: bool
    compiler: str | None
    python_headers: bool
    state: Path
    state_writable: bool

    @property
    def compiles(self) -> bool:
        """Kernels are compiled for a GPU here, rather than interpreted."""
        return self.triton is not None and self.gpu is not None and not self.interpreter


@dataclass(frozen=True)
class Finding:
    """broken: something does not work; otherwise a note. what: the finding in one sentence. remedy: what to do, may be empty."""

    broken: bool
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{'broken' if self.broken else 'note':7} {self.what}" + (f"\n        {self.remedy}" if self.remedy else "")


def version_numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: (2, 13, 0) for "2.13.0+cpu"."""
    return tuple(int(number) for number in re.match(r"\d+(?:\.\d+)*", version)[0].split("."))


# ---------------------------------------------------------------- looking at the machine


def gather() -> Facts:
    """Look at this machine."""
    state = state_file()
    return Facts(
        system=platform.system(),
        python=platform.python_version(),
        torch=torch.__version__,
        torch_cuda=torch.version.cuda,
        triton=_triton_version(),
        numpy=_version("numpy"),
        gpu=torch.cuda.get_device_name() if hardware.has_gpu() else None,
        capability=hardware.capability(),
        shared_memory=hardware.shared_memory_limit(),
        nvidia_smi=_nvidia_smi_lists_a_gpu(),
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        interpreter=hardware.interpreter_on(),
        switch=os.environ.get(hardware.INTERPRETER_SWITCH),
        triton_came_first=hardware.triton_imported_without_interpreter(),
        compiler=os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang"),
        python_headers=(Path(sysconfig.get_paths()["include"]) / "Python.h").exists(),
        state=state,
        state_writable=_writable(state.parent),
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _triton_version() -> str | None:
    if not hardware.has_triton():
        return None
    # Some builds of torch bring Triton along under another package name.
    return _version("triton") or hardware.require_triton("doctor").__version__


def _nvidia_smi_lists_a_gpu() -> bool:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    try:
        listing = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listing.returncode == 0 and "GPU" in listing.stdout


def _writable(folder: Path) -> bool:
    """True where `folder` can be written, or made."""
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    return nearest.is_dir() and os.access(nearest, os.W_OK)


# ---------------------------------------------------------------- findings


def triton_missing(facts: Facts) -> Finding | None:
    if facts.triton is not None:
        return None
    if facts.system == "Linux":
        return Finding(True, "Triton is not installed.", hardware.HOW_TO_INSTALL_TRITON)
    return Finding(False, f"Triton is not installed: it is not published for {facts.system}.", hardware.WHERE_TO_RUN_TRITON)


def numpy_too_new_for_triton(facts: Facts) -> Finding | None:
    if not (facts.interpreter and facts.triton and facts.numpy):
        return None
    if version_numbers(facts.triton) >= (3, 7) or version_numbers(facts.numpy) < (2, 4):
        return None
    return Finding(
        True,
        f"NumPy {facts.numpy} with Triton {facts.triton} in the interpreter: a kernel's loop with a run-time bound raises TypeError.",
        'Install an older NumPy, pip install "numpy<2.4", or Triton 3.7 or newer.',
    )


def triton_came_first(facts: Facts) -> Finding | None:
    if not facts.triton_came_first:
        return None
    return Finding(
        True,
        "Triton was imported before fa_tutorial, while its interpreter was off, so its own functions are compiled ones.",
        f"Restart, and import fa_tutorial first; or set {hardware.INTERPRETER_SWITCH}=1 before Python starts.",
    )


def switched_off_without_gpu(facts: Facts) -> Finding | None:
    if facts.triton is None or facts.gpu is not None or facts.interpreter:
        return None
    return Finding(
        True,
        f"{hardware.INTERPRETER_SWITCH} is set to {facts.switch!r}, and there is no CUDA GPU that torch can use: no kernel can run.",
        f"Unset {hardware.INTERPRETER_SWITCH}, or set it to 1: kernels then run in the interpreter.",
    )


def gpu_with_cpu_torch(facts: Facts) -> Finding | None:
    if not facts.nvidia_smi or facts.torch_cuda is not None:
        return None
    return Finding(
        True,
        f"nvidia-smi lists a GPU, but torch {facts.torch} is a CPU build.",
        "Install a CUDA build of torch: its site's selector gives the command for your driver.",
    )


def gpu_that_torch_cannot_use(facts: Facts) -> Finding | None:
    if not facts.nvidia_smi or facts.torch_cuda is None or facts.gpu is not None:
        return None
    if facts.visible_devices is not None:
        return Finding(
            False,
            f"nvidia-smi lists a GPU, but CUDA_VISIBLE_DEVICES={facts.visible_devices!r} leaves torch none.",
            "Unset CUDA_VISIBLE_DEVICES to use it.",
        )
    return Finding(
        True,
        f"nvidia-smi lists a GPU, but torch {facts.torch}, built for CUDA {facts.torch_cuda}, cannot use it.",
        f"Update the driver to one that supports CUDA {facts.torch_cuda}, or install a torch built for an older CUDA.",
    )


def cuda_torch_without_driver(facts: Facts) -> Finding | None:
    if facts.torch_cuda is None or facts.gpu is not None or facts.nvidia_smi:
        return None
    return Finding(False, f"torch {facts.torch} is built for CUDA {facts.torch_cuda}, and no NVIDIA driver is found: the CPU is used.")


def interpreted_despite_gpu(facts: Facts) -> Finding | None:
    if facts.gpu is None or not facts.interpreter:
        return None
    return Finding(
        False,
        f"{hardware.INTERPRETER_SWITCH}={facts.switch} although there is a GPU: kernels run in the interpreter, on the CPU, and are slow.",
        f"Unset {hardware.INTERPRETER_SWITCH} to use {facts.gpu}.",
    )


def gpu_too_old(facts: Facts) -> Finding | None:
    if not facts.compiles or facts.capability is None or facts.capability >= hardware.TENSOR_CORE_CAPABILITY:
        return None
    shown = f"{facts.gpu} has compute capability {facts.capability / 10:.1f}"
    if facts.capability < hardware.LEAST_CAPABILITY:
        return Finding(
            True,
            f"{shown}; the course's kernels need {hardware.LEAST_CAPABILITY / 10:.1f} or more.",
            f"Set {hardware.INTERPRETER_SWITCH}=1 before Python starts: kernels then run in the interpreter.",
        )
    return Finding(False, f"{shown}: Triton does not use its tensor cores (from 8.0 on it does), so matmuls are slow here.")


def no_compiler(facts: Facts) -> Finding | None:
    if not facts.compiles:
        return None
    if facts.compiler is None:
        return Finding(
            True,
            "No C compiler is found; Triton needs one to build what launches a kernel.",
            "Install one, such as gcc (Debian and Ubuntu: apt install build-essential), or name it in CC.",
        )
    if not facts.python_headers:
        return Finding(
            True,
            "Python.h is not found; Triton needs it to build what launches a kernel.",
            "Install Python's headers (Debian and Ubuntu: apt install python3-dev).",
        )
    return None


def version_outside_range(package: str) -> Callable[[Facts], Finding | None]:
    """The finding for one package of SUPPORTED: its version lies outside the course's range."""
    first, past = SUPPORTED[package]

    def outside(facts: Facts) -> Finding | None:
        version = getattr(facts, package)
        if version is None or first <= version_numbers(version) < past:
            return None
        wanted = f"{'.'.join(map(str, first))} or newer, below {'.'.join(map(str, past))}"
        return Finding(
            False,
            f"{NAMES[package]} {version} is outside the range that the course supports: {wanted}.",
            "constraints.txt names the versions that it is tested with.",
        )

    return outside


def progress_not_kept(facts: Facts) -> Finding | None:
    if facts.state_writable:
        return None
    return Finding(False, f"{facts.state} cannot be written: progress is not kept.", f"Set {STATE_VARIABLE} to a folder that can be.")


FINDINGS: tuple[Callable[[Facts], Finding | None], ...] = (
    triton_missing,
    numpy_too_new_for_triton,
    triton_came_first,
    switched_off_without_gpu,
    gpu_with_cpu_torch,
    gpu_that_torch_cannot_use,
    cuda_torch_without_driver,
    interpreted_despite_gpu,
    gpu_too_old,
    no_compiler,
    *map(version_outside_range, SUPPORTED),
    progress_not_kept,
)


def examine(facts: Facts) -> list[Finding]:
    """Every finding that holds for `facts`, in FINDINGS' order."""
    return [finding for find in FINDINGS if (finding := find(facts)) is not None]


def try_kernel() -> Finding | None:
    """Run a small tiled matmul with ragged edges on this machine and compare it: None if it is right, else what went wrong."""
    a = torch.arange(17 * 40, dtype=torch.float32).reshape(17, 40) / 100
    b = torch.arange(40 * 19, dtype=torch.float32).reshape(40, 19) / 100
    try:
        from fa_tutorial.matmul import matmul

        c = matmul(a.to(hardware.device()), b.to(hardware.device())).cpu()
    except Exception as error:  # whatever stops a kernel here is what the reader came to learn
        reason = str(error).strip().splitlines() or [""]
        return Finding(True, f"A tiled matmul does not run: {type(error).__name__}: {reason[-1]}")
    want = a.double() @ b.double()
    worst, largest = float((c.double() - want).abs().max()), float(want.abs().max())
    if worst <= 1e-5 * largest:
        return None
    return Finding(True, f"A tiled matmul gives a wrong result: it is off by {worst:.3g} in values up to {largest:.3g}.")


# ---------------------------------------------------------------- reporting


def describe(facts: Facts) -> str:
    """The facts, one a line."""
    if facts.triton is None:
        where = "cannot run here"
    elif facts.interpreter:
        where = f"in the interpreter, on the CPU ({hardware.INTERPRETER_SWITCH}={facts.switch})"
    else:
        where = "compiled, on the GPU" if facts.gpu else "cannot run here"
    build = f"built for CUDA {facts.torch_cuda}" if facts.torch_cuda else "CPU build"
    rows = {
        "Python": f"{facts.python} on {facts.system}",
        "torch": f"{facts.torch} ({build})",
        "Triton": facts.triton or "not installed",
        "NumPy": facts.numpy or "not installed",
        "GPU": facts.gpu or "none that torch can use",
    }
    if facts.capability is not None:
        rows["capability"] = f"{facts.capability / 10:.1f}"
    if facts.shared_memory is not None:
        rows["shared memory"] = f"{facts.shared_memory:,} bytes a block"
    rows |= {"kernels": where, "progress": f"kept in {facts.state}"}
    return "\n".join(f"{name:14} {value}" for name, value in rows.items())


def main() -> int:
    """Print the report. Returns the exit status: 1 where something is broken, otherwise 0."""
    facts = gather()
    findings = examine(facts)
    print(describe(facts), end="\n\n")
    for finding in findings:
        print(finding)
    broken = sum(finding.broken for finding in findings)
    # A kernel is tried only where nothing stands in its way: its own error would say less than what is already found.
    if facts.triton is not None and not broken:
        failure = try_kernel()
        broken += failure is not None
        print(
            failure or f"{'ok':7} a tiled matmul ran {'on the GPU' if facts.compiles else 'in the interpreter'} and gave the right result"
        )
    print(f"\n{broken} broken" if broken else "\nNothing is broken.")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
