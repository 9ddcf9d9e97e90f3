"""Every figure is stored as the code draws it, and its texts are legible: large enough, inside the canvas, none over another."""

import itertools
import re
import struct
from pathlib import Path
from unittest import mock

import matplotlib
import matplotlib.image
import numpy as np
import PIL
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image, ImageSequence

from fa_tutorial import figures
from fa_tutorial.figures import chapter_8
from fa_tutorial.figures.chapters_4_5 import EXAMPLE_SCORES, EXAMPLE_VALUES, running_steps

CONSTRAINTS = Path(__file__).resolve().parents[1] / "constraints.txt"
ODD_SETTINGS = {"font.size": 30, "font.family": "monospace", "savefig.bbox": "tight", "lines.linewidth": 9, "hatch.linewidth": 5}
SHOWN_WIDTH = 900  # pixels, on a page
SMALLEST_TEXT = 13  # pixels there: the em of 11 pt in a figure of up to 10.5 inches


def drawn_texts(figure: Figure) -> list[Text]:
    """The texts that drawing `figure` really writes: ticks out of view and invisible artists are not among them."""
    drawn = []
    draw = Text.draw

    def recording_draw(self, renderer, *args, **kwargs):
        if self.get_visible() and self.get_text().strip():
            drawn.append(self)
        draw(self, renderer, *args, **kwargs)

    with mock.patch.object(Text, "draw", recording_draw):
        FigureCanvasAgg(figure).draw()  # a figure made without pyplot has a canvas that draws nothing
    return list(dict.fromkeys(drawn))


def text_problems(figure: Figure) -> list[str]:
    """What is wrong with the texts of `figure`: clipped by the canvas, over another text, too small. Empty where all is well."""
    texts = drawn_texts(figure)
    canvas = figure.bbox
    # An Annotation's own extent takes in its arrow; Text's is the words alone.
    extents = [Text.get_window_extent(text) for text in texts]
    problems = []
    for text, extent in zip(texts, extents, strict=True):
        if extent.x0 < canvas.x0 or extent.y0 < canvas.y0 or extent.x1 > canvas.x1 or extent.y1 > canvas.y1:
            problems.append(f"{text.get_text()!r} is clipped")
        em = text.get_fontsize() / 72 * SHOWN_WIDTH / figure.get_size_inches()[0]
        if em < SMALLEST_TEXT:
            problems.append(f"{text.get_text()!r} is {em:.1f} pixels when the figure is {SHOWN_WIDTH} wide")
    for (one, here), (other, there) in itertools.combinations(zip(texts, extents, strict=True), 2):
        if here.x0 < there.x1 and there.x0 < here.x1 and here.y0 < there.y1 and there.y0 < here.y1:
            problems.append(f"{one.get_text()!r} and {other.get_text()!r} overlap")
    return problems


def chunks(png: bytes) -> set[str]:
    """The types of a PNG file's chunks."""
    types, at = set(), 8
    while at < len(png):
        length, kind = struct.unpack(">I4s", png[at : at + 8])
        types.add(kind.decode())
        at += length + 12
    return types


def pinned(package: str) -> str | None:
    found = re.search(rf"^{package}==([\w.]+)", CONSTRAINTS.read_text(), re.MULTILINE)
    return found and found[1]


def skip_unless_pinned(package: str, version: str) -> None:
    if version != pinned(package):
        pytest.skip(f"images are stored as {package} {pinned(package)} draws them; this is {version}")


def gif_frames(path: Path) -> tuple[np.ndarray, list[int]]:
    """The frames of a GIF as (frames, height, width, 3) bytes, and how long each is shown, in milliseconds."""
    with Image.open(path) as gif:
        frames = [(np.asarray(frame.convert("RGB")), frame.info["duration"]) for frame in ImageSequence.Iterator(gif)]
    return np.stack([pixels for pixels, _ in frames]), [duration for _, duration in frames]


@pytest.mark.parametrize("package", ["matplotlib", "pillow"])
def test_constraints_pin_what_draws(package):
    assert pinned(package), f"the stored images belong to one version of {package}"


def test_every_figure_is_stored_and_every_image_is_drawn():
    drawn = {f"{name}.png" for name in figures.FIGURES} | {f"{name}.gif" for name in figures.ANIMATIONS}
    assert {path.name for path in figures.IMAGES.iterdir()} == drawn


