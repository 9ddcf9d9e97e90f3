"""Every kernel of the package compiles for GPUs that are not there, fits their shared memory, and keeps its registers."""

import math
from pathlib import Path

import notebook_rules
import pytest
import torch
from right_answers.chapter_3 import tile_by_cases, tile_without_min

import compile_report as report
from fa_tutorial import compiling, decode, forward, layout, sass, tiles
from fa_tutorial.exercises import catalogue
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
def test_shared_memory_of_a_readers_kernel():
    """It takes the bytes of (5.3), and those of a function of the reader's own that it calls: here tiles twice as wide."""
    tile, text = tiles.TileConfig(64, 32, 4, 2), source_of(forward.flash_forward_kernel)
    names = vars(tiles) | vars(forward) | {"__name__": "reader"}
    kernel = defined(text, names)["flash_forward_kernel"]
    assert shared_bytes(kernel, [("float16", 64, tile), ("bfloat16", 128, tile)]) == [24_576, 49_152]
    wide = edited(
        source_of(forward.attend), ("BLOCK_N, BLOCK_D)", "2 * BLOCK_N, BLOCK_D)", 2), ("tl.arange(0, BLOCK_N)", "tl.arange(0, 2 * BLOCK_N)")
    )
    kernel = defined(f"{wide}\n\n\n{text}", names)["flash_forward_kernel"]
    assert shared_bytes(kernel, [("float16", 64, tile)]) == [40_960]


@pytest.mark.slow
def test_two_programs_of_decoding_fit_on_an_sm():
    """As choose_num_splits counts on, for fp16 with D = 128 and eight query heads on a key head: 228 KiB hold two blocks, of which
    each takes 1 KiB more, and no third."""
    code = """
from functools import partial
import torch
from fa_tutorial import compiling, decode

q, k = torch.empty(1, 64, 1, 128, dtype=torch.float16), torch.empty(1, 8, 1024, 128, dtype=torch.float16)
lengths = torch.tensor([1024], dtype=torch.int32)
call = partial(decode.flash_decode, q, k, k, lengths, num_splits=2)
print(json.dumps(next(row.shared for row in compiling.compile_calls(90, [("", call)]))))
"""
    assert 228 * 1024 // (compiling.in_a_process(code) + 1024) == decode.PROGRAMS_PER_SM


@pytest.mark.parametrize(("stages", "waits"), [(2, "wait for all copies"), (3, "wait until 2 copies are left")])
def test_the_copies_by_mma_sync_begin_after_both_products_and_with_three_stages_the_next_blocks_are_under_way(stages, waits):
    order = [waits, "q kᵀ", "softmax", "p v", "begin a copy", "begin a copy"]
    assert compiling.loop_order(forward.flash_forward_kernel, stages) == order


@pytest.mark.slow
def test_what_a_warp_copies_is_by_the_piece_that_it_computes():
    """Chapter 3's (3.3), for fp16: m n / (m + n) FLOPs per byte."""
    kernel = catalogue.find("3.2").solution
    launches = [(16, 16, 1), (32, 32, 4), (32, 32, 1), (64, 64, 16), (128, 64, 4), (128, 256, 8)]
    loops = compiling.matmul_loops(kernel, [(*launch, "mma.sync") for launch in launches])
    assert [loop.piece for loop in loops] == [(16, 16), (16, 16), (32, 32), (16, 16), (64, 32), (64, 64)]
    for loop in loops:
        (m, n), spilled = loop.piece, loop.spilled
        assert loop.instruction == "mma.sync" and loop.flops_per_byte == pytest.approx(m * n / (m + n)) and not spilled
    several = compiling.matmul_loops(kernel, [(64, 64, 4, "wgmma"), (64, 64, 8, "wgmma"), (256, 256, 8, "wgmma")])
    assert [loop.piece for loop in several] == [(64, 64), (64, 32), (64, 256)]
    assert [bool(loop.spilled) for loop in several] == [False, False, True]


@pytest.mark.slow
def test_instructions_of_a_readers_loop():
    """A matmul's, an exponential's for each of a thread's 32 scores; powers of 2 save multiplications, and nothing else."""
    tile, text, step = tiles.TileConfig(64, 64, 4, 3), source_of(forward.flash_forward_kernel), source_of(forward.softmax_step)
    names = vars(tiles) | vars(forward) | {"__name__": "reader"}
    course = sass.forward_loop(forward.flash_forward_kernel, 64, tile)
    assert course["HGMMA"] == 8 and 32 <= course["MUFU"] < 40
    both = f"{edited(step, ('tl.exp(', 'tl.exp2(', 2))}\n\n\n{source_of(forward.attend)}\n\n\n{text}"
    powers_of_2 = sass.forward_loop(defined(both, names)["flash_forward_kernel"], 64, tile)
    assert powers_of_2["FMUL"] <= course["FMUL"] - 32 and powers_of_2["MUFU"] == course["MUFU"]


