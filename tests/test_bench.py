"""Bench: what is measured and how rows are kept, with a stand-in for the GPU; tables and plots from made rows; every provider on a real GPU."""

import dataclasses
import itertools
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import matplotlib
import pytest
import torch
from buffers import DEVICE, ON_GPU, needs_gpu, randn

from fa_tutorial import figures, hopper, ledger, reference
from fa_tutorial.__main__ import main
from fa_tutorial.attention import best
from fa_tutorial.bench import cases, chapter_8, chapters, measure, peers, plots, results, sweep, tables, timing, training
from fa_tutorial.bench.cases import GRIDS, LABELS, Case, Grid, Shape
from fa_tutorial.tiles import TileConfig

TINY = Shape(1, 2, 2, 16, 16, 16, False)
PROVENANCE = {"gpu": "NVIDIA Test", "cuda": "13.0", "torch": "2.13.0", "triton": "3.7.1", "date": "2026-01-01"}
FIELDS = ["provider", "mode", "dtype", "B", "H_q", "H_k", "S_q", "S_k", "D", "is_causal"]
NUMBERS = ["ms", "ms_20", "ms_80", "tflops", "peak_bytes", "first_call_s"]


@pytest.fixture
def clock(monkeypatch):
    """A machine whose every call takes 2 ms: calls run, on whatever device is here, and are not timed."""

    def time_call(call):
        call()
        return timing.Timing(2.0, 1.5, 2.5)

    def once(result):
        return lambda call: [call(), result][1]

    monkeypatch.setattr(timing, "require_gpu", lambda: None)
    monkeypatch.setattr(sweep, "require_gpu", lambda: None)
    monkeypatch.setattr(timing, "time_call", time_call)
    monkeypatch.setattr(measure, "first_call_s", once(0.25))
    monkeypatch.setattr(measure, "peak_bytes", once(4096))
    monkeypatch.setattr(sweep, "measure_ceilings", lambda: {"copy_gb_s": 1000.0})
    monkeypatch.setattr(results, "provenance", lambda: dict(PROVENANCE))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *device: PROVENANCE["gpu"])


@pytest.fixture
def provider(monkeypatch):
    """provider(function) makes "fake" a provider that calls it; returns the calls' shapes."""

    def add(function):
        calls = []

        def attention(q, k, v, is_causal=False):
            calls.append((tuple(q.shape), is_causal))
            return function(q, k, v, is_causal)

        monkeypatch.setitem(peers.PROVIDERS, "fake", attention)
        return calls

    return add


def grid_of(*shapes: Shape) -> Grid:
    return Grid("a test", shapes, ("fp16",), ("fwd",))


def tiny(S: int) -> Shape:
    return dataclasses.replace(TINY, S_q=S, S_k=S)


# ---------------------------------------------------------------- cases and grids


def test_a_case_is_about_the_fields_of_a_row():
    assert list(Case("naive", "fwd", "fp16", TINY).about()) == FIELDS


@pytest.mark.parametrize("is_causal", [False, True])
def test_flops_are_the_ledgers(is_causal):
    shape = Shape(2, 6, 3, 100, 150, 64, is_causal)
    forward, backward, both = (Case("naive", mode, "fp16", shape).flops() for mode in cases.MODES)
    assert forward == ledger.attention_flops(2, 6, 100, 150, 64, is_causal)
    assert backward == forward * 5 // 2 and both == forward + backward


@pytest.mark.parametrize(
    "make",
    [
        lambda: Case("naive", "forward", "fp16", TINY),
        lambda: Case("naive", "fwd", "fp8", TINY),
        lambda: Shape(1, 2, 2, 0, 16, 16, False),
        lambda: Shape(1, 6, 4, 16, 16, 16, False),
        lambda: measure.check(Case("naive", "fwd", "fp16", dataclasses.replace(TINY, D=512))),
        lambda: measure.check(Case("fa9", "fwd", "fp16", TINY)),
        lambda: cases.grid("large"),
    ],
    ids=["mode", "dtype", "size", "heads", "D", "provider", "grid"],
)
def test_what_is_not_known_is_refused(make):
    with pytest.raises(ValueError):
        make()


def test_the_literatures_grid():
    grid = GRIDS["literature"]
    assert len(grid.shapes) == 24 and grid.dtypes == ("fp16", "bf16") and grid.modes == ("fwd", "bwd")
    assert all(shape.B * shape.S_q == 16_384 and shape.H_q * shape.D == 2048 and shape.H_k == shape.H_q for shape in grid.shapes)
    assert {(shape.D, shape.H_q) for shape in grid.shapes} == {(64, 32), (128, 16)}
    assert sorted({shape.S_q for shape in grid.shapes}) == [512, 1024, 2048, 4096, 8192, 16_384]
    assert len(list(cases.cases_of(grid, ["naive", "basic"]))) == 24 * 2 * 2 * 2