@pytest.mark.parametrize("name", figures.FIGURES)
def test_stored_image_is_what_the_code_draws_whatever_the_readers_settings(name, tmp_path):
    skip_unless_pinned("matplotlib", matplotlib.__version__)
    path = tmp_path / "redrawn.png"
    with matplotlib.rc_context(ODD_SETTINGS):
        before = dict(matplotlib.rcParams)
        figures.save(figures.FIGURES[name](), path)
        assert dict(matplotlib.rcParams) == before
    redrawn, stored = (matplotlib.image.imread(file) for file in (path, figures.IMAGES / f"{name}.png"))
    assert redrawn.shape == stored.shape, "run python -m fa_tutorial.figures"
    assert np.array_equal(redrawn, stored), f"{int((redrawn != stored).any(-1).sum())} pixels differ: run python -m fa_tutorial.figures"


@pytest.mark.parametrize("name", figures.ANIMATIONS)
def test_stored_animation_is_what_the_code_draws_whatever_the_readers_settings(name, tmp_path):
    skip_unless_pinned("matplotlib", matplotlib.__version__)
    skip_unless_pinned("pillow", PIL.__version__)
    path = tmp_path / "redrawn.gif"
    with matplotlib.rc_context(ODD_SETTINGS):
        before = dict(matplotlib.rcParams)
        figures.save_animation(figures.ANIMATIONS[name](), path)
        assert dict(matplotlib.rcParams) == before
    (redrawn, redrawn_times), (stored, stored_times) = gif_frames(path), gif_frames(figures.IMAGES / f"{name}.gif")
    assert redrawn.shape == stored.shape and redrawn_times == stored_times, "run python -m fa_tutorial.figures"
    assert np.array_equal(redrawn, stored), f"{int((redrawn != stored).any(-1).sum())} pixels differ: run python -m fa_tutorial.figures"


@pytest.mark.parametrize("name", figures.ANIMATIONS)
def test_stored_animation_shows_every_frame_and_is_small(name):
    path = figures.IMAGES / f"{name}.gif"
    frames, times = gif_frames(path)
    figure = figures.ANIMATIONS[name]()
    assert path.stat().st_size < 300 * 1024
    assert len(frames) == len(figure) == len(times) and min(times) >= 1000
    assert (frames[:, 0, 0] == 255).all(), "the ground is white"
    assert all((one != other).any() for one, other in itertools.pairwise(frames))
    with Image.open(path) as gif:
        assert gif.info["loop"] == 0 and "comment" not in gif.info


@pytest.mark.parametrize("name", figures.FIGURES)
def test_stored_image_is_small_and_holds_pixels_only(name):
    png = (figures.IMAGES / f"{name}.png").read_bytes()
    assert len(png) < 200 * 1024
    assert chunks(png) <= {"IHDR", "pHYs", "IDAT", "IEND"}


@pytest.mark.parametrize("name", figures.FIGURES)
def test_texts_are_legible(name):
    assert text_problems(figures.FIGURES[name]()) == []


@pytest.mark.parametrize("name", figures.ANIMATIONS)
def test_texts_of_every_frame_are_legible(name):
    assert [text_problems(frame) for frame in figures.ANIMATIONS[name]()] == [[]] * len(figures.ANIMATIONS[name]())


def test_every_animation_has_a_still_of_all_its_steps():
    assert set(figures.ANIMATIONS) <= set(figures.FIGURES)


def test_functions_are_named_after_their_images():
    for verb, registry in (("draw", figures.FIGURES), ("animate", figures.ANIMATIONS)):
        for name, draw in registry.items():
            assert draw.__name__ == f"{verb}_{name.split('_', 1)[1]}" and draw.__doc__
    assert list(figures.FIGURES) == sorted(figures.FIGURES, key=lambda name: name[:2]), "chapters in order"


