"""The explorable figures of images/explore in headless Chromium: dragged, stepped and switched, their numbers are the package's.

Each figure's window.state() returns its numbers. Skipped where Playwright or a Chromium is missing.
"""

import itertools
import math
import re
import sys
from contextlib import closing
from pathlib import Path

import pytest
import torch

from fa_tutorial import algorithm, barriers, figures, fp8, layout, ledger, matmul, reading, reference, ring, softmax, warpgroups
from fa_tutorial.bench import chapter_0, chapter_5, chapter_8, chapter_11, chapter_12, chapter_13, results
from fa_tutorial.exercises.chapter_8 import ex_1, ex_4
from fa_tutorial.exercises.chapter_10.ex_3 import lists
from fa_tutorial.exercises.chapter_11.ex_4 import choose_splits
from fa_tutorial.exercises.chapter_12.ex_2 import fa2_softmax
from fa_tutorial.exercises.chapter_13.ex_1 import owner
from fa_tutorial.tuned import steps

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: `make browser-test` installs it")

from test_browser import browser  # noqa: E402, F401

pytestmark = pytest.mark.browser

FOLDER = Path(__file__).resolve().parents[1] / "images" / "explore"
NAMES = sorted(path.stem for path in FOLDER.glob("*.html"))


@pytest.fixture
def page(browser):  # noqa: F811
    errors = []
    with closing(browser.new_page(viewport={"width": 800, "height": 1_200}, has_touch=True)) as opened:
        opened.on("pageerror", lambda error: errors.append(str(error)))
        yield opened
    assert errors == []


def open_figure(page, name: str) -> dict:
    page.goto((FOLDER / f"{name}.html").as_uri())
    return state(page)


def state(page) -> dict:
    return page.evaluate("state()")


def put(page, **values) -> dict:
    """Give each control, by its id, a value, as a reader's input would; returns the new state."""
    for name, value in values.items():
        control = page.locator(f"#{name}")
        if isinstance(value, bool):
            control.set_checked(value)
        elif control.evaluate("control => control.tagName") == "SELECT":
            control.select_option(str(value))
        else:
            control.fill(str(value), force=True)  # a second consumer's slider may be hidden
    return state(page)


def drag(page, begin: tuple[float, float], end: tuple[float, float], by: str) -> None:
    """Press at `begin`, pull to `end`, let go; then a mouse goes back, which must move nothing."""
    if by == "mouse":
        page.mouse.move(*begin)
        page.mouse.down()
        page.mouse.move(*end, steps=5)
        page.mouse.up()
        page.mouse.move(*begin)
        return
    touch = page.context.new_cdp_session(page)
    for step in range(6):
        x, y = (a + (b - a) * step / 5 for a, b in zip(begin, end, strict=True))
        touch.send("Input.dispatchTouchEvent", {"type": "touchMove" if step else "touchStart", "touchPoints": [{"x": x, "y": y}]})
    touch.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})


def middle(locator) -> tuple[float, float]:
    box = locator.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_loads_nothing_and_its_controls_have_names_and_take_the_keyboard(page, name):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    open_figure(page, name)
    assert set(asked) <= {(FOLDER / f"{name}.html").as_uri()}
    controls = page.locator("input, select, button").all()
    nameless = "control => !control.labels?.length && !control.getAttribute('aria-label') && !control.textContent.trim()"
    assert [control.get_attribute("id") for control in controls if control.evaluate(nameless)] == []
    assert [control.get_attribute("id") for control in controls if control.evaluate("control => control.tabIndex < 0")] == []


@pytest.mark.parametrize("name", NAMES)
def test_explore_shows_the_figure_in_a_notebook(page, name):
    page.set_content(figures.explore(name).data)
    playwright.expect(page.locator("img")).to_be_hidden()
    playwright.expect(page.locator("iframe")).to_have_css("opacity", "1")
    assert page.frames[1].evaluate("Object.keys(state()).length") > 0


def test_explore_shows_the_picture_where_scripts_do_not_run(browser):  # noqa: F811
    with closing(browser.new_page(java_script_enabled=False)) as page:
        page.set_content(figures.explore(NAMES[0]).data)
        playwright.expect(page.locator("img")).to_be_visible()
        playwright.expect(page.locator("iframe")).to_have_css("opacity", "0")


def x_of(page, drawing: str, number: int) -> float:
    """Where the axis of a drawing has this number."""
    return page.locator(f"{drawing} text", has_text=re.compile(f"^{number}$")).first.bounding_box()["x"]