def test_the_twelve_points_lie_on_the_literatures_grid():
    shapes = GRIDS["points"].shapes
    assert len(set(shapes)) == 12 and set(shapes) < set(GRIDS["literature"].shapes)
    assert {shape.S_q for shape in shapes} == {1024, 4096, 16_384} and GRIDS["points"].dtypes == ("fp16",)


def test_the_providers_of_one_point_follow_one_another():
    asked = list(cases.cases_of(GRIDS["points"], ["naive", "tuned"], modes=["bwd"], dtypes=["bf16"]))
    assert len(asked) == 24 and {(case.mode, case.dtype) for case in asked} == {("bwd", "bf16")}
    for first, second in zip(asked[::2], asked[1::2], strict=True):
        assert (first.provider, second.provider) == ("naive", "tuned") and first.shape == second.shape


# ---------------------------------------------------------------- providers


def test_every_step_of_chapters_8_and_9_is_a_provider():
    assert set(LABELS) | set(peers.TUNED_STEPS) | set(peers.HOPPER_STEPS) == set(peers.PROVIDERS)
    assert tuple(peers.HOPPER_STEPS.values()) == tuple(hopper.forward.STEPS)


@pytest.mark.parametrize("name", ["naive", "sdpa_flash", "basic", "tuned", *peers.TUNED_STEPS])
@pytest.mark.parametrize("is_causal", [False, True])
def test_providers_compute_attention_and_its_gradients(name, is_causal):
    dtype = torch.float16
    q, do = (randn(1, 4, 16, 16, dtype=dtype, seed=seed) for seed in (0, 1))
    k, v = (randn(1, 2, 16, 16, dtype=dtype, seed=seed) for seed in (2, 3))
    inputs = [x.requires_grad_() for x in (q, k, v)]
    o = peers.provider(name)(*inputs, is_causal)
    got = (o, *torch.autograd.grad(o, inputs, do))
    want = (reference.attention(q, k, v, is_causal)[0], *reference.gradients(q, k, v, do, is_causal))
    for x, truth in zip(got, want, strict=True):
        torch.testing.assert_close(x.double(), truth, atol=0.02, rtol=0.02)


def test_the_fastest_tile_is_measured_once(monkeypatch):
    """Of three tiles one does not fit and the last is the fastest."""
    tiles = [TileConfig(16, 16, warps, 1) for warps in (1, 2, 4)]
    ran = []

    def do_bench(run):
        run()
        return 1.0 / ran[-1].num_warps

    def run(tile):
        ran.append(tile)
        if tile.num_warps == 1:
            raise peers.OutOfResources(300_000, 232_448, "shared memory")

    monkeypatch.setattr(peers, "_fastest", {})
    monkeypatch.setattr(peers, "candidates", lambda *kind: tuple(tiles[1:]))
    monkeypatch.setattr(peers.triton.testing, "do_bench", do_bench)
    q = randn(1, 1, 16, 16)
    for _ in range(2):
        assert peers.fastest("forward", tiles[0], q, q, False, run) == tiles[-1]
    assert ran == tiles


def test_sdpa_refuses_a_mask_that_it_would_align_otherwise():
    q, k = randn(1, 1, 16, 16), randn(1, 1, 32, 16)
    with pytest.raises(peers.Unsupported, match="top left"):
        peers.provider("sdpa_flash")(q, k, k, True)


def test_flash_attn_takes_its_own_layout(monkeypatch):
    class Package:
        @staticmethod
        def flash_attn_func(q, k, v, causal):
            assert q.shape == (1, 32, 2, 16), "(B, S, H, D)"
            return reference.naive_attention(*(x.transpose(1, 2) for x in (q, k, v)), causal).transpose(1, 2)

    monkeypatch.setitem(sys.modules, "flash_attn", Package)
    q, k, v = (randn(1, 2, 32, 16, dtype=torch.bfloat16, seed=seed) for seed in range(3))
    assert torch.equal(peers.provider("flash_attn")(q, k, v, True), reference.naive_attention(q, k, v, True))


