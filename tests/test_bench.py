"""Bench: what is measured and how rows are kept, without a GPU; tables and plots from made rows; every provider on a real GPU."""

import dataclasses
import itertools
import os
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
import torch
from attention_cases import check_attention
from buffers import DEVICE, ON_GPU, needs_gpu, randn

from fa_tutorial import ledger, reference
from fa_tutorial.__main__ import main
from fa_tutorial.attention import best
from fa_tutorial.bench import (
    cases,
    chapter_0,
    chapter_12,
    here,
    measure,
    peers,
    plots,
    results,
    sweep,
    tables,
    timing,
)
from fa_tutorial.bench.cases import GRIDS, LABELS, SHAPE, Case, Grid, Shape

naive = reference.naive_attention
TINY = Shape(1, 2, 2, 16, 16, 16, False)
POINTS = GRIDS["points"]
PROVENANCE = {"gpu": "NVIDIA Test", "cuda": "13.0", "torch": "2.13.0", "triton": "3.7.1", "date": "2026-01-01"}
FIELDS = ["provider", "mode", "dtype", *SHAPE]
NUMBERS = ["ms", "ms_20", "ms_80", "tflops", "peak_bytes", "first_call_s"]


@pytest.fixture
def clock(monkeypatch):
    """A machine whose every call takes 2 ms: calls run, on whatever device is here, and are not timed."""

    once = lambda result: lambda call: [call(), result][1]  # noqa: E731
    monkeypatch.setattr(timing, "require_gpu", lambda: None)
    monkeypatch.setattr(sweep, "require_gpu", lambda: None)
    monkeypatch.setattr(timing, "time_call", once(timing.Timing(2.0, 1.5, 2.5)))
    monkeypatch.setattr(measure, "first_call_s", once(0.25))
    monkeypatch.setattr(measure, "peak_bytes", once(4096))
    monkeypatch.setattr(sweep, "measure_ceilings", lambda: {"copy_gb_s": 1000.0})
    monkeypatch.setattr(results, "provenance", lambda: dict(PROVENANCE))


@pytest.fixture
def provider(monkeypatch):
    """provider(errors) makes "fake" a provider that raises errors[S], and is naive elsewhere; returns the list of S that it ran."""

    def add(errors=None):
        ran = []

        def attention(q, k, v, is_causal=False):
            ran.append(q.shape[2])
            if error := (errors or {}).get(q.shape[2]):
                raise error
            return naive(q, k, v, is_causal)

        monkeypatch.setitem(peers.PROVIDERS, "fake", attention)
        monkeypatch.setitem(LABELS, "fake", "fake")
        return ran

    return add


def grid_of(*lengths: int) -> Grid:
    return Grid("a test", tuple(dataclasses.replace(TINY, S_q=S, S_k=S) for S in lengths), ("fp16",), ("fwd",))


@pytest.mark.parametrize("field", ["mode", "dtype", "provider", "S_q", "H_k", "D"])
def test_what_is_not_known_is_refused(field):
    case = {"provider": "naive", "mode": "fwd", "dtype": "fp16", "S_q": 16, "H_k": 2, "D": 16}
    case |= {field: {"S_q": 0, "H_k": 4, "D": 512}.get(field, "fp8")}
    with pytest.raises(ValueError):
        measure.check(Case(case["provider"], case["mode"], case["dtype"], Shape(1, 6, case["H_k"], case["S_q"], 16, case["D"], False)))


def test_the_grids_and_what_is_measured_on_them():
    grid = GRIDS["literature"]
    assert set(POINTS.shapes) < set(grid.shapes)
    assert all(shape.B * shape.S_q == 16_384 and shape.H_q * shape.D == 2048 and shape.H_k == shape.H_q for shape in grid.shapes)
    assert set(LABELS) == set(peers.PROVIDERS)
    first, second, *_ = cases.cases_of(grid, ["naive", "tuned"], modes=["bwd"])
    assert (first.provider, second.provider) == ("naive", "tuned") and first.shape == second.shape, "measured one after the other"