# Figure -> the drawing, what is pressed in it, where it is pulled to, and the state then.
DRAGS = {
    "online_softmax": ("#scores", "circle >> nth=3", lambda page, x, y: (x + 100, page.locator("#scores").bounding_box()["y"]),
                       {"scores": [3, 2, 5, 8, 4, 0]}),
    "two_loops": ("#keys", "circle[stroke] >> nth=0", lambda page, x, y: (x_of(page, "#keys", 8) - 2, y), {"full_n": 8}),
    "two_walks": ("#tiles", "rect[fill=none][stroke-width='1.5'] >> nth=0",
                  lambda page, x, y: middle(page.locator("#tiles rect[fill=none][stroke-width='1.5']").nth(5)), {"step": 6}),
    "loops_of_keys": ("#queries", "circle[stroke] >> nth=0", lambda page, x, y: (x_of(page, "#queries", 4) - 2, y), {"first_m": 4}),
    "splits": ("#curve", "circle", lambda page, x, y: (middle(page.locator("#curve text", has_text=re.compile("^64$")))[0], y), {"splits": 64}),
    "ring": ("#timeline", "circle", lambda page, x, y: (middle(page.locator("#timeline text", has_text=re.compile("^15$")))[0], y), {"now": 15}),
}  # fmt: skip


@pytest.mark.parametrize("by", ["mouse", "touch"])
@pytest.mark.parametrize("name", DRAGS)
def test_a_figure_is_dragged(page, name, by):
    """On a screen that is lower than the figure, so that a finger could also scroll it."""
    drawing, grip, to, wanted = DRAGS[name]
    page.set_viewport_size({"width": 390, "height": 500})
    open_figure(page, name)
    page.locator(drawing).scroll_into_view_if_needed()
    begin = middle(page.locator(f"{drawing} {grip}"))
    drag(page, begin, to(page, *begin), by)
    assert {key: state(page)[key] for key in wanted} == wanted


def check_online_softmax(shown: dict) -> None:
    """(l, acc) of blocks that are each measured from the running maximum; alpha reaches only what is rescaled."""
    scores, values = (torch.tensor(shown[name][: shown["seen"]], dtype=torch.float64) for name in ("scores", "values"))
    m, l, acc = -math.inf, 0.0, 0.0
    for s, v in zip(scores.split(shown["block"]), values.split(shown["block"]), strict=True):
        m, alpha = max(m, s.max().item()), math.exp(m - max(m, s.max().item()))
        p = torch.exp(s - m)
        l = l * (alpha if shown["rescale_l"] else 1) + p.sum().item()
        acc = acc * (alpha if shown["rescale_acc"] else 1) + (p @ v).item()
    assert (shown["m"], shown["alpha"], shown["l"], shown["acc"], shown["o"]) == pytest.approx((m, alpha, l, acc, acc / l))
    assert shown["true_weights"] == pytest.approx(softmax.safe_softmax(scores).tolist())
    assert shown["true_o"] == pytest.approx(softmax.running_weighted_sum([(scores, values[:, None])], 1)[0].item())