@pytest.mark.slow
def test_registers_of_a_readers_softmax(capsys):
    """Its own names come along; where it doesn't compile, a line says why, and chapter 2's takes its place."""

    def registers(*edit):
        names = vars(layout) | {"__name__": "reader", "math": math}
        return compiling.softmax_registers(defined(edited(source_of(layout.softmax_kernel), edit), names)["softmax_kernel"], [(1024, 4)])

    course = registers('-float("inf")', "-math.inf")
    assert course == compiling.softmax_registers(layout.softmax_kernel, [(1024, 4)]) != registers("tl.exp(x", "tl.sin(x")
    assert not capsys.readouterr().out
    assert registers('-float("inf")', "-missing") == course
    assert "missing is not defined" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("lowest", ["-math.inf", "LOWEST", "-missing"])
def test_shared_memory_of_a_kernel_with_its_own_names(lowest, capsys):
    """Its modules and constants come along; where it doesn't compile, a line says why, and chapter 5's takes its place."""
    tile, text = tiles.TileConfig(64, 32, 4, 2), edited(source_of(forward.flash_forward_kernel), ('-float("inf")', lowest))
    names = vars(tiles) | vars(forward) | {"__name__": "reader", "math": math, "LOWEST": forward.tl.constexpr(-math.inf)}
    kernel = defined(text, names)["flash_forward_kernel"]
    assert shared_bytes(kernel, [("float16", 64, tile)]) == [24_576]
    said = capsys.readouterr().out
    assert ("missing is not defined" in said and said.count("\n") == 1) if lowest == "-missing" else not said


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


def test_where_nothing_compiles_the_error_is_raised(monkeypatch):
    def failed(code):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(compiling, "in_a_process", failed)
    with pytest.raises(RuntimeError, match="no compiler"):
        compiling.forward_rows(forward.flash_forward_kernel, [])


@pytest.mark.slow
@pytest.mark.parametrize("tile_of", [tile_by_cases, tile_without_min])
def test_a_readers_order_of_programs_compiles_in_the_pages_kernel(tile_of):
    """An `if` needs numbers of one width, though offsets have 64 bits."""
    cells = notebook_rules.load(Path(__file__).parents[1] / "notebooks" / "03_tiled_matmul.ipynb")["cells"]
    page = next(cell["source"] for cell in cells if "def grouped_kernel(" in cell["source"]).split("\n\n\na, b =")[0]
    code = f"""
import torch, triton, triton.language as tl
from fa_tutorial import compiling
from fa_tutorial.source import defined

names = defined({source_of(tile_of)!r}, dict(triton=triton, tl=tl, __name__="reader"))
kernel = defined({page!r}, names | dict(answer=lambda *_: names[{tile_of.__name__!r}], grouped_tile=None))["grouped_kernel"]
a = torch.empty(4096, 4096, dtype=torch.float16, device="meta")
with compiling.compiling_for(90) as launched:
    kernel[(1,)](a, a, a, *[4096] * 3, *[4096, 1] * 3, BLOCK_M=64, BLOCK_N=64, BLOCK_K=64, GROUP=8)
print(len(launched))
"""
    assert compiling.in_a_process(code) == 1


@pytest.mark.slow
def test_a_tile_that_is_too_large_or_spills_or_serialises_wgmma_is_a_fault():
    code = """
import torch
from fa_tutorial import compiling, decode, forward, layout, sass, tiles
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
def test_matmuls_wait_where_the_backwards_masked_loop_comes_first():
    """With chapter 7's tile of D = 128, and in that order alone."""
    code = """
from functools import partial
import torch
from fa_tutorial import backward, compiling
from fa_tutorial.source import defined, source_of

q, k, v, o, do, lse = compiling.inputs(torch.float16, 128)

def launch(kernel):
    backward.dkdv_kernel = kernel
    backward.flash_backward(q, k, v, o, do, lse, None, True, 0.5)

text = source_of(backward.dkdv_kernel)
full, masked, end = map(text.index, ("        for start_m in tl.range(full_m", "        if IS_CAUSAL:  # last", "\\n    store_tile(dk,"))
first = defined(text[:full] + text[masked:end] + text[full:masked] + text[end:], vars(backward))["dkdv_kernel"]
calls = [("", partial(launch, kernel)) for kernel in (backward.dkdv_kernel, first)]
print(json.dumps([row.warnings for row in compiling.compile_calls(90, calls) if row.kernel == "backward.dkdv_kernel"]))
"""
    assert compiling.in_a_process(code) == [[], ["C7515"]]


def test_ptxas_is_read_or_refused():
    log = "ptxas info : Used 40 registers, 8 bytes spill stores, 4 bytes spill loads\nC7511"
    assert compiling.read_ptxas(log) == (40, 12, ("C7511",))
    row = compiling.Row("forward.flash_forward_kernel", "fp16 D=64", 90, 4, 3, 40, 0, 0, ("C7511",))
    assert report.faults(row) == ["wgmma is serialised (C7511)"]
    with pytest.raises(RuntimeError, match="nothing of registers"):
        compiling.read_ptxas("")
