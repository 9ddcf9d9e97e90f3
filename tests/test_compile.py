"""Every kernel of the package compiles for GPUs that are not there, fits their shared memory, and keeps its registers."""

from dataclasses import replace

import pytest

from fa_tutorial import compile_report as report
from fa_tutorial import tuned
from fa_tutorial.forward import TileConfig

pytestmark = pytest.mark.timeout(1200)  # more than three hundred compiles in one fixture
AS_86 = 89  # gives the tuned kernels the tiles, registers and spills that 86 has: `make compile-report` compiles them, the tests do not


def expected_kernels(capability: int) -> set[str]:
    without_tuned = capability < tuned.LEAST_CAPABILITY or capability == AS_86
    return {kernel for kernel in report.KERNELS if not (without_tuned and kernel.startswith("tuned."))}


def tile_of(case: report.Case) -> TileConfig | None:
    """None for a kernel without a tile of keys."""
    if "BLOCK_N" not in case.constants:
        return None
    return TileConfig(case.constants["BLOCK_M"], case.constants["BLOCK_N"], case.num_warps, case.num_stages)


@pytest.fixture(scope="module")
def rows() -> list[report.Row]:
    cases = [case for capability in report.SHARED_LIMITS for case in report.cases(capability)]
    return report.compile_cases([case for case in cases if case.kernel in expected_kernels(case.capability)])


def test_every_kernel_fits_every_card(rows):
    print(report.markdown(rows))
    wrong = [
        f"{row.kernel}, {row.case}, capability {row.capability}: {'; '.join(report.faults(row))}" for row in rows if report.faults(row)
    ]
    assert wrong == []


def test_every_kernel_and_card_is_there(rows):
    assert {row.capability for row in rows} == set(report.SHARED_LIMITS) == {75, 80, 86, 89, 90, 100, 120}
    for capability in report.SHARED_LIMITS:
        assert {row.kernel for row in rows if row.capability == capability} == expected_kernels(capability)


@pytest.mark.parametrize("capability", [capability for capability in report.SHARED_LIMITS if capability >= tuned.LEAST_CAPABILITY])
def test_every_tuned_tile_is_there(capability):
    """Each tile that the tuned kernels may measure, by descriptors where the card has TMA, and each repair that follows."""
    there = {(case.kernel, case.title.split(" causal ")[0], tile_of(case)) for case in report.tuned_cases(capability)}
    descriptors = {"tensordesc" in case.arguments["q"] for case in report.tuned_cases(capability) if case.constants.get("TMA") is not None}
    assert descriptors == {capability >= 90}
    for D in (64, 128, 256):
        for kernel in tuned.TILES:
            for tile in tuned.candidates(kernel, D, 2, report.SHARED_LIMITS[capability]):
                repair = [("tuned.repair_kernel", tuned.repair_tile(tile, D))] if kernel == "forward" else []
                for name, used in [(f"tuned.{kernel}_kernel", tile), *repair]:
                    assert (name, f"fp16 D={D}", used) in there


def test_hopper_and_ampere_use_their_tensor_cores_without_waiting(rows):
    forward_rows = [row for row in rows if row.kernel == "flash_forward_kernel" and row.capability in (80, 90)]
    assert forward_rows and not any(row.warnings for row in forward_rows)


def test_what_does_not_fit_or_spills_is_a_fault():
    """The same functions see a tile that is too large, one that spills, and a serialised wgmma."""
    large, spilling = TileConfig(128, 128, 8, 3), TileConfig(128, 128, 4, 2)
    first, second, third, fourth = report.compile_cases(
        [
            report.forward_case(86, "fp16", 128, False, large),
            report.tuned_case(86, "forward", "fp16", 128, False, large),
            report.forward_case(90, "fp16", 128, False, spilling),
            report.tuned_case(90, "forward", "fp16", 128, False, spilling),
        ]
    )
    for row in (first, second):
        assert any("shared memory" in fault for fault in report.faults(row))
    for row in (third, fourth):
        assert any("spills" in fault for fault in report.faults(row))
        assert report.faults(replace(row, spills=0, shared=0, warnings=[])) == []
    assert any("serialised" in fault for fault in report.faults(third))


def test_ptxas_is_read_or_refused():
    log = "ptxas info : Used 40 registers, 8 bytes spill stores, 4 bytes spill loads\nC7511"
    assert report.read_ptxas(log) == (40, 12, ["C7511"])
    with pytest.raises(RuntimeError, match="nothing of registers"):
        report.read_ptxas("")