def test_chapter_titles_are_those_of_the_notebooks():
    stems = [f"{chapter:02}_{title.lower().replace(' ', '_')}" for chapter, title in enumerate(figures.CHAPTER_TITLES)]
    notebooks = (figures.IMAGES.parent / "notebooks").glob("[0-9]*.ipynb")
    assert {notebook.stem for notebook in notebooks} <= set(stems)
    assert [chapter for *_, chapters in figures.PHASES for chapter in chapters] == list(range(len(stems)))
    assert len(figures.HANDS_ON) == len(stems) - 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("00_naive_kernels", ["136 MB", "35 MB", "4·S_q·S_k + 2·(S_q + S_k)·D"]),
        ("01_online_softmax", ["1.368", "0.1353", "1.185", "1.203", "3 → 5"]),
        ("01_merge_tree", ["l 1.185", "l 1.018", "l 1.203", "m −∞\nl 0"]),
        ("02_strides", ["strides (4, 1)", "strides (1, 4)", "strides (4,)\n[i] lies at 1 + 4·i"]),
        ("03_program_order", ["2 + 8 = 10 strips", "4 + 4 = 8 strips"]),
        ("04_two_loop_orders", ["53 MB", "35 MB", "each tile: read q, o, m, l; write o, m, l", "at its end write o, lse", "4/4"]),
        ("04_causal_tiles", ["7, 8", "5, 6", "3, 3", "rows 0 to 4 see nothing"]),
        (
            "04_running_state",
            ["−∞", "0.1353", "0.3679", "1.203", "1.578", "33.08", "78.94", "o = acc / l = 50.02", "lse = m + log l = 6.456"],
        ),
        ("04_memory_of_states", ["naive: 256 MiB each", "lse (B, H_q, S_q)\n128 KiB", "acc [BLOCK_M, D]\n32 KiB"]),
        ("05_grid", ["pid = (b·H + h) · row_blocks + row_block", "pid 5\nrow block 2\nb = 0, h = 1", "(0·2 + 1) · 3 + 2 = 5"]),
        ("05_two_loops", ["full = 4, end = 6", "full = 10, end = 11", "0 … 3: no mask", "4 … 5: mask", "6 … 10: never touched"]),
        ("05_over_the_end", ["rows 64 to 99", "100 to 127", "rows 0 to 27"]),
        ("05_gqa", ["query head 4 reads key head 4 // 3 = 1", "h_k = 1"]),
        ("06_vector_jacobian", ["2²⁰ × 2²⁰ = 2⁴⁰ entries, 4 TiB", "2²⁰ entries each, 4 MiB"]),
        ("06_softmax_jacobian", ["0.0819", "−0.0599", "−0.1628", "their sum: 0.8453", "−0.2069"]),
        ("06_two_loops", ["start = 1, full = 2 (6.13)", "full = 5, end = 7 (4.6)"]),
        ("06_atomics", ["16,777,216", "16,777,218", "= 18, got 13"]),
        ("06_training_memory", ["140 MiB", "64.5 MiB: 1/32 of naive", "32,960 MiB", "258.0 MiB: 1/128 of naive"]),
        (
            "06_five_and_seven",
            ["5 / 7 = 71 %", "one loop, 5 matmuls", "two loops, 7 matmuls: keys stay", "171.8 GFLOP", "240.5 GFLOP", "2.5 times"],
        ),
        ("07_transposed_tile", ["k qᵀ (7.2)", "strides (4, 1)", "strides (1, 4)"]),
        ("07_group_sum", ["G = H_q / H_k; dv too (7.4)", "Σ over h = 0 … 2", "Σ over h = 3 … 5"]),
        ("08_pipeline_timeline", ["take turns, 18 units", "8 + 1 · 16 = 24 KiB", "8 + 2 · 16 = 40 KiB", "8 + 3 · 16 = 56 KiB", "epilogue"]),
        ("08_flattened_heads", ["28 rows", "28 rows of 0", "x.load([(b·H + h)·S + start, 0])", "x.load([b, h, start, 0])"]),
        ("08_order_of_programs", ["two heads side by side (8.4)", "done after 21 units", "done after 18 units"]),
    ],
)
def test_figure_says(name, words):
    written = [text.get_text() for text in drawn_texts(figures.FIGURES[name]())]
    assert [word for word in words if not any(word in text for text in written)] == []


def test_running_state_is_attention():
    steps, o, lse = running_steps()
    scores, values = np.array(EXAMPLE_SCORES), np.array(EXAMPLE_VALUES)
    np.testing.assert_allclose([o, lse], [np.exp(scores) @ values / np.exp(scores).sum(), np.log(np.exp(scores).sum())], rtol=1e-12)
    assert [step.keys for step in steps] == [range(2), range(2, 4), range(4, 6)]
    assert all(one.after == other.before for one, other in itertools.pairwise(steps))
    for step in steps:
        assert step.after.acc == pytest.approx(step.alpha * step.before.acc + step.p_v)
        assert step.after.l == pytest.approx(step.alpha * step.before.l + step.p_sum)


@pytest.mark.parametrize(("num_stages", "units"), [(1, 18), (2, 10), (3, 8), (4, 8)])
def test_pipeline_never_holds_more_tiles_than_stages(num_stages, units):
    steps = chapter_8.pipeline(num_stages)
    assert steps[-1].end == units
    for time in range(units):
        assert sum(step.load <= time < step.end for step in steps) <= num_stages
        assert sum(step.begin <= time < step.end for step in steps) <= 1
    assert all(step.arrived <= step.begin for step in steps)
    assert all(one.end <= other.load for one, other in zip(steps, steps[num_stages:], strict=False)), "a stage is free before it is loaded"


def test_programs_in_order_are_the_kernels():
    assert chapter_8.programs_in_order(1, longest_first=False)[:9] == [*((0, row) for row in range(8)), (1, 0)]
    assert chapter_8.programs_in_order(2, longest_first=True)[:4] == [(0, 7), (1, 7), (0, 6), (1, 6)]
    assert chapter_8.schedule([3, 1, 1, 2], workers=2) == [(0, 0), (1, 0), (1, 1), (1, 2)]


