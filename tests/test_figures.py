"""Every image is drawn by code without error, what it computes is right, and the notebooks' plots have their look."""

from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

import draw
from draw import chapter_8
from draw.__main__ import save
from fa_tutorial import figures

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", draw.IMAGES)
def test_image_is_drawn(name, tmp_path):
    save(name, tmp_path)
    assert (tmp_path / name).stat().st_size > 0


def test_every_stored_image_is_drawn_by_code():
    assert {path.name for path in (ROOT / "images").iterdir() if path.is_file()} == set(draw.IMAGES)


@pytest.mark.parametrize(("num_stages", "units"), [(2, 13), (3, 11), (4, 11)])
def test_pipeline_never_holds_more_tiles_than_stages(num_stages, units):
    steps = chapter_8.pipeline(num_stages)
    assert steps[-1].end == units
    for time in range(units):
        assert sum(step.load <= time < step.end for step in steps) <= num_stages
        assert sum(step.begin <= time < step.end for step in steps) <= 1
    assert all(step.arrived <= step.begin for step in steps)


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
    assert {text.get_text() for text in ax.texts} == {"ridge: 182 FLOP/byte", "roof: 783 TFLOP/s", "flash"}