def test_flex_compiles_once_for_each_kind_of_input(monkeypatch):
    compiled = []

    def compile(function, **options):
        compiled.append(options)
        return lambda q, k, v, block_mask, enable_gqa: (q.shape, block_mask is not None, enable_gqa)

    monkeypatch.setattr(torch, "compile", compile)
    peers._compiled_flex.cache_clear()
    try:
        q, k = randn(1, 4, 160, 16), randn(1, 2, 160, 16)
        assert [peers.flex(q, k, k, causal)[1:] for causal in (False, False, True, True)] == [(False, True)] * 2 + [(True, True)] * 2
        assert compiled == [{"dynamic": False, "fullgraph": True}] * 2
    finally:
        peers._compiled_flex.cache_clear()


@pytest.mark.parametrize(("S_q", "S_k"), [(256, 256), (128, 300)])
def test_flexs_mask_is_bottom_right_aligned(S_q, S_k):
    mask = peers._causal_block_mask(S_q, S_k, DEVICE)
    query, key = torch.arange(S_q, device=DEVICE)[:, None], torch.arange(S_k, device=DEVICE)[None, :]
    assert torch.equal(mask.mask_mod(0, 0, query, key), reference.causal_mask(S_q, S_k, DEVICE))


def test_trainings_use_the_same_peers():
    q, k, v = (randn(1, 2, 16, 16, seed=seed) for seed in range(3))
    want = reference.attention(q, k, v, True)[0]
    for name in ("sdpa_math", "basic"):
        torch.testing.assert_close(training.ATTENTIONS[name](q, k, v).double(), want, atol=1e-4, rtol=1e-4)


# ---------------------------------------------------------------- one row


@pytest.mark.parametrize("mode", cases.MODES)
@pytest.mark.parametrize("name", ["naive", "basic"])
def test_a_row(clock, name, mode):
    case = Case(name, mode, "fp16", dataclasses.replace(TINY, H_q=4, is_causal=True))
    row = case.about() | measure.measure(case)
    assert list(row) == FIELDS + NUMBERS
    assert (row["ms"], row["ms_20"], row["ms_80"], row["peak_bytes"], row["first_call_s"]) == (2.0, 1.5, 2.5, 4096, 0.25)
    assert row["tflops"] == round(case.flops() / 2e-3 / 1e12, 2)


def test_backward_is_timed_on_one_graph(clock, provider):
    calls = provider(reference.naive_attention)
    measure.measure(Case("fake", "bwd", "fp32", TINY))
    assert len(calls) == 1, "the forward runs once, before the clock starts"
    measure.measure(Case("fake", "fwd_bwd", "fp32", TINY))
    assert len(calls) == 1 + 3, "first call, peak, time"


def raises(error: Exception):
    def attention(q, k, v, is_causal):
        raise error

    return attention


REASONS = {
    "memory": (torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate"), "out of memory"),
    "shared": (measure.OutOfResources(300_000, 232_448, "shared memory"), "not enough shared memory"),
    "unsupported": (peers.Unsupported("no kernel for D = 80"), "no kernel for D = 80"),
}


@pytest.mark.parametrize(("error", "reason"), REASONS.values(), ids=REASONS)
@pytest.mark.parametrize("mode", cases.MODES)
def test_what_cannot_run_becomes_null_with_a_reason(clock, provider, error, reason, mode):
    provider(raises(error))
    row = measure.measure(Case("fake", mode, "fp16", TINY))
    assert row == dict.fromkeys(NUMBERS) | {"reason": reason}


def test_no_kernel_of_sdpa_becomes_null_with_a_reason(clock, monkeypatch):
    def none(*args, **options):
        raise RuntimeError("No available kernel. Aborting execution.")

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", none)
    row = measure.measure(Case("sdpa_cudnn", "fwd", "fp32", TINY))
    assert row["ms"] is None and "cudnn_attention has no kernel" in row["reason"]


def test_a_missing_package_becomes_null_with_a_reason(clock, monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    assert measure.measure(Case("flash_attn", "fwd", "fp16", TINY))["reason"] == "not installed"


def test_other_errors_are_raised(clock, provider):
    provider(raises(RuntimeError("misaligned address")))
    with pytest.raises(RuntimeError, match="misaligned"):
        measure.measure(Case("fake", "fwd", "fp16", TINY))


# ---------------------------------------------------------------- sweeps


def test_a_sweep_writes_provenance_and_rows(clock, tmp_path):
    path = tmp_path / "new" / "card.json"
    assert sweep.sweep(path, grid_of(tiny(16), tiny(32)), ["naive", "sdpa_flash"]) == []
    stored = results.read(path)
    assert stored["provenance"] == PROVENANCE | {"ceilings": {"copy_gb_s": 1000.0}} and stored["kernels"] == []
    assert [(row["S_q"], row["provider"]) for row in stored["rows"]] == list(itertools.product((16, 32), ("naive", "sdpa_flash")))
    assert all(list(row) == FIELDS + NUMBERS for row in stored["rows"])


def test_a_done_row_is_not_run_again(clock, provider, tmp_path, capsys):
    path, calls = tmp_path / "card.json", provider(reference.naive_attention)
    sweep.sweep(path, grid_of(tiny(16)), ["fake"])
    before, text = len(calls), path.read_text()
    sweep.sweep(path, grid_of(tiny(16)), ["fake"])
    assert len(calls) == before and path.read_text() == text
    assert "nothing to measure: every row is done" in capsys.readouterr().err
    sweep.sweep(path, grid_of(tiny(16), tiny(32)), ["fake"], dtypes=["fp16"])
    assert {shape for shape, _ in calls[before:]} == {(1, 2, 32, 16)}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), torch.AcceleratorError("an illegal memory access was encountered")])