@pytest.mark.parametrize("name", ["naive", "sdpa_flash", "basic", "tuned"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_providers_compute_attention_and_its_gradients(name, is_causal):
    check_attention(peers.provider(name), 2, 16, 16, is_causal)


@pytest.mark.parametrize(("S_q", "S_k"), [(256, 256), (128, 300)])
def test_flexs_mask_is_bottom_right_aligned(S_q, S_k):
    mask = peers._causal_block_mask(S_q, S_k, DEVICE)
    query, key = torch.arange(S_q, device=DEVICE)[:, None], torch.arange(S_k, device=DEVICE)[None, :]
    assert torch.equal(mask.mask_mod(0, 0, query, key), reference.causal_mask(S_q, S_k, DEVICE))


@pytest.mark.parametrize("mode", cases.MODES)
def test_a_row(clock, mode):
    case = Case("basic", mode, "fp16", dataclasses.replace(TINY, H_q=4, is_causal=True))
    forward = ledger.attention_flops(1, 4, 16, 16, 16, True)
    assert case.flops() == {"fwd": forward, "bwd": forward * 5 // 2, "fwd_bwd": forward * 7 // 2}[mode]
    row = case.about() | measure.measure(case)
    assert [row[name] for name in NUMBERS] == [2.0, 1.5, 2.5, round(case.flops() / 2e-3 / 1e12, 2), 4096, 0.25]


def test_bytes_and_flops_are_told_per_second(clock):
    """3 GB and 3 GFLOP in 2 ms."""
    row = timing.timed(lambda: None, bytes_moved=3 * 10**9, flops=3 * 10**9)
    assert (row["gb_s"], row["tflops"]) == (1500.0, 1.5)


def test_backward_is_timed_on_one_graph(clock, provider):
    ran = provider()
    measure.measure(Case("fake", "bwd", "fp32", TINY))
    assert len(ran) == 1, "the forward runs once, before the clock starts"
    measure.measure(Case("fake", "fwd_bwd", "fp32", TINY))
    assert len(ran) == 1 + 3, "first call, peak, time"


@pytest.mark.parametrize("mode", cases.MODES)
def test_what_cannot_run_becomes_null_with_a_reason(clock, provider, mode):
    shared = measure.OutOfResources(300_000, 232_448, "shared memory")
    reasons = {"out of memory": torch.cuda.OutOfMemoryError("CUDA"), "not enough shared memory": shared, "no": peers.Unsupported("no")}
    for reason, error in reasons.items():
        provider({16: error})
        assert measure.measure(Case("fake", mode, "fp16", TINY)) == dict.fromkeys(NUMBERS) | {"reason": reason}


def test_what_sdpa_or_a_missing_package_cannot_run(clock, monkeypatch):
    def reason(*case):
        return measure.measure(Case(*case))["reason"]

    def none(*args, **options):
        raise RuntimeError("No available kernel. Aborting execution.")

    assert "aligned top left" in reason("sdpa_flash", "fwd", "fp32", dataclasses.replace(TINY, S_k=32, is_causal=True))
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", none)
    assert "cudnn_attention has no kernel" in reason("sdpa_cudnn", "fwd", "fp32", TINY)
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    assert reason("flash_attn", "fwd", "fp16", TINY) == peers.NOT_INSTALLED


def test_a_sweep_writes_provenance_and_rows_and_measures_none_twice(clock, provider, tmp_path):
    path, ran = tmp_path / "new" / "card.json", provider()
    with pytest.raises(ValueError, match="must be one of"):
        sweep.sweep(path, grid_of(16), ["naive", "fa9"])
    assert ran == [] and not path.exists()
    assert sweep.sweep(path, grid_of(16, 32), ["fake", "sdpa_flash"]) == []
    stored, text = results.read(path), path.read_text()
    assert stored["provenance"] == PROVENANCE | {"ceilings": {"copy_gb_s": 1000.0}} and stored["kernels"] == []
    assert [(row["S_q"], row["provider"]) for row in stored["rows"]] == list(itertools.product((16, 32), ("fake", "sdpa_flash")))
    assert all(list(row) == FIELDS + NUMBERS for row in stored["rows"])
    ran.clear()
    sweep.sweep(path, grid_of(16, 32), ["fake"])
    assert ran == [] and path.read_text() == text
    sweep.sweep(path, grid_of(16, 48), ["fake"], dtypes=["fp16"])
    assert set(ran) == {48}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), torch.AcceleratorError("an illegal memory access was encountered")])
