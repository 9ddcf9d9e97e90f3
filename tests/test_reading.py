"""The lines of the forward kernel beside the official source's, which a fake checkout stands for."""

import json
import math
import re
from pathlib import Path

import pytest
import torch

forward = pytest.importorskip("fa_tutorial.forward")
reading = pytest.importorskip("fa_tutorial.reading")
fa2_softmax = pytest.importorskip("fa_tutorial.exercises.chapter_12.ex_2").fa2_softmax
KERNELS = forward.attend, forward.softmax_step, forward.flash_forward_kernel
each_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)


def checkout_in(folder, version=reading.VERSION):
    """Files of 2,000 numbered lines."""
    for file in (reading.KERNEL, reading.LAUNCH, reading.SOFTMAX, reading.MASK):
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{path.stem} line {number}\n" for number in range(1, 2001)))
    (folder / "flash_attn").mkdir()
    (folder / "flash_attn" / "__init__.py").write_text(f'__version__ = "{version}"\n')


@each_kernel
def test_each_place_belongs_to_one_line(kernel):
    placed = [places for _, places in reading.lines_of(kernel) if places]
    assert sorted(placed) == sorted(reading.PLACES[kernel.__name__].values())


def test_every_equation_of_the_loop_has_a_place():
    numbered = [(code, places) for kernel in KERNELS for code, places in reading.lines_of(kernel) if "# (4." in code]
    assert len(numbered) >= 6 and all(places for _, places in numbered)


@each_kernel
def test_each_line_stands_beside_links_to_its_places(kernel):
    rows = reading.beside(kernel).data.splitlines()[2:]
    assert len(rows) == len(reading.lines_of(kernel))
    for row, (code, places) in zip(rows, reading.lines_of(kernel), strict=True):
        assert code.strip() in row and re.findall(r"v2\.8\.3/([^\s#]+)#L(\d+)-L(\d+)\)", row) == [
            (place.file, str(place.first), str(place.last)) for place in places
        ]


def counting(seen):
    """A softmax that puts down each block's scores, and gives every key the same weight."""

    def softmax(s, row_max, row_sum, acc, scale_log2, is_first):
        seen.append(s)
        return torch.ones_like(s), row_max, torch.ones(len(s), 4), acc

    return softmax


@pytest.mark.parametrize(("deleted", "spoilt"), [([], ""), ([305], "k"), ([332], "v"), ([305, 332], "kv")])
def test_a_tile_is_there_only_after_a_wait(deleted, spoilt):
    seen = []
    o = reading.their_loop(counting(seen), *torch.ones(3, 4, 4), deleted=deleted, masked=0)
    assert seen[0][:, :4].isnan().any() == ("k" in spoilt)
    assert o.isnan().any() == ("v" in spoilt)


