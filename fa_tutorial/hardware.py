"""What this machine can do: interpreter or GPU, capability, shared memory, the device to use.

Everything else asks this module, so that one notebook runs unchanged on a laptop and on a GPU.
"""

import builtins
import contextlib
import functools
import importlib.util
import os
import platform
import subprocess
import sys
import warnings
from dataclasses import dataclass
from types import ModuleType

import torch

from fa_tutorial import interpreter

INTERPRETER_SWITCH = "TRITON_INTERPRET"

# Compute capabilities: what the course's kernels need, and from which on Triton uses tensor cores.
LEAST_CAPABILITY, TENSOR_CORE_CAPABILITY, HOPPER_CAPABILITY = 75, 80, 90

WHERE_TO_RUN_TRITON = (
    "Triton is published for Linux only. On macOS or Windows run this chapter in WSL2 or in a Linux container "
    "(README.md: Docker). Chapters without kernels (0, 1, 4, 6) run where you are."
)
HOW_TO_INSTALL = (
    f"In the course's folder: make setup, or {sys.executable} -m pip install -c constraints.txt -e '.[lab,test]'"
)

_switched_on_here = False
_told = False  # whether the reader knows that kernels run in the interpreter


@functools.cache
def has_gpu() -> bool:
    """True where PyTorch can use a CUDA GPU. Asked once: flash_attention needs it at every call."""
    return torch.cuda.is_available()


def has_triton() -> bool:
    """True where Triton is installed. Does not import it."""
    return importlib.util.find_spec("triton") is not None


def without_triton(system: str | None = None) -> str:
    """What to do where Triton is missing, on this operating system, or on `system`."""
    return HOW_TO_INSTALL if (system or platform.system()) == "Linux" else WHERE_TO_RUN_TRITON


def interpreter_on() -> bool:
    """True where Triton kernels decorated from now on run in the interpreter, on the CPU."""
    return os.environ.get(INTERPRETER_SWITCH, "0").lower() in ("1", "true", "yes", "on", "y")


def device() -> torch.device:
    """The device on which this machine runs Triton kernels: the GPU, or the CPU for the interpreter."""
    return torch.device("cuda" if has_gpu() and not interpreter_on() else "cpu")


def capability() -> int | None:
    """Compute capability of the current GPU as one number (90 for 9.0); None without a GPU."""
    if not has_gpu():
        return None
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def shared_memory_limit() -> int | None:
    """Bytes of shared memory that one block may ask for on the current GPU; None without a GPU."""
    if not has_gpu():
        return None
    return torch.cuda.get_device_properties(torch.cuda.current_device()).shared_memory_per_block_optin


@dataclass(frozen=True)
class Card:
    """What a launch has to know of a GPU. capability: 90 for 9.0; shared_memory: bytes a block may ask for, None in the
    interpreter."""

    name: str
    capability: int
    shared_memory: int | None
    multiprocessors: int


INTERPRETER = Card("interpreter", HOPPER_CAPABILITY, None, 1)  # it runs descriptors too


@functools.cache
def card(index: int | None) -> Card:
    """The GPU with this index; None is the CPU's, for the interpreter. Asked once: a question to the driver takes
    longer than a launch."""
    if index is None:
        return INTERPRETER
    gpu = torch.cuda.get_device_properties(index)
    return Card(gpu.name, 10 * gpu.major + gpu.minor, gpu.shared_memory_per_block_optin, gpu.multi_processor_count)


def card_of(tensor: torch.Tensor) -> Card:
    """The card on which a kernel runs that is launched on `tensor`."""
    return card(tensor.device.index)


def nvidia_smi(query: str) -> str | None:
    """What the driver's own tool answers for its first GPU, or None."""
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
    try:
        said = subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True, timeout=20)
        return said.splitlines()[0].strip()
    except (OSError, subprocess.SubprocessError, IndexError):
        return None


