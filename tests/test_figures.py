"""Every image is drawn by code without error, what it computes is right, and the notebooks' plots have their look."""

import itertools
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

import draw
from draw import chapter_8, chapters_0_1
from draw.__main__ import save
from draw.chapters_4_5 import EXAMPLE_SCORES, EXAMPLE_VALUES, running_steps
from fa_tutorial import figures

ROOT = Path(__file__).resolve().parents[1]

# ---------------------------------------------------------------- drawings


@pytest.mark.parametrize("name", draw.IMAGES)
def test_image_is_drawn(name, tmp_path):
    save(name, tmp_path)
    assert (tmp_path / name).stat().st_size > 0


def test_every_stored_image_is_drawn_by_code():
    assert {path.name for path in (ROOT / "images").iterdir() if path.is_file()} == set(draw.IMAGES)


def test_the_map_has_the_notebooks_titles():
    stems = [f"{chapter:02}_{title.lower().replace(' ', '_')}" for chapter, title in enumerate(chapters_0_1.CHAPTER_TITLES)]
    assert stems == sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
    assert [chapter for *_, chapters in chapters_0_1.PHASES for chapter in chapters] == list(range(len(stems)))


# (image, numbers that its texts must hold).
NUMBERS = [
    ("00_naive_kernels", ["136 MB", "35 MB"]),
    ("01_online_softmax", ["1.368", "0.1353", "1.185", "1.203"]),
    ("01_merge_tree", ["l 1.185", "l 1.018", "l 1.203"]),
    ("02_strides", ["strides (4, 1)", "strides (1, 4)", "[i] lies at 1 + 4·i"]),
    ("03_program_order", ["2 + 8 = 10 strips", "4 + 4 = 8 strips"]),
    ("04_two_loop_orders", ["53 MB", "35 MB"]),
    ("04_causal_tiles", ["7, 8", "5, 6", "3, 3", "rows 0 to 4"]),
    ("04_running_state", ["0.1353", "0.3679", "1.203", "1.578", "33.08", "78.94", "50.02", "6.456"]),
    ("04_memory_of_states", ["256 MiB", "128 KiB", "32 KiB"]),
    ("05_two_loops", ["full = 4, end = 6", "full = 10, end = 11"]),
    ("06_softmax_jacobian", ["0.0819", "−0.0599", "−0.1628", "0.8453", "−0.2069"]),
    ("06_two_loops", ["start = 1, full = 2 (6.13)", "full = 5, end = 7 (4.6)"]),
    ("08_pipeline_timeline", ["18 units", "24 KiB", "40 KiB", "56 KiB"]),
    ("08_order_of_programs", ["after 21 units", "after 18 units"]),
]


@pytest.mark.parametrize(("name", "numbers"), NUMBERS, ids=[name for name, _ in NUMBERS])
def test_numbers_in_a_drawing(name, numbers):
    written = "\n".join(text.get_text() for text in draw.IMAGES[f"{name}.png"]().axes[0].texts)
    assert [number for number in numbers if number not in written] == []


def test_running_state_is_attention():
    steps, o, lse = running_steps()
    scores, values = np.array(EXAMPLE_SCORES), np.array(EXAMPLE_VALUES)
    np.testing.assert_allclose([o, lse], [np.exp(scores) @ values / np.exp(scores).sum(), np.log(np.exp(scores).sum())], rtol=1e-12)
    assert all(one.after == other.before for one, other in itertools.pairwise(steps))


@pytest.mark.parametrize(("num_stages", "units"), [(1, 18), (2, 10), (3, 8), (4, 8)])
def test_pipeline_never_holds_more_tiles_than_stages(num_stages, units):
    steps = chapter_8.pipeline(num_stages)
    assert steps[-1].end == units
    for time in range(units):
        assert sum(step.load <= time < step.end for step in steps) <= num_stages
        assert sum(step.begin <= time < step.end for step in steps) <= 1
    assert all(step.arrived <= step.begin for step in steps)


# ---------------------------------------------------------------- plots of the notebooks


def test_every_line_of_a_plot_has_its_own_colour_and_dash():
    with matplotlib.rc_context():
        figures.style()
        lines = list(matplotlib.rcParams["axes.prop_cycle"])
    assert {line["color"] for line in lines} == set(figures.COLOURS.values()) - {figures.COLOURS["yellow"]}
    assert len({str(line["linestyle"]) for line in lines}) == len(lines)


def test_roofline_passes_through_ridge_and_points():
    ax = Figure().subplots()
    figures.roofline(ax, peak_flops=783e12, bandwidth=4.3e12, points={"flash": (900.0, 5e14)})
    roof, _, point = (line.get_xydata() for line in ax.lines)
    np.testing.assert_allclose(roof[1], [783 / 4.3, 783])
    np.testing.assert_allclose(roof[0, 1], roof[0, 0] * 4.3)
    np.testing.assert_allclose(point, [[900, 500]])
    assert {text.get_text() for text in ax.texts} == {"ridge: 182 FLOP/byte", "flash"}
