"""The choice between interpreter and GPU, and what holds where Triton is missing. Most of it needs a Python that starts afresh."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from fa_tutorial import hardware

without_gpu = pytest.mark.skipif(hardware.has_gpu(), reason="this machine has a GPU")


def python(code: str, **environment: str) -> subprocess.CompletedProcess:
    """Run `code` in a fresh Python whose TRITON_INTERPRET is unset unless it is given."""
    inherited = {name: value for name, value in os.environ.items() if name != hardware.INTERPRETER_SWITCH}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**inherited, **environment})


@without_gpu
def test_interpreter_is_switched_on_without_a_gpu_and_says_so_once():
    run = python("""
import os, torch, fa_tutorial, triton
from fa_tutorial import hardware, layout, matmul
print(os.environ["TRITON_INTERPRET"], hardware.switched_on_here(), hardware.triton_imported_without_interpreter())
print(layout.add(torch.ones(3), torch.ones(3)).tolist())
""")
    assert run.stdout == "1 True False\n[2.0, 2.0, 2.0]\n", run.stderr
    assert run.stderr.count("No CUDA GPU found") == 1


@without_gpu
@pytest.mark.parametrize("value", ["0", "1"])
def test_explicit_switch_is_respected_in_silence(value, monkeypatch, capsys):
    monkeypatch.setenv(hardware.INTERPRETER_SWITCH, value)
    for name in ("_switched_on_here", "_told"):
        monkeypatch.setattr(hardware, name, False)
    hardware.select_backend()
    hardware.require_triton("A kernel")
    assert os.environ[hardware.INTERPRETER_SWITCH] == value and not hardware.switched_on_here()
    assert capsys.readouterr() == ("", "")


@without_gpu
def test_triton_imported_first_is_noticed_and_a_kernel_says_so():
    run = python("""
import triton, torch
from fa_tutorial import flash_attention, hardware
print(hardware.triton_imported_without_interpreter())
q = torch.ones(1, 1, 4, 16)
flash_attention(q, q, q)
""")
    assert run.stdout == "True\n" and "restart and import fa_tutorial first" in run.stderr
    assert run.stderr.splitlines()[-1].startswith("RuntimeError: Triton was imported before fa_tutorial")


@pytest.mark.parametrize(("value", "on"), [("1", True), ("YES", True), ("0", False), (None, False)])
def test_interpreter_on_reads_the_switch(value, on, monkeypatch):
    monkeypatch.delenv(hardware.INTERPRETER_SWITCH, raising=False)
    if value is not None:
        monkeypatch.setenv(hardware.INTERPRETER_SWITCH, value)
    assert hardware.interpreter_on() is on


@pytest.mark.parametrize("interpreter", [False, True])
def test_a_machine_with_a_gpu(interpreter, monkeypatch):
    """The interpreter keeps kernels on the CPU beside it, where it is switched on; that is left as it is."""
    monkeypatch.setattr(hardware, "has_gpu", lambda: True)
    monkeypatch.delenv(hardware.INTERPRETER_SWITCH, raising=False)
    hardware.select_backend()
    assert hardware.INTERPRETER_SWITCH not in os.environ
    monkeypatch.setenv(hardware.INTERPRETER_SWITCH, "1" if interpreter else "0")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(shared_memory_per_block_optin=232_448))
    assert hardware.device() == torch.device("cpu" if interpreter else "cuda")
    assert ("in the interpreter" if interpreter else "on NVIDIA H200 (compute capability 9.0)") in hardware.describe()
    assert interpreter or (hardware.capability(), hardware.shared_memory_limit()) == (90, 232_448)


def test_a_machine_without_a_gpu_where_the_interpreter_is_off(monkeypatch):
    monkeypatch.setenv(hardware.INTERPRETER_SWITCH, "0")
    monkeypatch.setattr(hardware, "has_gpu", lambda: False)
    assert hardware.capability() is None and hardware.shared_memory_limit() is None
    assert "'0': kernels cannot run" in hardware.describe()
    for system, words in (("Linux", "constraints.txt"), ("Darwin", "container"), ("Windows", "WSL2")):
        monkeypatch.setattr(hardware.platform, "system", lambda system=system: system)
        assert words in hardware.without_triton()


def test_without_triton():
    """The switch is left alone, chapters without kernels are graded, those with kernels say what to use instead, and so does the doctor;
    a GPU's stored rates are there."""
    run = python("""
import os, sys
sys.modules["triton"] = None
import fa_tutorial, fa_tutorial.softmax, fa_tutorial.ledger, fa_tutorial.reference, fa_tutorial.notebooks
from fa_tutorial import doctor
from fa_tutorial.__main__ import main
from fa_tutorial.bench import plots
from fa_tutorial.exercises import catalogue, check, progress
main(["bench", "table", "--grid", "points"])
print(os.environ.get("TRITON_INTERPRET"))
for id in ("0.1", "1.2"):
    check(id, catalogue.find(id).solution)
progress()
try:
    import fa_tutorial.layout
except ImportError as error:
    print(error)
sys.exit(doctor.main())
""")
    shown = [
        "| SDPA cuDNN | ",
        "None\n",
        "✓ 0.1 attention_flops: correct",
        "✓ 1.2 online_normalizer: correct",
        "chapter 2: ",
        " of 5 done",
    ]
    shown += [f"needs Triton, which is not installed here. {hardware.without_triton()}", "Triton         not installed"]
    assert all(words in run.stdout for words in shown), run.stdout + run.stderr
    assert run.returncode == (1 if sys.platform == "linux" else 0)