def describe() -> str:
    """One line on where kernels run here."""
    global _told
    _told = True
    if not has_triton():
        return f"No Triton here. {without_triton()}"
    if interpreter_on():
        return "Triton kernels run in the interpreter, on the CPU: right results, no meaningful times."
    if not has_gpu():
        value = os.environ.get(INTERPRETER_SWITCH)
        return f"No CUDA GPU, and {INTERPRETER_SWITCH} is set to {value!r}: kernels cannot run."
    return f"Triton kernels run on {torch.cuda.get_device_name()} (compute capability {capability() / 10:.1f})."


def select_backend() -> None:
    """Switch Triton's interpreter on where there is no CUDA GPU and TRITON_INTERPRET says nothing. Called once, when
    fa_tutorial is imported. The first kernel's import says that it is on, unless `describe` has."""
    # A GPU gives log 0 = −inf without a word, so NumPy has none to say in the interpreter either.
    words = "divide by zero encountered in log"
    warnings.filterwarnings("ignore", words, RuntimeWarning, r"triton\.runtime\.interpreter")
    if has_gpu() or INTERPRETER_SWITCH in os.environ or not has_triton():
        return
    global _switched_on_here
    os.environ[INTERPRETER_SWITCH] = "1"
    _switched_on_here = True


def _tell() -> None:
    """Say once that the interpreter was switched on here."""
    global _told
    if _told or not _switched_on_here:
        return
    _told = True
    message = "No CUDA GPU found: Triton kernels will run in the interpreter, on the CPU."
    if triton_imported_without_interpreter():
        message += " Triton came before it, so its own functions are compiled: restart and import fa_tutorial first."
    # A notebook keeps stderr as a warning box; a script's stdout belongs to its own output.
    print(message, file=sys.stdout if hasattr(builtins, "__IPYTHON__") else sys.stderr)


def switched_on_here() -> bool:
    """True where select_backend set TRITON_INTERPRET, False where the reader did or it is not set."""
    return _switched_on_here


def triton_imported_without_interpreter() -> bool:
    """True where Triton was imported while its interpreter was off, yet the interpreter is on now."""
    standard = sys.modules.get("triton.language.standard")
    return standard is not None and interpreter_on() and type(standard.max).__name__ == "JITFunction"


def require_triton(who: str) -> ModuleType:
    """Import Triton and return it, or raise ImportError that says what `who` can use instead."""
    try:
        import triton
    except ImportError as error:
        raise ImportError(f"{who} needs Triton, which is not installed here. {without_triton()}") from error
    if interpreter_on():
        interpreter.hasten()
    _tell()
    return triton


def require_kernel_device(tensor: torch.Tensor, name: str) -> None:
    """Raise RuntimeError where a Triton kernel cannot run on the device of `tensor`, which the message calls `name`."""
    if not tensor.is_cuda and triton_imported_without_interpreter():
        why = "Triton was imported before fa_tutorial, so its interpreter cannot run kernels"
        raise RuntimeError(f"{why}. Restart Python, and import fa_tutorial first.")
    if tensor.is_cuda or (interpreter_on() and tensor.device.type == "cpu"):
        return
    if tensor.device.type != "cpu":
        where = "the kernels run on CUDA GPUs, and in Triton's interpreter on the CPU"
        raise RuntimeError(f"{name} is on {tensor.device}: {where}. Move it there.")
    raise RuntimeError(
        f"{name} is on {tensor.device}, and Triton's interpreter is off. Move it to a CUDA GPU, or set "
        f"{INTERPRETER_SWITCH}=1 in the environment before Python starts, and import fa_tutorial before triton."
    )


def on_device_of(tensor: torch.Tensor) -> contextlib.AbstractContextManager:
    """Context in which kernels launch on `tensor`'s GPU, also where another GPU is the current one."""
    is_current = not tensor.is_cuda or tensor.device.index == torch.cuda.current_device()
    return contextlib.nullcontext() if is_current else torch.cuda.device(tensor.device)