@pytest.mark.parametrize(("rescale_l", "rescale_acc"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("block", [1, 2, 3])
def test_online_softmax_steps(page, block, rescale_l, rescale_acc):
    open_figure(page, "online_softmax")
    put(page, block=block, rescale_l=rescale_l, carry=True)
    put(page, rescale_acc=rescale_acc)
    while page.locator("#back").is_enabled():
        page.locator("#back").click()
    for step in range(1, 6 // block + 1):
        page.locator("#forward").click()
        shown = state(page)
        assert (shown["step"], shown["seen"]) == (step, step * block)
        check_online_softmax(shown)
    is_right = (rescale_l and rescale_acc) or block == 3  # blocks of 3: the largest stands in the first
    assert page.locator("#verdict.right").count() == is_right


def test_sectors_are_those_of_chapter_2(page):
    open_figure(page, "sectors")
    for rows, columns, itemsize, stride, begin, transposed in (
        (4, 8, 4, 32, 0, False), (1, 16, 4, 32, 0, True), (16, 16, 2, 36, 5, True), (8, 8, 8, 33, 16, False), (2, 16, 2, 40, 3, False),
    ):  # fmt: skip
        shown = put(page, rows=rows, columns=columns, itemsize=itemsize, stride=stride, start=begin, transposed=transposed)
        strides = (1, stride) if transposed else (stride, 1)
        assert shown["sectors"] == layout.sectors(strides, (rows, columns), itemsize, begin)
        assert shown["used"] == pytest.approx(rows * columns * itemsize / 32 / shown["sectors"])


def put_tiles(page, S_q: int, S_k: int, **values) -> dict:
    """The sliders of S_q and S_k hold a place in the figure's list of sizes."""
    places = {name: page.evaluate(f"SIZES.indexOf({size})") for name, size in (("S_q", S_q), ("S_k", S_k))}
    assert min(places.values()) >= 0
    shown = put(page, **places, **values)
    assert (shown["S_q"], shown["S_k"]) == (S_q, S_k)
    return shown


SHAPES = [(8, 11, 2, 2), (33, 20, 16, 8), (1, 13, 4, 4), (1000, 4096, 128, 64)]


@pytest.mark.parametrize("is_causal", [True, False])
def test_causal_tiles_are_those_of_chapter_4(page, is_causal):
    open_figure(page, "causal_tiles")
    for S_q, S_k, block_m, block_n in SHAPES:
        shown = put_tiles(page, S_q, S_k, BLOCK_M=block_m, BLOCK_N=block_n, is_causal=is_causal, D=16, itemsize=4)
        row_blocks = range(-(-S_q // block_m))
        if is_causal:
            want = [algorithm.causal_tiles(block, block_m, block_n, S_q, S_k) for block in row_blocks]
        else:
            want = [algorithm.all_tiles(block_n, S_k) for _ in row_blocks]
            assert shown["bytes"] == ledger.flash_hbm_bytes(S_q, S_k, 16, block_m, 4)
        assert shown["rows"] == [list(tiles) for tiles in want]
        assert shown["pairs"] == ledger.visible_pairs(S_q, S_k, is_causal)
        if max(S_q, S_k) < 100:
            traffic = algorithm.Traffic()
            q, k, v = (torch.randn(1, 1, S, 16) for S in (S_q, S_k, S_k))
            algorithm.flash_forward(q, k, v, block_m, block_n, is_causal, traffic=traffic)
            assert shown["bytes"] == traffic.total


@pytest.mark.parametrize(
    ("S_q", "S_k", "block_m", "block_n", "block"),
    [(13, 17, 4, 4, 3), (13, 7, 4, 4, 0), (21, 14, 8, 2, 2), (9, 9, 2, 8, 4)],
)
def test_two_loops_are_right_where_their_tiles_are_those_of_chapter_4(page, S_q, S_k, block_m, block_n, block):
    open_figure(page, "two_loops")
    put(page, S_q=S_q, S_k=S_k, BLOCK_M=block_m, BLOCK_N=block_n)
    assert put(page, block=block)["block"] == block
    right = page.evaluate("""() => {
      const borders = [...Array(HIGHEST - LOWEST + 1).keys()].map((i) => i + LOWEST);
      const faultless = (full_n, end_n) => { $("full_n").value = full_n; $("end_n").value = end_n; return state().fault === ""; };
      return borders.flatMap((full_n) => borders.filter((end_n) => faultless(full_n, end_n)).map((end_n) => [full_n, end_n]));
    }""")
    full, end = algorithm.causal_tiles(block, block_m, block_n, S_q, S_k)
    want = [list(range(0, full * block_n, block_n)), list(range(full * block_n, end * block_n, block_n))]
    borders = itertools.product(range(25), range(-8, 25))  # full_n is a key that is read, so it is never negative
    assert right == [[a, b] for a, b in borders if [list(range(0, a, block_n)), list(range(a, b, block_n))] == want]


@pytest.mark.parametrize("order", ["keys", "queries", "turns"])
def test_two_walks_add_up_the_gradients_of_chapter_6(page, order):
    open_figure(page, "two_walks")
    columns = ([1, -1], [3, 2, 5, 1, 4, 6], [10, 20, 30, 40, 50, 60], [1, 2])
    q, k, v, do = (torch.tensor(x, dtype=torch.float64).view(1, 1, -1, 1) for x in columns)
    o, lse = reference.attention(q, k, v, scale=1.0)
    sums = {"dq": torch.zeros_like(q), "dk": torch.zeros_like(k), "dv": torch.zeros_like(v)}
    tiles = {
        "keys": [(j, i) for j in range(3) for i in range(2)],
        "queries": [(j, i) for i in range(2) for j in range(3)],
        "turns": [(0, 0), (0, 1), (1, 1), (1, 0), (2, 0), (2, 1)],
    }
    for step, (j, i) in enumerate(tiles[order], start=1):
        rows, keys = slice(i, i + 1), slice(2 * j, 2 * j + 2)
        p, ds = algorithm.p_and_ds(q, k, v, do, lse, algorithm.row_delta(o, do), rows, keys, False, 1.0)
        for name, at, added in (("dv", keys, p.mT @ do[:, :, rows]), ("dk", keys, ds.mT @ q[:, :, rows]), ("dq", rows, ds @ k[:, :, keys])):
            sums[name][:, :, at] += added
        shown = put(page, order=order, step=step)
        assert shown["tile"] == [i, j]
        assert all(shown[name] == pytest.approx(total.flatten().tolist()) for name, total in sums.items())
    assert all(part["complete"] for part in shown["of_query"] + shown["of_keys"])
    assert shown["aside"] == {"keys": {"dq": 4, "dkdv": 0}, "queries": {"dq": 0, "dkdv": 3}, "turns": {"dq": 2, "dkdv": 0}}[order]


@pytest.mark.parametrize(
    ("S_q", "S_k", "block_m", "block_n", "block"),
    [(13, 17, 4, 4, 2), (7, 13, 4, 4, 0), (21, 14, 8, 2, 6), (9, 9, 2, 8, 1)],
)
def test_loops_of_keys_are_right_at_chapter_7s_borders(page, S_q, S_k, block_m, block_n, block):
    open_figure(page, "loops_of_keys")
    put(page, S_q=S_q, S_k=S_k, BLOCK_M=block_m, BLOCK_N=block_n)
    start, full = (block_m * border for border in algorithm.causal_rows(block, block_m, block_n, S_q, S_k))
    right = put(page, block=block, first_m=start, full_m=full)
    assert [right[name] for name in ("fault", "masked", "whole")] == ["", [*range(start, full, block_m)], [*range(full, S_q, block_m)]]
    for first_m, full_m in ((start - block_m, full), (start + block_m, full), (start, full - block_m), (start, full + block_m)):
        tiles = [[*range(first_m, full_m, block_m)], [*range(full_m, S_q, block_m)]]
        if min(first_m, full_m) >= -8 and full_m <= 24 and tiles != [right["masked"], right["whole"]]:
            assert put(page, first_m=first_m, full_m=full_m)["fault"], (first_m, full_m)


def seen_by(shown: dict) -> torch.Tensor:
    """(32, 32) booleans: the pairs that the mask shows."""
    i, j = torch.arange(32)[:, None], torch.arange(32)[None, :]
    document = (torch.arange(32) >= shown["a"]).int() + (torch.arange(32) >= shown["b"]).int()
    causal, near, early = j <= i, (j <= i) & (i - j <= shown["left"]), j < shown["first"]
    masks = {
        "documents": causal & (document[:, None] == document),
        "window": near,
        "first": near | (causal & early),
        "prefix": causal | early,
    }
    return masks[shown["mask"]]


def check_mask_tiles(page) -> None:
    """The kinds are those of the pairs, and the row of index is exercise 10.3's: mixed tiles first, whole ones at the end."""
    shown = state(page)
    index, count = lists(seen_by(shown)[None, None], shown["block"], shown["block"])
    mixed, whole = count[:, shown["row"]].tolist()
    row = index[shown["row"]].tolist()
    assert shown["mixed"] == sorted(row[:mixed]) and shown["whole"] == sorted(row[len(row) - whole :])
    assert [[row.count(kind) for kind in (1, 2)] for row in shown["kinds"]] == count.T.tolist()


def test_mask_tiles_are_exercise_10_3_s_lists(page):
    open_figure(page, "mask_tiles")
    check_mask_tiles(page)
    for mask, block in itertools.product(("documents", "window", "first", "prefix"), (2, 4, 8)):
        for row, left, first, a, b in ((0, 11, 6, 18, 24), (3, 5, 3, 9, 24), (3, 31, 32, 30, 11), (3, 0, 0, 30, 11)):
            put(page, mask=mask, block=block, row=row, left=left, first=first, a=a, b=b)
            check_mask_tiles(page)


def test_in_step_is_the_package_s_model(page):
    open_figure(page, "in_step")
    for name, loop in (("two", warpgroups.TWO_STOPS), ("one", warpgroups.ONE_STOP)):
        for gap, late in itertools.product((1, 100, 300), (0, 600, 1200, 2700)):
            shown = put(page, loop=name, late=late, first=12) if name == "one" else put(page, loop=name, late=late, gap=gap, first=0)
            cycles, shares = warpgroups.two_consumers(loop, gap, late)
            assert (shown["cycles"], shown["shares"]) == (pytest.approx(cycles), pytest.approx(shares))


# A line of the figure -> what their_loop does without it.
WITHOUT = {"clear_acc": {"clear_acc": False}, "clear_v": {"clear_v": False}, "peel": {"peel": False}, "plus_one": {"masked": 2},
           "rescale": {"rescale": False}, "wait_k": {"deleted": [305]}, "barrier_k": {"deleted": [306]}, "wait_v": {"deleted": [332]},
           "barrier_v": {"deleted": [333]}, "fence_v": {"deleted": [317]}, "fence_k": {"deleted": [338]}}  # fmt: skip


@pytest.mark.parametrize(("S_q", "S_k"), [(32, 100), (32, 95), (20, 46), (17, 112), (9, 5)])
def test_fa2_lines_ruin_the_rows_of_chapter_12(page, S_q, S_k):
    shown = open_figure(page, "fa2_lines")
    q, k, v = (torch.tensor(shown[name], dtype=torch.float64)[:rows] for name, rows in (("q", S_q), ("k", S_k), ("v", S_k)))
    truth = reference.attention(*(x[None, None] for x in (q, k, v)), scale=reading.SCALE, is_causal=True)[0][0, 0]
    put(page, S_q=S_q, S_k=S_k)
    for line, change in ({"": {}} | WITHOUT).items():
        states = put(page, **{line: False} if line else {})["states"]
        o = reading.their_loop(fa2_softmax, q.float(), k.float(), v.float(), **change)
        assert (line, states) == (line, chapter_12.row_states(o, truth).tolist())
        put(page, **{line: True} if line else {})


def prices() -> dict[int, float]:
    """As chapter 11's page finds them: µs for a tile of an SM with one program, with two and with three."""
    us = {(B, splits): chapter_11.row("11.3, no merge, keys in L2", 32_768, B, "steps", splits=splits)["clean_us"]
          for B, splits in ((1, 1), (1, 16), (8, 2), (8, 4), (8, 6))}  # fmt: skip
    start = us[1, 16] - 32 * (us[1, 1] - us[1, 16]) / 480
    return {p: round(float(us[8, 2 * p] - start) / (p * -(-512 // (2 * p))), 3) for p in (1, 2, 3)}


def test_splits_is_the_chapter_s_rule(page):
    open_figure(page, "splits")
    for tiles, n, splits in ((544, 8, 34), (512, 8, 33), (16, 1, 128), (1024, 64, 6), (64, 60, 1)):
        shown = put(page, tiles=tiles, n=n, splits=splits, room=3)
        part = -(-tiles // splits)
        assert (shown["part"], shown["parts"]) == (part, -(-tiles // part))
        programs = -(-n * splits // 132)
        assert shown["busiest"] == pytest.approx(part * programs * prices()[programs])
        assert shown["busiest"] == shown["rows"][splits - 1]
        copy = results.load("h200")["provenance"]["ceilings"]["copy_gb_s"]
        assert shown["bytes"] == pytest.approx(4 * 64 * tiles * n * 128 / copy / 1e3, rel=1e-4)


def test_splits_accepts_what_11_4_chooses(page):
    """Also where more splits would be better, but tiles / splits is under 4, or an SM has no room."""
    open_figure(page, "splits")
    for tiles, n, room in itertools.product((16, 64, 144, 544), (1, 8, 64), (1, 3)):
        chosen = choose_splits(n, tiles, 132, {p: prices()[p] for p in range(1, room + 1)})
        shown = put(page, tiles=tiles, n=n, splits=min(chosen, 128), room=room)
        if chosen <= 128 and shown["most"] < 128:  # the figure ends there
            assert "right" in page.locator("#verdict").get_attribute("class"), (tiles, n, room)
            assert shown["chosen"] == chosen


def test_cycles_has_what_a_program_takes_alone(page):
    open_figure(page, "cycles")
    for row in chapter_8.tiles_of_h200().to_dict("records"):
        block_m, block_n, warps, stages = row["tile"]
        if warps == 4 and min(block_m, block_n) > 32:
            shown = put(page, kernel="finished", D=row["D"], tile=f"{block_m} x {block_n}", stages=stages)
            assert shown["bound"] * shown["programs"] == pytest.approx(row["alone"])


def test_cycles_is_exercises_8_1_and_8_4(page):
    open_figure(page, "cycles")
    for D, tile, stages, registers, loop in (
        (64, "64 x 128", 2, 168, 443),
        (64, "64 x 128", 2, 169, 443),
        (64, "128 x 128", 4, 255, 1000),
        (128, "128 x 128", 1, 255, 1292),
    ):
        shown = put(page, kernel="finished", D=D, tile=tile, stages=stages, registers=registers, loop=loop)
        block_m, block_n = map(int, tile.split(" x "))
        assert shown["cycles"] == ex_4.EXERCISE.solution(D, block_m, block_n, 4, loop)
        streamed = 2 * stages if stages > 1 else 1
        assert shown["bytes"] == 2 * D * (block_m + streamed * block_n) + {1: 8, 2: 32, 3: 56, 4: 64}[stages]  # (8.2), and TMA's
        assert shown["programs"] == ex_1.EXERCISE.solution(4, registers, shown["bytes"])[0]
        stored = [row for row in chapter_8.compiled_tiles() if row["tile"][:3] == [block_m, block_n, 4] and row["D"] == D]
        assert {row["shared_bytes"] for row in stored if row["tile"][3] == stages} <= {shown["bytes"]}


# the figure's kernel -> chapter 8's step
CYCLES_OF = {"chapter 5": "chapter 5", "step 1: base 2": "base 2", "step 2: descriptors": "descriptors"}


@pytest.mark.parametrize("larger", [False, True])
@pytest.mark.parametrize("D", [64, 128])
@pytest.mark.parametrize("name", CYCLES_OF)
def test_cycles_shows_what_a_kernel_took(page, name, D, larger):
    open_figure(page, "cycles")
    step, tile = CYCLES_OF[name], steps.LARGER[D] if larger else steps.TILE
    row = chapter_8.compiled_steps()[step, tile, D, False]
    stored = chapter_8.stored_steps()[D, False][f"{step}{', larger tile' if larger else ''}"]
    shown = put(page, D=D, kernel=name, tile=f"{tile.block_m} x {tile.block_n}")
    assert (shown["kernel"], shown["block_m"], shown["block_n"], shown["stages"]) == (name, tile.block_m, tile.block_n, tile.num_stages)
    assert (shown["registers"], shown["loop"], shown["bytes"]) == (row["registers"], row["loop"], row["shared_bytes"])
    took = round(chapter_8.tile_cycles(stored, D, False)), round(chapter_8.mhz(stored)), round(stored["tflops"])
    assert (shown["measured"], shown["mhz"], shown["rate"]) == took
    assert shown["spills"] == row["LDL"]


def test_tile_room_agrees_with_the_timed_tiles(page):
    """By (5.3). Where it finds room nothing spilled, and where registers spill something did."""
    open_figure(page, "tile_room")
    for row in results.select(results.load("h200")["kernels"], kernel="forward_tile").to_dict("records"):
        sizes = dict(zip(("BLOCK_M", "BLOCK_N", "warps", "stages"), map(int, re.findall(r"\d+", row["provider"])), strict=True))
        shown = put(page, D=row["D"], **sizes)
        assert shown["shared"] == row["shared_bytes"] and shown["fits"] and shown["compiled"] == row["registers"]
        assert (shown["byRegisters"], shown["byShared"]) == chapter_5.room_on_an_sm(row, shown["warps"])
        assert (shown["registers"] == "spills") == (row["spilled_registers"] > 0) and shown["spilled"] == row["spilled_registers"]
        assert shown["ms"] == round(row["ms"], 2)
    assert put(page, D=128, BLOCK_M=128, BLOCK_N=128, stages=4)["fits"] is False


def check_order(shown: dict, group: int, name: str) -> None:
    """What a wave reads, and all of them, by chapter 3's order of programs."""
    sizes = shown["tiles_m"], shown["tiles_n"], group
    assert sizes[:2] == (-(-shown["n"] // shown["BLOCK_M"]), -(-shown["n"] // shown["BLOCK_N"]))
    assert shown[name]["strips"] == matmul.strips_per_wave(*sizes, shown["wave"])[shown["now"]]
    tiles = [matmul.grouped_tile(pid, *sizes) for pid in range(sizes[0] * sizes[1])]
    waves = [tiles[start : start + shown["wave"]] for start in range(0, len(tiles), shown["wave"])]
    assert shown["waves"] == len(waves)
    rows = [shown["BLOCK_M"] * len({m for m, _ in now}) + shown["BLOCK_N"] * len({n for _, n in now}) for now in waves]
    assert shown[name]["bytes"] == rows[shown["now"]] * shown["n"] * 2
    assert shown[name]["total"] == sum(rows) * shown["n"] * 2


def test_program_order_is_chapter_3s(page):
    assert open_figure(page, "program_order")["group"] == 8  # where its two columns differ
    for n, block_m, block_n, wave, group, now in (
        (512, 64, 64, 16, 1, 0), (512, 64, 64, 16, 4, 1), (1024, 128, 64, 66, 3, 1), (4096, 128, 256, 132, 8, 2), (8192, 256, 128, 264, 32, 5),
    ):  # fmt: skip
        shown = put(page, n=n, BLOCK_M=block_m, BLOCK_N=block_n, wave=wave, group=group, now=now)
        assert (shown["group"], shown["now"]) == (group, now)
        check_order(shown, group, "bands")
        check_order(shown, 1, "row_order")


RINGS = [  # stages, (a load, every third), uses
    (2, (1, 4), (2,)),
    (5, (2, 8), (3,)),
    (1, (1, 1), (1, 1)),
    (2, (1, 4), (2, 5)),
    (3, (6, 2), (4, 1)),
]


def play_ring(shown: dict) -> tuple[list[barriers.Event], str | None]:
    """The package's timeline of the figure's settings, and its message where they deadlock, for the last consumer releases no stage."""
    tiles, uses = shown["tiles"], shown["uses"]
    full, empty = barriers.ring(shown["stages"], len(uses))
    consumers = [barriers.ring_consumer(tiles, full, empty, units) for units in uses]
    if shown["forgets"]:
        consumers[-1] = (action for action in consumers[-1] if action.kind != "arrive")
    names = ["consumer"] if len(uses) == 1 else ["consumer 0", "consumer 1"]
    roles = {"producer": barriers.ring_producer(tiles, full, empty, shown["loads"])} | dict(zip(names, consumers, strict=True))
    if not shown["forgets"]:
        return barriers.run(roles), None
    with pytest.raises(barriers.Deadlock) as caught:
        barriers.run(roles)
    return caught.value.timeline, str(caught.value)


@pytest.mark.parametrize("forgets", [False, True])
def test_ring_is_the_simulators(page, forgets):
    assert open_figure(page, "ring")["loads"] == [1, 1, 4]
    for stages, (load, slow), uses in RINGS:
        values = {"consumers": len(uses), "use": uses[0], "use1": uses[-1]}
        shown = put(page, stages=stages, load=load, slow=slow, forgets=forgets, **values)
        assert (shown["stages"], shown["loads"], shown["uses"]) == (stages, [load, load, slow], list(uses))
        timeline, message = play_ring(shown)
        assert shown["timeline"] == [[event.role, str(event.action), event.start, event.end] for event in timeline]
        assert (shown["end"], shown["deadlock"]) == (max(event.end for event in timeline), message)


def check_roofline(shown: dict) -> None:
    """The numbers of both algorithms by the ledger; naive attention's kernels run one after another."""
    S, D, itemsize = shown["S"], shown["D"], shown["itemsize"]
    assert itemsize == getattr(torch, {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}[shown["dtype"]]).itemsize
    count = {
        "naive": 4 * S * D * itemsize + shown["trips"] * ledger.score_bytes(1, 1, S, S, itemsize),  # q, k, v, o, and (0.5)
        "flash": ledger.flash_hbm_bytes(S, S, D, S, itemsize),  # k and v once, as if in one block
    }
    flops = ledger.attention_flops(1, 1, S, S, D)
    product = flops / 2, ledger.score_bytes(1, 1, S, S, itemsize) + 2 * S * D * itemsize
    between = (shown["trips"] - 2) * ledger.score_bytes(1, 1, S, S, itemsize) / shown["bandwidth"]
    for name, moved in count.items():
        cost = shown[name]
        assert (cost["flops"], cost["bytes"]) == (flops, moved)
        one = product if name == "naive" else (flops, moved)
        perfect = one[0] / ledger.attainable_flops(one[0] / one[1], shown["peak_flops"], shown["bandwidth"])
        seconds = 2 * perfect + between if name == "naive" else perfect
        assert (cost["intensity"], cost["attainable"], cost["seconds"]) == pytest.approx((flops / moved, flops / seconds, seconds))
        assert cost["memory_bound"] == (one[0] / one[1] < shown["ridge"])


def test_roofline_counts_as_the_ledger(page):
    check_roofline(open_figure(page, "roofline"))
    for exponent, D, dtype, trips in ((6, 32, "fp32", 6), (10, 128, "bf16", 4), (17, 256, "fp16", 6)):
        shown = put(page, S=exponent, D=D, dtype=dtype, trips=trips)
        assert (shown["S"], shown["D"], shown["dtype"]) == (2**exponent, D, dtype)
        for card in page.locator("#card option").all_inner_texts():
            check_roofline(put(page, card=card))


def test_roofline_has_the_stored_rates_and_only_where_they_were_measured(page):
    h200 = results.load("h200")
    open_figure(page, "roofline")
    ceilings = h200["provenance"]["ceilings"]
    for dtype, name in (("fp32", "fp32_ieee"), ("fp16", "fp16")):
        shown = put(page, card="H200, measured", dtype=dtype)
        want = (1e12 * ceilings[f"matmul_{name}_tflops"], 1e9 * ceilings["copy_gb_s"])
        assert (shown["peak_flops"], shown["bandwidth"]) == pytest.approx(want)
    for exponent in (8, 9, 12, 15, 16):
        shown = put(page, S=exponent)
        for name, provider in (("naive", "naive"), ("flash", "sdpa_flash")):
            got, ms = shown[name]["measured"], chapter_0.measured(h200, provider, 2**exponent)["ms"] if exponent > 8 else None
            want = ms and ledger.attention_flops(1, 16, 2**exponent, 2**exponent, 64) / ms * 1e3
            assert got == (pytest.approx(want) if ms and ms == ms else None)
    for change in ({"D": 128}, {"D": 64, "dtype": "bf16"}, {"dtype": "fp16", "card": "H100, data sheet"}):
        assert put(page, S=12, **change)["flash"]["measured"] is None


def test_explore_says_what_is_missing(monkeypatch, tmp_path):
    with pytest.raises(FileNotFoundError, match="online_softmax"):
        figures.explore("online_sofmax")
    monkeypatch.setattr(figures, "EXPLORABLE", tmp_path)
    with pytest.raises(FileNotFoundError, match="a clone of the course"):
        figures.explore("online_softmax")
    monkeypatch.setitem(sys.modules, "IPython.display", None)
    with pytest.raises(ImportError, match="pip install ipython"):
        figures.explore("online_softmax")


# The order of the tokens -> the positions that a rank of so many holds.
POSITIONS = {
    "plain": lambda rank, ranks: torch.arange(48).chunk(ranks)[rank],
    "zigzag": lambda rank, ranks: ring.shard(torch.arange(48), rank, ranks, dim=0),
    "striped": lambda rank, ranks: torch.arange(48)[rank::ranks],
}


@pytest.mark.parametrize("order", POSITIONS)
def test_ring_attention_counts_every_pair(page, order):
    assert open_figure(page, "ring_attention")["order"] == "plain"
    for ranks, is_causal in itertools.product((2, 3, 4, 6, 8), (True, False)):
        shown = put(page, ranks=ranks, order=order, is_causal=is_causal)
        positions = [POSITIONS[order](rank, ranks) for rank in range(ranks)]
        assert shown["positions"] == [mine.tolist() for mine in positions]
        assert shown["holds"] == [[owner(rank, step, ranks) for rank in range(ranks)] for step in range(ranks)]
        for owners, counts in zip(shown["holds"], shown["work"], strict=True):
            for rank, holds in enumerate(owners):
                pairs = positions[holds] <= positions[rank][:, None] if is_causal else torch.ones(48 // ranks, 48 // ranks)
                assert counts[rank] == int(pairs.sum())
        assert shown["total"] == ledger.visible_pairs(48, 48, is_causal)
        assert shown["ratio"] == pytest.approx(sum(map(max, shown["work"])) * ranks / shown["total"])
        assert page.locator("#verdict b.wrong").count() == (is_causal and order == "plain")


def test_ring_clock_is_the_pages_clock(page):
    """Every setting takes as long as chapter 13's tables say, and ✓ stands where none adds less."""
    assert open_figure(page, "ring_clock")["total"] == 18
    page.locator("summary").click()
    for ranks, (T_c, T_s) in itertools.product((2, 3, 4, 8), ((4, 1), (5, 3.25), (2, 6))):
        for own in ("first", "last"):
            put(page, way="backward")  # another way begins with the case's times
            shown = put(page, ranks=ranks, T_c=T_c, T_s=T_s, own=own)
            assert shown["total"] == pytest.approx(chapter_13.on_clock("backward", T_c, T_s, ranks, own=own))
            assert page.locator("#verdict b.right").count() == (shown["sends"] <= shown["least"] + 1e-9)
        for work in ("equal shares", "counter"):
            put(page, way="forward")
            shown = put(page, work=work, T_c=T_c, T_s=T_s)
            want = chapter_13.on_clock("forward", T_c, T_s, ranks, is_late=work == "equal shares")
            assert (shown["ranks"], shown["total"]) == (ranks, pytest.approx(want))


def test_ring_clock_tells_what_was_measured(page):
    """Of each stored case and program, and of no other times."""
    assert open_figure(page, "ring_clock")["measured"] is None
    page.locator("summary").click()
    rows = chapter_13.load()["rows"]
    forward, backward = (chapter_13.clock_times(rows, way) for way in ("forward", "backward"))
    for case in chapter_13.HOST:
        put(page, case=chapter_13.name_of(case))
        for way, times in (("forward", forward), ("backward", backward)):
            shown = put(page, way=way)
            assert (shown["T_c"], shown["T_s"]) == pytest.approx(tuple(times.loc[case, ["T_c", "T_s"]]), abs=1e-4)
        put(page, way="forward")
        for work, provider in (("equal shares", "equal shares"), ("counter", "ring")):
            assert put(page, work=work)["measured"] == pytest.approx(forward.loc[case, provider], abs=0.06)
        put(page, way="backward")
        for own in ("first", "last"):
            want = backward.loc[case, f"own tile {own}"]
            assert put(page, own=own)["measured"] == pytest.approx(want, abs=0.06)


def test_chain_answers_its_question(page):
    """With v's mean at 1, 16,384 products lose less than 1 % in chains of 1,024, and more in longer ones. Nothing else is ticked."""
    assert open_figure(page, "chain")["mean"] == 1
    assert put(page, chain=10)["lost"] < 1 < put(page, chain=11)["lost"]
    others = {"chain": 9}, {"mean": 0}, {"length": 10}, {"peaked": True}, {"chain": 14, "mean": 0}
    for other in ({}, *others):
        put(page, **({"length": 14, "chain": 10, "mean": 1, "peaked": False} | other))
        assert page.locator("#verdict.right").count() == (not other)


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("rotate", [True, False])
@pytest.mark.parametrize("format", ["e4m3", "int8"])
def test_e4m3_rounds_as_the_package_does(page, format, rotate, scaled):
    open_figure(page, "e4m3")
    for outlier in (0, 3.5, 6, 14.3, 20):
        shown = put(page, outlier=outlier, format=format, rotate=rotate, scaled=scaled)
        row = torch.tensor(shown["row"], dtype=torch.float64)
        assert row[3].item() == pytest.approx(2**outlier)
        matrix = torch.eye(8, dtype=torch.float64)
        if rotate:
            matrix = torch.tensor([[(-1.0) ** (i & j).bit_count() for j in range(8)] for i in range(8)], dtype=torch.float64) / 8**0.5
            matrix = torch.tensor(shown["signs"], dtype=torch.float64)[:, None] * matrix
        sent = row @ matrix
        scale = float(sent.abs().max()) / {"e4m3": 448, "int8": 127}[format] if scaled else 1.0
        assert shown["scale"] == pytest.approx(scale)
        before = torch.tensor(shown["before"], dtype=torch.float64)
        torch.testing.assert_close(before, sent / scale)
        stored = fp8.to_e4m3(before) if format == "e4m3" else before.clamp(-127, 127).round()
        assert shown["stored"] == stored.tolist()
        back = stored * scale @ matrix.T
        assert shown["read"] == pytest.approx(back.tolist(), abs=1e-9 * float(row.abs().max()))
        assert shown["error"] == pytest.approx(float((back - row).norm() / row.norm()))
        others = torch.arange(8) != 3
        assert shown["others"] == pytest.approx(float((back - row)[others].norm() / row[others].norm()))