def test_an_interruption_keeps_every_finished_row(clock, provider, tmp_path, error):
    path, grid = tmp_path / "card.json", grid_of(16, 32, 48, 64)
    provider({48: error})
    with pytest.raises(type(error)):
        sweep.sweep(path, grid, ["fake"])
    assert [row["S_q"] for row in results.read(path)["rows"]] == [16, 32]
    ran = provider()
    sweep.sweep(path, grid, ["fake"])
    assert [row["S_q"] for row in results.read(path)["rows"]] == [16, 32, 48, 64] and set(ran) == {48, 64}
    assert [entry.name for entry in tmp_path.iterdir()] == ["card.json"]


def test_out_of_memory_is_kept_and_an_unexpected_error_is_told(clock, provider, tmp_path, capsys):
    path, grid = tmp_path / "card.json", grid_of(16, 32, 48, 64)
    missing, fault = peers.Unsupported(peers.NOT_INSTALLED), IndexError("a fault of the peer\nwith details")
    provider({16: torch.cuda.OutOfMemoryError("CUDA out of memory"), 32: fault, 48: missing})
    [failed] = sweep.sweep(path, grid, ["fake"])
    assert failed["S_q"] == 32
    shown = capsys.readouterr().err
    assert "failed: provider=fake" in shown and "IndexError: a fault of the peer\n" in shown and "with details" not in shown
    ran = provider()
    sweep.sweep(path, grid, ["fake"])
    assert set(ran) == {32, 48}, "what failed is tried again, and what may have been installed since"
    rows = {row["S_q"]: (row["ms"], row.get("reason")) for row in results.read(path)["rows"]}
    assert rows == {16: (None, "out of memory"), 32: (2.0, None), 48: (2.0, None), 64: (2.0, None)}


@pytest.mark.parametrize("field", ["gpu", "cuda", "torch", "triton"])
def test_numbers_of_another_machine_are_not_mixed_in(clock, tmp_path, field, monkeypatch):
    path = tmp_path / "card.json"
    sweep.sweep(path, grid_of(16), ["naive"])
    monkeypatch.setattr(results, "provenance", lambda: PROVENANCE | {field: "other"})
    with pytest.raises(ValueError, match=f"holds results of {field} {PROVENANCE[field]}, here other: choose another file"):
        sweep.sweep(path, grid_of(32), ["naive"])


def test_a_stored_rows_rate_is_the_ledgers():
    for row in results.read(results.FOLDER / "h200.json")["rows"]:
        case = Case(row["provider"], row["mode"], row["dtype"], Shape(*(row[name] for name in SHAPE)))
        assert set(row) - {"reason"} == {*FIELDS, *NUMBERS} and (row["ms"] is None) == ("reason" in row)
        assert row["ms"] is None or row["tflops"] == pytest.approx(case.flops() / row["ms"] / 1e9, rel=0.01, abs=0.01)