def test_an_interruption_keeps_every_finished_row(clock, provider, tmp_path, error):
    path = tmp_path / "card.json"

    def attention(q, k, v, is_causal):
        if q.shape[2] == 48:
            raise error
        return reference.naive_attention(q, k, v, is_causal)

    provider(attention)
    grid = grid_of(*map(tiny, (16, 32, 48, 64)))
    with pytest.raises(type(error)):
        sweep.sweep(path, grid, ["fake"])
    assert [row["S_q"] for row in results.read(path)["rows"]] == [16, 32]
    calls = provider(reference.naive_attention)
    sweep.sweep(path, grid, ["fake"])
    assert [row["S_q"] for row in results.read(path)["rows"]] == [16, 32, 48, 64]
    assert {shape[2] for shape, _ in calls} == {48, 64}
    assert [entry.name for entry in tmp_path.iterdir()] == ["card.json"]


def test_a_row_is_on_disk_before_the_next_one_starts(clock, provider, tmp_path):
    path, seen = tmp_path / "card.json", []

    def attention(q, k, v, is_causal):
        seen.append((q.shape[2], len(results.read(path)["rows"])))
        return reference.naive_attention(q, k, v, is_causal)

    provider(attention)
    sweep.sweep(path, grid_of(*map(tiny, (16, 32, 48))), ["fake"])
    assert set(seen) == {(16, 0), (32, 1), (48, 2)}


def test_out_of_memory_is_kept_and_an_unexpected_error_is_told(clock, provider, tmp_path, capsys):
    path = tmp_path / "card.json"

    def attention(q, k, v, is_causal):
        if q.shape[2] == 16:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        if q.shape[2] == 32:
            raise IndexError("a fault of the peer\nwith details")
        return reference.naive_attention(q, k, v, is_causal)

    calls = provider(attention)
    grid = grid_of(*map(tiny, (16, 32, 48)))
    [failed] = sweep.sweep(path, grid, ["fake"])
    assert failed["S_q"] == 32
    rows = results.read(path)["rows"]
    assert [(row["S_q"], row["ms"], row.get("reason")) for row in rows] == [(16, None, "out of memory"), (48, 2.0, None)]
    shown = capsys.readouterr().err
    assert "failed: provider=fake" in shown and "IndexError: a fault of the peer\n" in shown and "with details" not in shown

    calls.clear()
    sweep.sweep(path, grid, ["fake"])
    assert {shape[2] for shape, _ in calls} == {32}, "only what failed is tried again"


def test_what_was_not_installed_is_tried_again(clock, monkeypatch, tmp_path):
    path = tmp_path / "card.json"
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    for _ in range(2):
        sweep.sweep(path, grid_of(tiny(16)), ["flash_attn"])
        assert [row["reason"] for row in results.read(path)["rows"]] == ["not installed"]
    monkeypatch.setitem(peers.PROVIDERS, "flash_attn", reference.naive_attention)
    sweep.sweep(path, grid_of(tiny(16)), ["flash_attn"])
    [row] = results.read(path)["rows"]
    assert row["ms"] == 2.0 and "reason" not in row


@pytest.mark.parametrize(("field", "value"), [("gpu", "NVIDIA Other"), ("torch", "2.11.0"), ("triton", "3.6.0")])
def test_numbers_of_another_machine_are_not_mixed_in(clock, tmp_path, field, value, monkeypatch):
    path = tmp_path / "card.json"
    sweep.sweep(path, grid_of(tiny(16)), ["naive"])
    monkeypatch.setattr(results, "provenance", lambda: PROVENANCE | {field: value})
    with pytest.raises(ValueError, match=f"holds results of {field} .*, here {re.escape(value)}: choose another file"):
        sweep.sweep(path, grid_of(tiny(32)), ["naive"])