def test_command_draws_into_a_folder(tmp_path, capsys, monkeypatch):
    first, moving = next(iter(figures.FIGURES)), next(iter(figures.ANIMATIONS))
    monkeypatch.setattr(figures, "FIGURES", {first: figures.FIGURES[first]})
    figures.main(["--out", str(tmp_path / "new")])
    assert {path.name for path in (tmp_path / "new").iterdir()} == {f"{first}.png", f"{moving}.gif"}
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[0] for line in lines] == [f"{first}.png", f"{moving}.gif"]


# ---------------------------------------------------------------- the check on texts, checked


def figure_with(*texts: tuple[float, float, str], **options) -> Figure:
    figure, ax = figures.canvas(2.0, 4.0)
    for x, y, text in texts:
        figures.write(ax, x, y, text, **options)
    return figure


def test_texts_in_their_places_pass():
    assert text_problems(figure_with((2.0, 0.5, "above"), (2.0, 1.5, "below"))) == []


@pytest.mark.parametrize("place", [(0.1, 1.0), (3.9, 1.0), (2.0, 0.01), (2.0, 1.99)])
def test_clipped_text_is_found(place):
    assert text_problems(figure_with((*place, "a long word"))) == ["'a long word' is clipped"]


def test_overlapping_texts_are_found():
    assert text_problems(figure_with((2.0, 1.0, "first"), (2.2, 1.1, "second"))) == ["'first' and 'second' overlap"]


def test_small_text_is_found():
    assert "pixels when the figure is 900 wide" in text_problems(figure_with((2.0, 1.0, "small"), size=3))[0]


def test_clipped_axis_label_is_found_and_hidden_text_is_not():
    figure = Figure(figsize=(4, 2))
    ax = figure.add_axes((0.3, 0.3, 0.6, 0.6), xlabel="x", ylabel="y", xlim=(0, 1), ylim=(0, 1))
    ax.text(-9, -9, "hidden").set_visible(False)
    assert text_problems(figure) == []
    ax.set_xlabel("x", labelpad=40)
    assert text_problems(figure) == ["'x' is clipped"]


# ---------------------------------------------------------------- plots of the notebooks


@pytest.fixture
def notebook_style():
    with matplotlib.rc_context():
        figures.style()
        yield


def test_style_sets_the_notebooks_look(notebook_style):
    assert matplotlib.rcParams["figure.figsize"] == [7, 3.6] and matplotlib.rcParams["figure.dpi"] == 110
    lines = list(matplotlib.rcParams["axes.prop_cycle"])
    assert all(line["color"] in figures.COLOURS.values() for line in lines)
    assert len({str(line["linestyle"]) for line in lines}) == len({line["color"] for line in lines}) == len(lines), (
        "no dash or colour twice"
    )


H200 = {"peak_flops": 783e12, "bandwidth": 4.3e12}


@pytest.mark.parametrize(
    "points",
    [
        {},
        {"naive": (60.0, 1e14), "flash": (900.0, 5e14)},
        {"naive, S = 1,024": (60.0, 1.0e14), "naive, S = 4,096": (62.0, 1.2e14), "naive, S = 16,384": (64.0, 1.1e14)},
        {"on the ridge": (783 / 4.3, 783e12), "far left": (0.01, 4e10), "far right": (1e5, 7e14)},
    ],
    ids=["none", "two", "close", "far"],
)
def test_roofline_labels_every_point_legibly(notebook_style, points):
    figure = Figure()
    ax = figure.subplots()
    assert figures.roofline(ax, **H200, points=points) is None
    assert text_problems(figure) == []
    written = {text.get_text() for text in drawn_texts(figure)}
    assert {*points, "ridge: 182 FLOP/byte", "TFLOP/s"} <= written


def test_roofline_passes_through_ridge_and_points(notebook_style):
    ax = Figure().subplots()
    figures.roofline(ax, **H200, points={"flash": (900.0, 5e14)})
    roof, _, point = (line.get_xydata() for line in ax.lines)
    ridge = 783 / 4.3
    np.testing.assert_allclose(roof[1], [ridge, 783])
    np.testing.assert_allclose(roof[0, 1], roof[0, 0] * 4.3)
    np.testing.assert_allclose(point, [[900, 500]])
    assert ax.get_xscale() == ax.get_yscale() == "log"


@pytest.mark.parametrize(("name", "value"), [("peak_flops", 0), ("bandwidth", -1.0)])
def test_roofline_refuses_what_is_not_positive(name, value):
    with pytest.raises(ValueError, match=name):
        figures.roofline(Figure().subplots(), **{**H200, name: value}, points={})
