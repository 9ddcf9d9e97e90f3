"""Every kernel of the package compiles for GPUs that are not there, fits their shared memory, and keeps its registers."""

from dataclasses import replace

import pytest

from fa_tutorial import compile_report as report
from fa_tutorial.forward import TileConfig

pytestmark = pytest.mark.timeout(900)  # some two hundred compiles in one fixture


@pytest.fixture(scope="module")
def rows() -> list[report.Row]:
    return report.compile_cases([case for capability in report.SHARED_LIMITS for case in report.cases(capability)])


def test_every_kernel_fits_every_card(rows):
    print(report.markdown(rows))
    wrong = [
        f"{row.kernel}, {row.case}, capability {row.capability}: {'; '.join(report.faults(row))}" for row in rows if report.faults(row)
    ]
    assert wrong == []


def test_every_kernel_and_card_is_there(rows):
    assert {row.capability for row in rows} == set(report.SHARED_LIMITS) == {75, 80, 86, 89, 90, 100, 120}
    for capability in report.SHARED_LIMITS:
        assert {row.kernel for row in rows if row.capability == capability} == set(report.KERNELS)


def test_hopper_and_ampere_use_their_tensor_cores_without_waiting(rows):
    forward_rows = [row for row in rows if row.kernel == "flash_forward_kernel" and row.capability in (80, 90)]
    assert forward_rows and not any(row.warnings for row in forward_rows)


def test_what_does_not_fit_or_spills_is_a_fault():
    """The same functions see a tile that is too large, one that spills, and a serialised wgmma."""
    too_large = report.forward_case(86, "fp16", 128, False, TileConfig(128, 128, 8, 3))
    spilling = report.forward_case(90, "fp16", 128, False, TileConfig(128, 128, 4, 2))
    first, second = report.compile_cases([too_large, spilling])
    assert any("shared memory" in fault for fault in report.faults(first))
    assert any("spills" in fault for fault in report.faults(second))
    assert any("serialised" in fault for fault in report.faults(second))
    assert report.faults(replace(second, spills=0, shared=0, warnings=[])) == []


def test_ptxas_is_read_or_refused():
    log = "ptxas info : Used 40 registers, 8 bytes spill stores, 4 bytes spill loads\nC7511"
    assert report.read_ptxas(log) == (40, 12, ["C7511"])
    with pytest.raises(RuntimeError, match="nothing of registers"):
        report.read_ptxas("")