def test_a_wait_is_only_for_closed_groups():
    """k and v hold the number of their block. Without a fence their copies land with the next group that is closed."""
    numbers = (torch.arange(48) // 16).float()[:, None].expand(48, 16) + 1
    q, seen = torch.full((32, 16), 1 / 16), []
    o = reading.their_loop(counting(seen), q, numbers, numbers, deleted=[338], masked=0)
    assert [s[0, [0, 8]].tolist() for s in seen[::2]] == [[3, 3], [3, 3], [2, 2]]  # the k of the block before
    assert [s[0, [0, 8]].tolist() for s in seen[1::2]] == [[3, 3], [2, 3], [1, 2]]  # in the own half alone
    assert (o == 16 * (3 + 2 + 1) / 4).all()
    assert reading.their_loop(counting([]), q, numbers, numbers, deleted=[317], masked=0).isnan().all()


def test_scores_that_nobody_clears_hold_p():
    """Each score is 1 and each p, too."""
    q, ones, seen = torch.full((32, 16), 1 / 16), torch.ones(48, 16), []
    reading.their_loop(counting(seen), q, ones, ones, deleted=[304], masked=0, unset=0.0)
    assert [float(s.max()) for s in seen[::2]] == [1, 2, 2]


@pytest.mark.parametrize("line", [306, 333])
def test_without_a_barrier_a_warp_reads_too_early_and_spoils_a_tile_for_the_other(line):
    """k and v hold the number of their block, so what a product read can be told: each warp copies eight of a tile's rows."""
    numbers = (torch.arange(48) // 16).float()[:, None].expand(48, 16) + 1
    q, seen = torch.full((32, 16), 1 / 16), []
    o = reading.their_loop(counting(seen), q, numbers, numbers, deleted=[line], masked=0)
    k_of = {warp: [s[0, [0, 8]].tolist() for s in blocks] for warp, blocks in (("ahead", seen[::2]), ("behind", seen[1::2]))}
    if line == 306:  # the one ahead multiplies by its own half and what was there before the other's
        assert [half for half, _ in k_of["ahead"]] == [3, 2, 1] and math.isnan(k_of["ahead"][0][1])
        assert [half for _, half in k_of["ahead"][1:]] == [3, 2]
        assert k_of["behind"] == [[3, 3], [2, 2], [1, 1]]
        assert (o[:16] == 8 * 2 * (3 + 2 + 1) / 4).all() and (o[16:] == 8 * ((2 + 3) + (1 + 2) + (1 + 1)) / 4).all()
    else:  # the one ahead has overwritten half of the k that the other multiplies by
        assert k_of["ahead"] == [[3, 3], [2, 2], [1, 1]] and k_of["behind"] == [[2, 3], [1, 2], [1, 1]]
        assert o[:16].isnan().all() and (o[16:] == 8 * 2 * (3 + 2 + 1) / 4).all()


def test_a_rows_four_threads_hold_two_columns_of_each_eight():
    columns = reading.by_thread(torch.arange(16)[None])[0].tolist()
    assert columns == [[0, 1, 8, 9], [2, 3, 10, 11], [4, 5, 12, 13], [6, 7, 14, 15]]


@pytest.mark.parametrize("join", [True, False])
def test_the_sums_of_a_rows_threads_are_joined_after_the_loop(join):
    """Else each divides its own columns of o by its own sum."""

    def softmax(s, row_max, row_sum, acc, scale_log2, is_first):
        return torch.ones_like(s), row_max, torch.tensor([[1.0, 2.0, 3.0, 4.0]]).repeat(len(s), 1), acc

    q, k, v = torch.ones(2, 4), torch.ones(16, 4), torch.ones(16, 16)
    o = reading.by_thread(reading.their_loop(softmax, q, k, v, join=join))
    assert torch.equal(o, torch.full((2, 4, 4), 1.6) if join else 16 / torch.tensor([1.0, 2.0, 3.0, 4.0])[:, None].expand(2, 4, 4))


@pytest.mark.parametrize(
    ("call", "running", "clash"),
    [
        ("mask_fn", ["gemm q kᵀ", "gemm p v"], "changes s, which gemm q kᵀ may still write"),
        ("max_get_scale", ["gemm q kᵀ"], "reads s, which gemm q kᵀ may still write"),
        ("online_softmax", ["gemm p v"], ""),
        ("convert_type_out", ["gemm p v"], "changes p, which gemm p v may still read"),
        ("rescale_o", ["gemm p v"], "changes acc, which gemm p v may still write"),
        ("release k", ["gemm p v"], ""),
        ("release v", ["gemm p v"], "changes v, which gemm p v may still read"),
        ("gemm q kᵀ", ["gemm p v"], ""),
    ],
)
def test_a_call_meets_what_a_matmul_under_way_reads_or_writes(call, running, clash):
    assert reading.under_way([*running, call])[-1] == (call, running, clash)
    assert reading.worst_case([*running, call]).splitlines()[-1].endswith(f"✗ {clash}" if clash else running[-1].removeprefix("gemm "))


@pytest.mark.parametrize(("number", "left"), [(0, []), (1, ["gemm p v"]), (2, ["gemm q kᵀ", "gemm p v"]), (9, ["gemm q kᵀ", "gemm p v"])])
def test_matmuls_end_in_the_order_in_which_they_were_issued(number, left):
    assert reading.under_way([*reading.MATMULS, f"warpgroup_wait<{number}>", "release k"])[-1][1] == left


@pytest.mark.parametrize("kernel", reading.DIFFERS)
def test_each_difference_belongs_to_a_line(kernel):
    assert reading.DIFFERS[kernel].keys() <= reading.PLACES[kernel].keys()
    rows = reading.beside(getattr(forward, kernel)).data
    assert all(f"| {text} |" in rows for text in reading.DIFFERS[kernel].values())


@each_kernel
def test_both_stand_below_each_other(kernel, tmp_path, monkeypatch):
    checkout_in(tmp_path / "flash-attention")
    (tmp_path / "course" / "work").mkdir(parents=True)
    monkeypatch.delenv("FLASH_ATTENTION", raising=False)
    monkeypatch.chdir(tmp_path / "course" / "work")
    shown = reading.both(kernel)
    for code, places in reading.lines_of(kernel):
        after = shown.partition(f"{code}\n")[2] if places else ""
        for place in places:
            stem = place.file.rpartition("/")[2].removesuffix(".h")
            theirs = [f"{stem} line {number}" for number in range(place.first, place.last + 1)]
            assert re.findall(rf"{stem} line \d+", after.partition(reading.numbers(place))[2])[: len(theirs)] == theirs


@pytest.mark.parametrize("version", [None, "2.8.2"])
def test_without_a_checkout_of_the_version_it_says_how(version, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLASH_ATTENTION", str(tmp_path / "elsewhere"))
    if version:
        checkout_in(tmp_path / "elsewhere", version)
    assert "git clone" in reading.both(forward.attend) and "line 319" not in reading.both(forward.attend)


def test_words_stand_in_their_lines():
    folder = reading.checkout()
    if folder is None:
        pytest.skip("no checkout of flash-attention 2.8.3 here")
    for places in (places for of_kernel in reading.PLACES.values() for places in of_kernel.values()):
        for place in places:
            lines = (folder / place.file).read_text(encoding="utf-8").splitlines()[place.first - 1 : place.last]
            assert place.word in "\n".join(lines), place


def quotes():
    """The lines of theirs that the page quotes: (file, number, text)."""
    page = json.loads((Path(__file__).parents[1] / "notebooks" / "12_reading_flash_attention.ipynb").read_text(encoding="utf-8"))
    text = "\n".join("".join(cell["source"]) for cell in page["cells"] if cell["cell_type"] == "markdown")
    files = reading.KERNEL, reading.KERNEL, reading.SOFTMAX, reading.SOFTMAX, reading.BACKWARD, reading.FA4_SOFTMAX
    for file, block in zip(files, re.findall(r"```(?:cpp|python)\n(.*?)```", text, re.DOTALL), strict=True):
        for line in block.splitlines():
            number, _, code = line.strip().partition(" ")
            yield file, int(number), code


def test_quotes_stand_in_their_source():
    folder = reading.checkout()
    if folder is None:
        pytest.skip("no checkout of flash-attention 2.8.3 here")
    left_out = r"FLASH_NAMESPACE::|cute::|template |params\.|Kernel_traits::|const float |\s"
    for file, number, code in quotes():
        near = re.sub(left_out, "", "".join((folder / file).read_text(encoding="utf-8").splitlines(keepends=True)[number - 1 : number + 3]))
        at = -1
        for part in re.sub(left_out, "", code).split("…"):
            at = near.find(part, at + 1)
            assert at >= 0, (file, number, code)