def test_an_interrupted_save_leaves_what_was_there(tmp_path, monkeypatch):
    stored = {"provenance": PROVENANCE, "rows": [{"ms": None, "reason": "out of memory"}, {"ms": 1.5}], "kernels": []}
    path = tmp_path / "a" / "card.json"
    results.save(path, stored)
    assert '\n  {"ms": 1.5}\n' in path.read_text(), "a row a line"
    monkeypatch.setattr(os, "replace", lambda *paths: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        results.save(path, stored | {"rows": []})
    assert results.read(path) == stored and list(path.parent.glob("*.json")) == [path], "no part stands among the results"
    for text in (b"{", b"\xff\xfe", b"[]", b'{"provenance": {}}'):
        path.write_bytes(text)
        with pytest.raises(ValueError, match=r"card\.json holds no results: they are JSON with provenance"):
            results.read(path)


def test_a_speed_is_measured_here_or_looked_up(clock, monkeypatch):
    monkeypatch.setattr(here.hardware, "device", lambda: torch.device("cpu"))
    stored = here.gb_per_s(pytest.fail, 12 * 2**26, kernel="add", provider="course", dtype="fp32")
    assert 0 < stored < here.gb_per_s(pytest.fail, 0, kernel="copy") and "stored" in here.gpu()
    monkeypatch.setattr(here.hardware, "device", lambda: torch.device("cuda"))
    assert here.gb_per_s(lambda: None, 4_000_000, kernel="copy") == 2.0, "4 MB in the clock's 2 ms"


def test_select_gives_columns_their_types_and_never_nothing():
    rows = pd.DataFrame([{"a": 1, "b": 2}, {"a": 1, "b": 3, "c": None}, {"a": 2}], dtype=object)
    assert results.select(rows, a=1)["b"].tolist() == [2, 3] and results.select(rows, a=1)["b"].dtype == int
    assert results.select(rows, a=1, b=3).shape[0] == 1
    for wanted in ({"a": 3}, {"d": 1}):
        with pytest.raises(ValueError, match="no stored row has"):
            results.select(rows, **wanted)


@pytest.fixture
def path(tmp_path):
    """A file with the 12 points: tuned takes 1 ms; cuDNN 0.5 or 2, but fails at one point; naive has no number at all, flex two."""
    rows = []

    def add(provider: str, mode: str, shape: Shape, ms: float | None) -> None:
        case = Case(provider, mode, "fp16", shape)
        tflops = {"tflops": ms and case.flops() / ms / 1e9}
        rows.append(case.about() | {"ms": ms} | tflops | ({} if ms else {"reason": "out of memory"}))

    for place, shape in enumerate(POINTS.shapes):
        for mode in ("fwd", "bwd"):
            add("tuned", mode, shape, 1.0)
            add("sdpa_cudnn", mode, shape, None if place == 3 else (0.5, 2.0)[place % 2])
            add("naive", mode, shape, None)
        if place < 2:
            add("flex", "fwd", shape, 3.0)
    add("tuned", "fwd", TINY, 1.0)
    path = tmp_path / "card.json"
    results.save(path, {"provenance": PROVENANCE, "rows": rows, "kernels": []})
    return path


def test_speedups_are_geometric_means_over_common_points(path):
    found = tables.compare(results.load(path)["rows"], POINTS, "fwd", "fp16")
    assert found.loc["flex"].tolist() == [pytest.approx(3.0), 3.0, 3.0, 2] and list(found.index) == ["sdpa_cudnn", "flex"]
    assert found.loc["sdpa_cudnn"].tolist() == [pytest.approx(2 ** (-1 / 11)), 0.5, 2.0, 11], "six points at a half, five at two"
    shown = tables.speed_table(results.load(path)["rows"], POINTS)
    assert shown.startswith("| against | forward, tuned (chapter 8) | backward, tuned (chapter 8) |\n"), "nothing is stored for chapter 9"
    assert "| SDPA cuDNN | 0.94 (0.50 to 2.00) | " in shown and "| FlexAttention | 3.00 (3.00 to 3.00) | – |" in shown


def test_the_readme_shows_what_is_stored():
    """Of those that were measured in turns."""
    rows = results.load("h200")["rows"]
    in_turns = rows["provider"].isin(["hopper", "tuned", "basic", "sdpa_cudnn", "sdpa_flash", "flash_attn_4"])
    shown = tables.speed_table(rows[in_turns], GRIDS["literature"])
    assert shown in (Path(__file__).resolve().parents[1] / "README.md").read_text()


def test_tables_and_plots_leave_a_gap_for_null(path, monkeypatch):
    """And a file of another card in the folder of results stands beside the H200's."""
    lines = tables.tflops_table(results.load(path)["rows"], POINTS, "fwd", "fp16").splitlines()
    number = round(Case("tuned", "fwd", "fp16", POINTS.shapes[3]).flops() / 1e9)
    assert lines[5] == f"| 64 | causal | 1,024 | {number} | – | – |" and len(lines) == 2 + 12
    figure = plots.draw([results.load(path)], POINTS, "bwd", "fp16")
    for ax, is_first in zip(figure.axes, (False, True, False, False), strict=True):
        curves = {line.get_label(): line for line in ax.get_lines()}
        assert list(curves["tuned (chapter 8)"].get_xdata()) == [1024, 4096, 16_384]
        assert np.isnan(curves["SDPA cuDNN"].get_ydata()).tolist() == [is_first, False, False]
    results.save(path.parent / "h200.json", results.read(results.FOLDER / "h200.json"))
    monkeypatch.setattr(results, "FOLDER", path.parent)
    assert [card["provenance"]["gpu"] for card in results.cards()] == ["NVIDIA H200", "NVIDIA Test"]
    assert len(plots.draw(results.cards(), POINTS, "fwd", "fp16").axes) == 8


@pytest.mark.parametrize("command", [[], ["sweep"]])
def test_without_a_gpu_nothing_is_measured(monkeypatch, command, capsys):
    monkeypatch.setattr(timing.hardware, "device", lambda: torch.device("cpu"))
    assert main(["bench", *command]) == 1
    shown = capsys.readouterr()
    assert shown.out == "" and "measuring needs a CUDA GPU" in shown.err and "bench table" in shown.err


def test_one_case_and_a_file_that_is_not_there_on_the_command_line(clock, provider, capsys):
    provider({16: KeyError("broken")})
    sizes = "--seq-len 16 --batch-size 1 --num-heads 4 --kv-heads 2 --head-dim 16 --causal --mode fwd_bwd --providers"
    assert main(["bench", *sizes.split(), "naive", "basic"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["provider", "naive", "basic"] and lines[1].split()[1] == "2.0000"
    assert main(["bench", *sizes.split(), "fake", "naive"]) == 1
    shown = capsys.readouterr()
    assert "fake: KeyError: 'broken'" in shown.err and "naive " in shown.out
    for wrong in (["bench", "table", "no-such-card"], ["bench", "plot", "--out", ".", "no_such_file.json"]):
        assert main(wrong) == 1 and wrong[-1] in capsys.readouterr().err


def test_sweep_on_the_command_line(clock, provider, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA GeForce RTX 5060 Ti")
    assert results.path_here() == Path("geforce_rtx_5060_ti.json")
    path, ran = tmp_path / "card.json", provider()
    monkeypatch.setitem(GRIDS, "points", grid_of(16, 32))
    command = ["bench", "sweep", "--grid", "points", "--file", str(path), "--providers", "fake", "naive", "--modes", "fwd", "bwd"]
    assert main(command) == 0 and len(results.read(path)["rows"]) == 8
    ran.clear()
    assert main(command) == 0 and ran == []
    provider({16: ValueError("no")})
    assert main([*command, "--dtypes", "fp32"]) == 1
    provider({16: KeyboardInterrupt()})
    assert main([*command, "--dtypes", "bf16"]) == 130


def test_plot_and_table_of_a_file(path, capsys):
    asked = ["--grid", "points", str(path)]
    with matplotlib.rc_context():  # a command sets the style of all figures
        assert main(["bench", "plot", *asked, "--out", str(path.parent / "plots")]) == 0
    assert {entry.name for entry in (path.parent / "plots").iterdir()} == {"bench_points_fp16_bwd.png", "bench_points_fp16_fwd.png"}
    assert main(["bench", "table", *asked]) == main(["bench", "table", *asked, "--of", "tuned"]) == 0
    shown = capsys.readouterr().out
    assert "| SDPA cuDNN | 0.94 (0.50 to 2.00) |" in shown and "| SDPA cuDNN | 0.94 | 0.50 | 2.00 | 11 |" in shown
    with pytest.raises(ValueError, match="no stored row is on this grid"):
        tables.parts(results.load(path)["rows"], grid_of(32))


def test_each_round_has_every_name_in_an_order_of_its_own():
    rounds = list(timing.rounds_of("abcdefgh", 4))
    assert all(sorted(order) == list("abcdefgh") for order in rounds)
    assert len({tuple(order) for order in rounds}) == 4


def test_in_turns_each_call_is_warmed_up_and_timed_in_every_round(monkeypatch):
    triton_testing = pytest.importorskip("triton.testing")
    benched = []

    def do_bench(call, warmup, rep, return_mode):
        benched.append((call(), warmup > 0, rep > 0))
        return [1.0, 2.0, 3.0]

    monkeypatch.setattr(triton_testing, "do_bench", do_bench)
    monkeypatch.setattr(timing, "require_gpu", lambda: None)
    rows = timing.timed_in_turns({"a": lambda: "a", "b": lambda: "b"}, flops=4 * 10**9, rounds=3)
    assert sorted(benched) == [("a", True, True)] * 3 + [("b", True, True)] * 3
    assert rows["a"] == {"ms": 2.0, "ms_20": 1.0, "ms_80": 3.0, "tflops": 2.0}


@needs_gpu
@pytest.mark.parametrize("H_k", [4, 2])
@pytest.mark.parametrize("mode", cases.MODES)
@pytest.mark.parametrize("name", peers.PROVIDERS)
def test_every_provider_is_measured(name, mode, H_k):
    row = measure.measure(Case(name, mode, "fp16", Shape(1, 4, H_k, 256, 256, 64, True)))
    if row["ms"] is None and H_k == 4:
        not_hopper = name == "hopper" and best(randn(1)) != "hopper"
        assert not_hopper or (name in ("flash_attn", "flash_attn_4") and row["reason"] == "not installed")
    elif row["ms"] is not None:
        assert 0 < row["ms_20"] <= row["ms"] <= row["ms_80"] < 100 and row["peak_bytes"] > 0 and row["first_call_s"] > 0


@pytest.mark.parametrize(
    ("guess", "rows", "shown"),
    [
        ("", [0, 0], ""),
        ("Wrong ", [0, 1], "✓ wrong"),
        ("wrong", [2, 1], "✗ wrong → NaN"),
        ("some", [0, 1], "? some: say right, wrong or NaN"),
    ],
)
def test_chapter_12_marks_a_guess_of_the_worst_row(guess, rows, shown):
    figure = chapter_12.ruined_rows({"a change": torch.tensor(rows)}, {"a change": guess})
    assert [text.get_text() for text in figure.axes[0].texts] == [shown]
    chapter_12.plt.close(figure)


def test_chapter_12_judges_each_row():
    rows = torch.tensor([[1.0, 2.0], [1.0, 3.0], [torch.nan, 3.0]])
    assert chapter_12.row_states(rows, torch.tensor([[1.0, 2.0]] * 3).double()).tolist() == [0, 1, 2]


@needs_gpu
@pytest.mark.parametrize("name", ["sdpa_cudnn", "sdpa_efficient", "flex", "flash_attn", "flash_attn_4"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_peers_compute_attention_and_its_gradients_on_a_gpu(name, is_causal):
    try:
        check_attention(peers.provider(name), 4, 256, 64, is_causal)
    except peers.Unsupported as error:
        pytest.skip(str(error))


def test_memory_events_leave_out_views_and_what_is_still_there():
    x = torch.zeros(4, 2, device="meta")
    events = chapter_0.memory_events(lambda x: (x.T + 1).exp()[1:] * 2, x)
    assert events == [("1 add", 32), ("2 exp", 32), ("1 add", -32), ("3 mul", 16), ("2 exp", -32)]


@pytest.mark.skipif(ON_GPU, reason="a GPU's calls are timed otherwise")
def test_no_kernel_sets_the_rates_here_that_it_is_compared_with(monkeypatch):
    """Chapter 0's count would predict divide by definition, had divide set the bandwidth."""
    took = {"copy_": 10.0, "mm": 5.0}
    monkeypatch.setattr(chapter_0, "_fastest", lambda call, times: took.get(call.func.__name__, 1.0))
    found = chapter_0.measure_here({"naive": naive, "flash": naive})
    assert found.bandwidth == pytest.approx(2 * found.H * found.S**2 * 4 / 10e-3)
    assert found.peak == pytest.approx(2 * 2048**3 / 5e-3)
