"""Every image is drawn by code without error, what it computes is right, and the notebooks' plots have their look."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import draw
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


def test_roofline_passes_through_ridge_and_points():
    ax = Figure().subplots()
    figures.roofline(ax, peak_flops=783e12, bandwidth=4.3e12, points={"flash": (900.0, 5e14)})
    roof, _, point = (line.get_xydata() for line in ax.lines)
    np.testing.assert_allclose(roof[1], [783 / 4.3, 783])
    np.testing.assert_allclose(roof[0, 1], roof[0, 0] * 4.3)
    np.testing.assert_allclose(point, [[900, 500]])
    assert {text.get_text() for text in ax.texts} == {"ridge: 182 FLOP/byte", "roof: 783 TFLOP/s", "flash"}
