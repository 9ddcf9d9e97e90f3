"""Every kernel of the package compiles for GPUs that are not there, fits their shared memory, and keeps its registers."""

import pytest
import torch

import compile_report as report
from fa_tutorial import compiling, forward, tiles
from fa_tutorial.bench import chapter_6
from fa_tutorial.source import defined, edited, source_of

pytestmark = pytest.mark.timeout(1800)


def in_words(rows):
    return [f"{row.kernel}, {row.case}, capability {row.capability}: {'; '.join(report.faults(row))}" for row in rows if report.faults(row)]


@pytest.mark.slow
@pytest.mark.parametrize("capability", [75, 80, 89, 90, 100, 120])
def test_every_kernel_and_every_configuration_compiles_without_faults(capability):
    """86 is 89 without FP8: each of its kernels has the registers, the shared memory and the spills that it has there."""
    rows = report.rows_for([capability])
    print(report.markdown(rows))
    assert in_words(rows) == []
    chapters = {row.kernel.split(".")[0] for row in rows}
    every = {"layout", "matmul", "forward", "backward", "tuned", "variants", "decode"}
    later = {"hopper"} if capability == 90 else set()
    assert chapters == every | later | ({"fp8"} if capability >= 89 else set())
    for D in (64, 128, 256) if capability == 90 else ():
        tile = forward.choose_config(D, torch.float16, compiling.SHARED_LIMITS[90])
        shared = {row.shared for row in rows if row.kernel.startswith("forward") and row.case.startswith(f"fp16 D={D} ")}
        assert shared == {D * 2 * (tile.block_m + 2 * tile.num_stages * tile.block_n)}, "(5.3)"


def shared_bytes(*args):
    return [row.shared for row in compiling.forward_rows(*args)]


@pytest.mark.slow
def test_shared_memory_of_a_readers_kernel(capsys):
    """It takes the bytes of (5.3), and those of a function of the reader's own that it calls: here tiles twice as wide. Where it doesn't
    compile, a line says why, and chapter 5's takes its place."""
    tile, text = tiles.TileConfig(64, 32, 4, 2), source_of(forward.flash_forward_kernel)
    names = vars(tiles) | vars(forward) | {"__name__": "reader"}
    kernel = defined(text, names)["flash_forward_kernel"]
    assert shared_bytes(kernel, [("float16", 64, tile), ("bfloat16", 128, tile)]) == [24_576, 49_152]
    wide = edited(
        source_of(forward.attend), ("BLOCK_N, BLOCK_D)", "2 * BLOCK_N, BLOCK_D)", 2), ("tl.arange(0, BLOCK_N)", "tl.arange(0, 2 * BLOCK_N)")
    )
    kernel = defined(f"{wide}\n\n\n{text}", names)["flash_forward_kernel"]
    assert shared_bytes(kernel, [("float16", 64, tile)]) == [40_960] and not capsys.readouterr().out
    kernel = defined(edited(text, ('-float("inf")', "-missing")), names)["flash_forward_kernel"]
    assert shared_bytes(kernel, [("float16", 64, tile)]) == [24_576] and "missing is not defined" in capsys.readouterr().out


def test_the_order_of_a_loop_by_mma_sync():
    order = ["wait until 2 copies are left", "q kᵀ", "softmax", "p v", "begin a copy", "begin a copy"]
    assert compiling.loop_order(forward.flash_forward_kernel, 3) == order


def test_each_code_has_a_process_of_its_own():
    """Nothing that one does reaches the next, and what went wrong is told."""
    found = "import torch; print(json.dumps([torch.__name__, os.environ.get('LEFT')]))"
    assert compiling.in_a_process(f"import os; os.environ['LEFT'] = '1'; import torch; torch.__name__ = 'other'; {found}") == ["other", "1"]
    for ended, words in (("1 / 0", "ZeroDivisionError"), ("import os; os.kill(os.getpid(), 9)", None), ("exit(1)", "SystemExit")):
        with pytest.raises(RuntimeError, match=words):
            compiling.in_a_process(ended)
    compiling._servers.mine[1].kill()
    compiling._servers.mine[1].wait()
    assert compiling.in_a_process(f"import os; {found}") == ["torch", None]


@pytest.mark.slow
def test_a_tile_that_is_too_large_or_spills_or_serialises_wgmma_is_a_fault():
    code = """
import torch
from fa_tutorial import compiling, decode, forward, layout, tiles
from fa_tutorial.source import defined, edited, source_of
from fa_tutorial.tiles import TileConfig

def rows(capability, tile):
    q, k, v, *_ = compiling.inputs(torch.float16, 128)
    call = ("", lambda: forward.flash_forward(q, k, v, False, 0.5, config=tile))
    return compiling.compile_calls(capability, [call])

print(json.dumps([*rows(86, TileConfig(128, 128, 8, 3)), *rows(90, TileConfig(128, 128, 4, 2))]))
"""
    too_large, spilling = (report.faults(compiling.Row(*row)) for row in compiling.in_a_process(code))
    assert any("shared memory" in fault for fault in too_large)
    assert any("spills" in fault for fault in spilling)


@pytest.mark.slow
def test_the_instructions_of_a_pair_that_chapter_6_counts():
    """Both loops of D = 64, those without a mask; what addresses, copies and waits take is left out."""
    code = """
import collections, torch
from fa_tutorial import backward, compiling, sass

q, k, v, o, do, lse = compiling.inputs(torch.float16, 64)
with compiling.compiling_for(90) as launched:
    backward.flash_backward(q, k, v, o, do, lse, None, False, 0.5)
tiles, found = backward.CONFIGS[compiling.SHARED_LIMITS[90]][64], {}
for name, kernel, _ in launched[1:]:
    tile = tiles.dkdv if "dkdv" in name else tiles.dq
    names = collections.Counter(op.split(".")[0] for op in sass.inner_loop(sass.sass_of(kernel)))
    of_scores = sum(names[op] for op in ("FMUL", "FFMA", "FADD", "FSETP", "F2FP"))
    found[name] = of_scores * 32 * tile.num_warps / (tile.block_m * tile.block_n)
print(json.dumps(found))
"""
    found = compiling.in_a_process(code)
    assert found == {"backward.dkdv_kernel": 8.0, "backward.dq_kernel": 7.5}
    assert sum(found.values()) == chapter_6.OTHER_INSTRUCTIONS


def test_ptxas_is_read_or_refused():
    log = "ptxas info : Used 40 registers, 8 bytes spill stores, 4 bytes spill loads\nC7511"
    assert compiling.read_ptxas(log) == (40, 12, ("C7511",))
    row = compiling.Row("forward.flash_forward_kernel", "fp16 D=64", 90, 4, 3, 40, 0, 0, ("C7511",))
    assert report.faults(row) == ["wgmma is serialised (C7511)"]
    with pytest.raises(RuntimeError, match="nothing of registers"):
        compiling.read_ptxas("")
