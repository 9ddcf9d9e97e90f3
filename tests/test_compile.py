"""Every kernel of the package compiles for GPUs that are not there, fits their shared memory, and keeps its registers."""

import json
from dataclasses import replace
from importlib import metadata

import pytest

from fa_tutorial import compile_report as report
from fa_tutorial import hardware, tuned
from fa_tutorial.forward import TileConfig

pytestmark = pytest.mark.timeout(1800)  # with another Triton than that of compiled.json, hundreds of compiles in one fixture
CASES = [case for capability in report.SHARED_LIMITS for case in report.cases(capability)]
EVERY = 24  # of the cases that compiled.json holds, one in so many is compiled again


def expected_kernels(capability: int) -> set[str]:
    least = {"tuned": capability >= hardware.TENSOR_CORE_CAPABILITY, "hopper": capability == hardware.HOPPER_CAPABILITY}
    return {kernel for kernel in report.KERNELS if least.get(kernel.partition(".")[0], True)}


def tile_of(case: report.Case) -> TileConfig | None:
    """None for a kernel without a tile of keys."""
    if "BLOCK_N" not in case.constants:
        return None
    return TileConfig(case.constants["BLOCK_M"], case.constants["BLOCK_N"], case.num_warps, case.num_stages)


@pytest.fixture(scope="module")
def rows() -> list[report.Row]:
    return report.rows_of(CASES)


def test_what_is_kept_is_true():
    """One compile in EVERY is made again, and gives what compiled.json says."""
    kept = report.stored_rows()
    some = [case for case in CASES if report.fingerprint(case) in kept][::EVERY]
    assert report.compile_cases(some) == [kept[report.fingerprint(case)] for case in some]


def test_what_is_kept_is_complete():
    if json.loads(report.STORE.read_text())["triton"] != metadata.version("triton"):
        pytest.skip("compiled.json was made with another Triton")
    kept = report.stored_rows()
    missing = [f"{case.kernel}, {case.title}, capability {case.capability}" for case in CASES if report.fingerprint(case) not in kept]
    assert not missing, f"python -m fa_tutorial.compile_report --store brings compiled.json up to date: {missing}"


def test_a_fingerprint_depends_on_all_that_a_compile_depends_on(monkeypatch):
    case = next(case for case in CASES if case.kernel == "tuned.forward_kernel")
    before = report.fingerprint(case)
    assert {"fa_tutorial.tuned.forward_rows", "fa_tutorial.tuned.attend", "fa_tutorial.matmul.dot", "LN_2"} <= report.source_closure(
        report.KERNELS[case.kernel]
    ).keys()
    assert report.fingerprint(replace(case, num_warps=16)) != before
    assert report.fingerprint(replace(case, capability=case.capability + 1)) != before
    source_of = report.source_of
    monkeypatch.setattr(report, "source_of", lambda kernel: source_of(kernel) + "#" * (kernel.__name__ == "attend"))
    report.kernel_fingerprint.cache_clear()
    assert report.fingerprint(case) != before
    monkeypatch.undo()
    report.kernel_fingerprint.cache_clear()
    assert report.fingerprint(case) == before


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


@pytest.mark.parametrize("capability", [capability for capability in report.SHARED_LIMITS if capability >= hardware.TENSOR_CORE_CAPABILITY])
def test_every_tuned_tile_is_there(capability):
    """Each tile that the tuned kernels may measure, by descriptors where the card has TMA, and each repair that follows."""
    there = {(case.kernel, case.title.split(" causal ")[0], tile_of(case)) for case in report.tuned_cases(capability)}
    descriptors = {"tensordesc" in case.arguments["q"] for case in report.tuned_cases(capability) if case.constants.get("TMA") is not None}
    assert descriptors == ({True, False} if capability == 90 else {capability > 90})  # on Hopper pointers too
    for D in (64, 128, 256):
        for kernel in tuned.TILES:
            for tile in tuned.candidates(kernel, D, 2, report.SHARED_LIMITS[capability]):
                repair = [("tuned.repair_kernel", tuned.repair_tile(tile))] if kernel == "forward" else []
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
