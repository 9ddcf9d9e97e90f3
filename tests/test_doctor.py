"""Doctor: each known bad combination is found, with its remedy, and a good machine has nothing found."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from fa_tutorial import doctor
from fa_tutorial.__main__ import main

LAPTOP = doctor.Facts(
    system="Linux",
    python="3.11.7",
    torch="2.13.0+cpu",
    torch_cuda=None,
    triton="3.7.1",
    numpy="2.4.6",
    gpu=None,
    capability=None,
    shared_memory=None,
    driver=False,
    visible_devices=None,
    interpreter=True,
    switch="1",
    triton_came_first=False,
    compiler=None,
    python_headers=False,
    jupyterlab=True,
    state=Path("progress.json"),
    state_writable=True,
)
SERVER = dataclasses.replace(
    LAPTOP,
    torch="2.11.0+cu130",
    torch_cuda="13.0",
    triton="3.6.0",
    gpu="NVIDIA H200",
    capability=90,
    shared_memory=232_448,
    driver=True,
    interpreter=False,
    switch=None,
    compiler="gcc",
    python_headers=True,
)

BROKEN, NOTE = True, False
# What is changed, on which machine; how grave it is; words of the finding; words of the remedy.
COMBINATIONS = {
    "numpy-2.4-triton-3.6": (LAPTOP, {"triton": "3.6.0"}, BROKEN, "NumPy 2.4.6 with Triton 3.6.0", "numpy<2.4"),
    "triton-first": (LAPTOP, {"triton_came_first": True}, BROKEN, "imported before fa_tutorial", "import fa_tutorial first"),
    "switched-off": (LAPTOP, {"interpreter": False, "switch": "0"}, BROKEN, "TRITON_INTERPRET is set to '0'", "Unset TRITON_INTERPRET"),
    "cpu-torch-with-gpu": (LAPTOP, {"driver": True}, BROKEN, "torch 2.13.0+cpu is a CPU build", "CUDA build of torch"),
    "old-driver": (LAPTOP, {"driver": True, "torch_cuda": "13.0"}, BROKEN, "cannot use it", "Update the driver"),
    "hidden-gpu": (
        LAPTOP,
        {"driver": True, "torch_cuda": "13.0", "visible_devices": ""},
        NOTE,
        "CUDA_VISIBLE_DEVICES=''",
        "Unset CUDA_VISIBLE_DEVICES",
    ),
    "interpreter-on-gpu": (SERVER, {"interpreter": True, "switch": "1", "numpy": "2.3.0"}, NOTE, "although there is a GPU", "Unset"),
    "volta": (SERVER, {"gpu": "V100", "capability": 70}, BROKEN, "V100 has compute capability 7.0", "TRITON_INTERPRET=1"),
    "turing": (SERVER, {"gpu": "T4", "capability": 75}, NOTE, "does not use its tensor cores", "stored times"),
    "no-compiler": (SERVER, {"compiler": None}, BROKEN, "No C compiler", "build-essential"),
    "no-headers": (SERVER, {"python_headers": False}, BROKEN, "Python.h is not found", "python3-dev"),
    "no-triton-linux": (LAPTOP, {"triton": None, "interpreter": False}, BROKEN, "Triton is not installed", "constraints.txt"),
    "no-triton-macos": (LAPTOP, {"triton": None, "interpreter": False, "system": "Darwin"}, NOTE, "not published for Darwin", "WSL2"),
    "old-torch": (LAPTOP, {"torch": "2.10.1"}, NOTE, "torch 2.10.1 is outside", "constraints.txt"),
    "no-lab": (LAPTOP, {"jupyterlab": False}, NOTE, "JupyterLab is not installed", "pip install"),
    "no-state": (LAPTOP, {"state_writable": False}, NOTE, "progress is not kept", "FA_TUTORIAL_STATE"),
}


@pytest.mark.parametrize(("facts", "change", "broken", "what", "remedy"), COMBINATIONS.values(), ids=COMBINATIONS)
def test_bad_combination_is_found_with_its_remedy(facts, change, broken, what, remedy):
    [finding] = doctor.examine(dataclasses.replace(facts, **change))
    assert finding.broken is broken
    assert what in finding.what and finding.remedy and remedy in finding.remedy
    assert str(finding).startswith("broken" if broken else "note")


GOOD = (
    (LAPTOP, {}),
    (SERVER, {}),
    (LAPTOP, {"triton": "3.6.0", "numpy": "2.3.5"}),
    (LAPTOP, {"triton": "3.8.0", "numpy": "2.4.6"}),
    (LAPTOP, {"torch": "2.14.0a0+git1", "torch_cuda": "13.0"}),
)


@pytest.mark.parametrize(("facts", "change"), GOOD)
def test_nothing_is_found_on_a_good_machine(facts, change, tmp_path):
    assert doctor.examine(dataclasses.replace(facts, **change)) == []
    (tmp_path / "file").write_text("")
    assert doctor.writable(tmp_path / "new" / "folder") and not doctor.writable(tmp_path / "file" / "folder")


def test_missing_dependencies_are_named_before_any_of_them_is_imported(tmp_path):
    """All that the package declares; what has a marker is needed elsewhere, or for an extra."""
    (tmp_path / "fa_tutorial-0.dist-info").mkdir()
    lines = ("Name: fa_tutorial", *(f"Requires-Dist: {line}" for line in ("pytest", "gone-1>=2", "gone-2<3; extra == 'lab'", "gone-3")))
    (tmp_path / "fa_tutorial-0.dist-info" / "METADATA").write_text("\n".join(lines))
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
sys.modules |= dict.fromkeys(("numpy", "tqdm", "platformdirs", "matplotlib", "pandas"))
from fa_tutorial.__main__ import main
sys.exit(main(["doctor"]))"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 1 and run.stdout.startswith("broken  Not installed: gone-1, gone-3.\n"), run.stderr
    assert "make setup" in run.stdout


def test_a_kernel_that_is_wrong_or_fails_is_broken(monkeypatch, capsys):
    from fa_tutorial import matmul

    monkeypatch.setattr(doctor, "gather", lambda: LAPTOP)
    monkeypatch.setattr(matmul, "matmul", lambda a, b: a @ b + 1)
    assert "wrong result" in doctor.try_kernel().what
    monkeypatch.setattr(matmul, "matmul", lambda a, b: 1 / 0)
    assert "ZeroDivisionError: division by zero" in doctor.try_kernel().what
    assert main(["doctor"]) == 1 and "1 broken" in capsys.readouterr().out


@pytest.mark.parametrize(("change", "status"), [({"state_writable": False}, 0), ({"triton_came_first": True}, 1)])
def test_exit_status(change, status, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "gather", lambda: dataclasses.replace(LAPTOP, **change))
    assert main(["doctor"]) == status
    shown = capsys.readouterr().out
    assert ("Nothing is broken." in shown) is (status == 0)
    assert ("a tiled matmul ran" in shown) is (status == 0)