def test_a_wrong_name_stops_a_sweep_before_it_starts(clock, tmp_path):
    for providers, modes, dtypes in ((["fa9"], None, None), (["naive"], ["both"], None), (["naive"], None, ["fp8"])):
        with pytest.raises(ValueError, match="must be one of"):
            sweep.sweep(tmp_path / "card.json", grid_of(tiny(16)), providers, modes, dtypes)
    assert list(tmp_path.iterdir()) == []


def test_the_chapters_cases_are_the_stored_ones():
    """What chapters.py measures is what the package stores: renaming a field would measure everything again."""
    rows = results.load("h200")["rows"]
    assert all(sweep.is_done(about, rows) for about, _ in chapters.attention_cases())


# ---------------------------------------------------------------- results


def test_save_and_read_give_back_what_was_stored(tmp_path):
    stored = {"provenance": PROVENANCE, "rows": [{"ms": None, "reason": "out of memory"}, {"ms": 1.5}], "kernels": []}
    path = tmp_path / "a" / "card.json"
    results.save(path, stored)
    assert results.read(path) == stored == json.loads(results.dumps(stored))
    assert len(path.read_text().splitlines()) == len(results.dumps(stored | {"rows": stored["rows"][:1]}).splitlines()) + 1, "a row a line"


def test_an_interrupted_save_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "card.json"
    results.save(path, {"provenance": {}, "rows": [{"ms": 1}]})

    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        results.save(path, {"provenance": {}, "rows": [{"ms": 1}, {"ms": 2}]})
    assert results.read(path)["rows"] == [{"ms": 1}]
    assert [entry.name for entry in tmp_path.glob("*.json")] == ["card.json"], "no part stands among the results"


@pytest.mark.parametrize(
    "text", [None, b"{", b"\xff\xfe", b"[]", b"{}", b'{"provenance": null, "rows": []}', b'{"provenance": {}, "rows": [1]}']
)
def test_a_file_that_holds_no_results(tmp_path, text):
    path = tmp_path / "card.json"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(ValueError, match=r"card\.json"):
        results.read(path)


def test_stored_results_are_loaded_by_name():
    assert results.load("h200")["provenance"]["gpu"] == "NVIDIA H200"
    with pytest.raises(ValueError, match=r"no stored results for 'h100'; stored: .*h200"):
        results.load("h100")


def test_select_never_gives_nothing():
    rows = [{"a": 1, "b": 2}, {"a": 1, "b": 3}]
    assert results.select(rows, a=1) == rows and results.select(rows, a=1, b=3) == rows[1:]
    with pytest.raises(ValueError, match="no stored row has"):
        results.select(rows, c=1)


@pytest.mark.parametrize(
    ("gpu", "name"), [("NVIDIA H200", "h200"), ("NVIDIA GeForce RTX 5060 Ti", "geforce_rtx_5060_ti"), ("Tesla T4", "tesla_t4")]
)
def test_a_gpus_own_file(monkeypatch, gpu, name):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: gpu)
    assert results.path_here().name == f"{name}.json" and results.path_here().parent.name == "results"


def test_what_is_stored_is_well_formed():
    """Every attention row has all of its fields; a null has a reason, and a number agrees with the ledger."""
    for row in results.load("h200")["rows"]:
        case = Case(row["provider"], row["mode"], row["dtype"], cases.shape_of(row))
        assert case.about().items() <= row.items() and {"ms_20", "ms_80", "tflops", "peak_bytes"} <= row.keys()
        if row["ms"] is None:
            assert row["reason"]
        else:
            assert row["tflops"] == pytest.approx(case.flops() / row["ms"] / 1e9, rel=0.01, abs=0.01)


# ---------------------------------------------------------------- tables and plots


def made(provider: str, shape: Shape, ms: float | None, mode: str = "fwd") -> dict:
    case = Case(provider, mode, "fp16", shape)
    if ms is None:
        return case.about() | measure.nothing("out of memory")
    numbers = {"ms": ms, "ms_20": ms, "ms_80": ms, "tflops": round(case.flops() / ms / 1e9, 2), "peak_bytes": 1 << 20, "first_call_s": 0.5}
    return case.about() | numbers


@pytest.fixture
def stored():
    """The 12 points: tuned takes 1 ms; cuDNN 0.5 or 2, but fails at one point; naive has no number at all, flex two."""
    rows = []
    for place, shape in enumerate(GRIDS["points"].shapes):
        for mode in ("fwd", "bwd"):
            rows.append(made("tuned", shape, 1.0, mode))
            rows.append(made("sdpa_cudnn", shape, None if place == 3 else (0.5, 2.0)[place % 2], mode))
            rows.append(made("naive", shape, None, mode))
        if place < 2:
            rows.append(made("flex", shape, 3.0))
    rows.append(made("tuned", TINY, 1.0))
    return {"provenance": PROVENANCE, "rows": rows, "kernels": []}


def test_speedups_are_geometric_means_over_common_points(stored):
    flex, cudnn = sorted(tables.compare(stored["rows"], GRIDS["points"], "fwd", "fp16"), key=lambda comparison: comparison.points)
    assert (flex.peer, flex.points) == ("flex", 2) and flex.mean == pytest.approx(3.0)
    assert (cudnn.peer, cudnn.points, cudnn.lowest, cudnn.highest) == ("sdpa_cudnn", 11, 0.5, 2.0)
    assert cudnn.mean == pytest.approx(2 ** (-1 / 11)), "six points at a half, five at two"
    table = tables.comparison_table(stored["rows"], GRIDS["points"], "fwd", "fp16")
    assert "| SDPA cuDNN | 0.94 | 0.50 | 2.00 | 11 |" in table and "forward, fp16: tuned (chapter 8) against" in table


def test_the_readme_shows_what_is_stored(stored):
    readme = (Path(__file__).resolve().parents[1] / "README.md").read_text()
    assert tables.speed_table(results.load()["rows"], GRIDS["points"]) in readme
    lines = tables.speed_table(stored["rows"], GRIDS["points"]).splitlines()
    assert lines[0] == "| against | forward, tuned (chapter 8) | backward, tuned (chapter 8) |", "nothing is stored for chapter 9 here"
    assert "| SDPA cuDNN | 0.94 (0.50 to 2.00) | " in "\n".join(lines)


def test_tflops_table_shows_a_gap_as_a_dash(stored):
    lines = tables.tflops_table(stored["rows"], GRIDS["points"], "fwd", "fp16").splitlines()
    assert lines[0] == "| D | mask | S | tuned (chapter 8) | SDPA cuDNN | FlexAttention | naive |" and len(lines) == 2 + 12
    assert {line.count("|") for line in lines} == {8}
    number = round(Case("tuned", "fwd", "fp16", GRIDS["points"].shapes[3]).flops() / 1e9)
    assert lines[5] == f"| 64 | causal | 1,024 | {number} | – | – | – |"


def test_no_row_is_an_error(stored):
    for show in (tables.compare, tables.tflops_table):
        with pytest.raises(ValueError, match="no stored row"):
            show(stored["rows"], GRIDS["points"], "fwd", "bf16")


def test_plots_leave_a_gap_for_null(stored):
    with matplotlib.rc_context():
        figures.style()
        figure = plots.draw(stored["rows"], GRIDS["points"], "bwd", "fp16", "NVIDIA Test")
    titles = [ax.get_title() for ax in figure.axes]
    assert titles == ["D = 64, full", "D = 64, causal", "D = 128, full", "D = 128, causal"]
    for ax, is_first in zip(figure.axes, (False, True, False, False), strict=True):
        curves = {line.get_label(): line for line in ax.get_lines()}
        assert list(curves) == ["tuned (chapter 8)", "SDPA cuDNN", "naive"]
        assert list(curves["tuned (chapter 8)"].get_xdata()) == [1024, 4096, 16_384]
        assert [math.isnan(y) for y in curves["SDPA cuDNN"].get_ydata()] == [is_first, False, False]
        assert all(math.isnan(y) for y in curves["naive"].get_ydata())


# ---------------------------------------------------------------- the command line


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(timing.hardware, "device", lambda: torch.device("cpu"))


@pytest.mark.parametrize("arguments", [[], ["sweep"], ["sweep", "--grid", "points"]])
def test_without_a_gpu_nothing_is_measured(no_gpu, arguments, capsys):
    assert main(["bench", *arguments]) == 1
    shown = capsys.readouterr()
    assert shown.out == "" and "measuring needs a CUDA GPU" in shown.err and "bench table" in shown.err


def test_one_case_on_the_command_line(clock, provider, capsys):
    provider(raises(KeyError("broken")))
    sizes = {"--seq-len": "16", "--batch-size": "1", "--num-heads": "4", "--kv-heads": "2", "--head-dim": "16"}
    options = [*itertools.chain(*sizes.items()), "--causal", "--dtype", "fp16", "--mode", "fwd_bwd"]
    assert main(["bench", *options, "--providers", "naive", "basic"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["provider", "naive", "basic"] and lines[1].split()[1] == "2.0000"
    assert main(["bench", *options, "--providers", "fake", "naive"]) == 1
    shown = capsys.readouterr()
    assert "fake: KeyError: 'broken'" in shown.err and "naive " in shown.out


@pytest.mark.parametrize(
    "arguments",
    [
        ["--providers", "fa9"],
        ["--mode", "both"],
        ["--dtype", "fp8"],
        ["--seq-len", "0"],
        ["--kv-heads", "0"],
        ["--head-dim", "300"],
        ["sweep", "--grid", "all"],
        ["sweep", "--providers", "fa9"],
        ["plot", "--grid", "all"],
        ["table", "--file", "no-such-file.json"],
    ],
)
def test_a_wrong_word_on_the_command_line(clock, arguments, capsys):
    assert main(["bench", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and arguments[-1] in shown.err


def test_sweep_on_the_command_line(clock, provider, monkeypatch, tmp_path, capsys):
    path, calls = tmp_path / "card.json", provider(reference.naive_attention)
    monkeypatch.setitem(GRIDS, "small", grid_of(tiny(16), tiny(32)))
    command = ["bench", "sweep", "--grid", "small", "--file", str(path), "--providers", "fake", "naive", "--modes", "fwd", "bwd"]
    assert main(command) == 0
    assert capsys.readouterr().out == f"{path}: complete\n" and len(results.read(path)["rows"]) == 8
    calls.clear()
    assert main(command) == 0 and calls == []

    provider(raises(ValueError("no")))
    assert main([*command, "--dtypes", "fp32"]) == 1
    assert capsys.readouterr().out.endswith("4 failed\n")
    provider(raises(KeyboardInterrupt()))
    assert main([*command, "--dtypes", "bf16"]) == 130
    assert "the same command goes on from there" in capsys.readouterr().err
    provider(raises(torch.AcceleratorError("an illegal memory access was encountered")))
    assert main([*command, "--dtypes", "bf16"]) == 1
    shown = capsys.readouterr().err
    assert "failed: provider=fake mode=fwd dtype=bf16" in shown and f"{path} holds every finished row" in shown
    assert len(results.read(path)["rows"]) == 8 + 4


def test_plot_and_table_need_no_gpu(no_gpu, stored, tmp_path, capsys):
    path = tmp_path / "card.json"
    results.save(path, stored)
    asked = ["--grid", "points", "--file", str(path)]
    assert main(["bench", "plot", *asked, "--out", str(tmp_path / "plots")]) == 0
    names = ["bench_points_fp16_bwd.png", "bench_points_fp16_fwd.png"]
    assert sorted(entry.name for entry in (tmp_path / "plots").iterdir()) == names
    assert capsys.readouterr().out.count(".png\n") == 2
    assert main(["bench", "table", *asked]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("NVIDIA Test, torch 2.13.0, Triton 3.7.1, 2026-01-01; 16,384 tokens")
    assert "| SDPA cuDNN | 0.94 | 0.50 | 2.00 | 11 |" in shown and "TFLOP/s, backward, fp16:" in shown
    assert main(["bench", "table", "--grid", "small", "--file", str(path)]) == 2
    assert "no stored row lies on this grid" in capsys.readouterr().err


@pytest.mark.parametrize("change", [{"S_q": "512"}, {"is_causal": 1}, {"provider": None}, {"tflops": None}, {"ms": None}])
@pytest.mark.parametrize("command", ["table", "plot"])
def test_rows_that_are_no_results_are_refused(no_gpu, stored, tmp_path, capsys, command, change):
    path = tmp_path / "card.json"
    stored["rows"][1].update(change)
    results.save(path, stored)
    assert main(["bench", command, "--file", str(path)]) == 2
    assert "row 1 is no row of results" in capsys.readouterr().err


def test_what_the_command_line_cannot_read_or_write(no_gpu, stored, tmp_path, capsys):
    path, blocked = tmp_path / "card.json", tmp_path / "file"
    blocked.write_text("")
    results.save(path, stored)
    assert main(["bench", "table", "--file", str(tmp_path)]) == 1
    for out in (blocked, blocked / "in"):
        assert main(["bench", "plot", "--grid", "points", "--file", str(path), "--out", str(out)]) == 1
    assert main(["bench", "table", "--file", str(path), "--of", "nosuch"]) == 2
    results.save(path, stored | {"provenance": {name: value for name, value in PROVENANCE.items() if name != "date"}})
    assert main(["bench", "table", "--file", str(path)]) == 2
    assert capsys.readouterr().out == ""


def test_a_reader_that_stops_early_and_an_interrupt(no_gpu, monkeypatch, capsys):
    command = [sys.executable, "-m", "fa_tutorial", "bench", "table"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as shown:
        shown.stdout.close()
        assert shown.stderr.read() == "" and shown.wait() == 1

    def stop():
        raise KeyboardInterrupt

    monkeypatch.setattr(results, "load", stop)
    assert main(["bench", "table"]) == 130
    assert "Stopped." in capsys.readouterr().err


def test_plot_and_table_need_no_triton(stored, tmp_path):
    path = tmp_path / "card.json"
    results.save(path, stored)
    code = """
import sys
sys.modules["triton"] = None
from fa_tutorial.__main__ import main
asked = ["--grid", "points", "--file", sys.argv[1]]
sys.exit(main(["bench", "table", *asked]) or main(["bench", "plot", *asked, "--out", sys.argv[2]]))
"""
    run = subprocess.run([sys.executable, "-c", code, str(path), str(tmp_path)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert len(list(tmp_path.glob("*.png"))) == 2


# ---------------------------------------------------------------- on a GPU


@needs_gpu
@pytest.mark.parametrize("mode", ["fwd", "fwd_bwd"])
def test_calls_and_replays_are_measured(mode):
    row = chapter_8._short_row("tuned", mode, Shape(1, 2, 2, 64, 64, 64, True))
    assert 0 < row["graph_us"] < row["call_us"] < 1e5


@needs_gpu
def test_chapter_8s_kernels_are_measured():
    row = chapter_8._tile_row(64, TileConfig(64, 64, 4, 2))
    assert row["ms"] > 0 and row["registers"] > 0 and row["shared_bytes"] > 0
    shape = Shape(1, 2, 2, 256, 256, 64, False)
    assert chapter_8._idea_row("none", TileConfig(64, 64, 4, 3), shape)["ms"] > 0
    assert chapter_8._transposed_row("transposed", shape)["ms"] > 0
    assert chapter_8._first_call_row().keys() >= {"forward_s", "backward_s", "next_bucket_s", "host_fwd_us", "configurations"}


@needs_gpu
@pytest.mark.parametrize("mode", cases.MODES)
@pytest.mark.parametrize("name", peers.PROVIDERS)
def test_every_provider_is_measured(name, mode):
    row = measure.measure(Case(name, mode, "fp16", Shape(1, 4, 4, 256, 256, 64, True)))
    if row["ms"] is None:
        forward_alone = name in peers.HOPPER_STEPS and mode != "fwd" and "forward alone" in row["reason"]
        not_hopper = "hopper" in name and best(randn(1)) != "hopper"
        assert forward_alone or not_hopper or (name == "flash_attn" and row["reason"] == "not installed")
    else:
        assert 0 < row["ms_20"] <= row["ms"] <= row["ms_80"] < 100 and row["peak_bytes"] > 0 and row["first_call_s"] > 0


@needs_gpu
@pytest.mark.parametrize("name", ["sdpa_cudnn", "sdpa_efficient", "flex", "flash_attn"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_peers_compute_attention_and_its_gradients_on_a_gpu(name, is_causal):
    inputs = [randn(1, 4, 256, 64, dtype=torch.float16, seed=seed).requires_grad_() for seed in range(3)]
    do = randn(1, 4, 256, 64, dtype=torch.float16, seed=3)
    try:
        o = peers.provider(name)(*inputs, is_causal)
    except peers.Unsupported as error:
        pytest.skip(str(error))
    want = (reference.attention(*inputs, is_causal)[0], *reference.gradients(*inputs, do, is_causal))
    for x, truth in zip((o, *torch.autograd.grad(o, inputs, do)), want, strict=True):
        torch.testing.assert_close(x.double(), truth, atol=0.02, rtol=0.02)


@needs_gpu
def test_grouped_heads_are_measured_or_refused():
    for name in peers.PROVIDERS:
        row = measure.measure(Case(name, "fwd", "fp16", Shape(1, 4, 2, 256, 256, 64, False)))
        assert row["ms"] or row["reason"]


def test_measuring_without_a_gpu_is_refused():
    if ON_GPU:
        pytest.skip("there is a GPU")
    with pytest.raises(RuntimeError, match="measuring needs a CUDA GPU"):
        sweep.sweep(results.FOLDER / "none.json", grid_of(tiny(16)), ["naive"])
