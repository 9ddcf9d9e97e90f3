"""tools/measure: what it measures is what is stored, its kernels attend, and an interruption keeps every finished row."""

import functools

import pytest
import torch
from buffers import needs_gpu, randn

from fa_tutorial import hardware, matmul, reference
from fa_tutorial.bench import chapter_8 as pages
from fa_tutorial.bench import results, sweep, timing
from fa_tutorial.bench.cases import Shape, about
from fa_tutorial.tiles import TileConfig
from measure import __main__ as command
from measure import (
    backward_orders,
    changed_kernels,
    chapter_8,
    chapter_10,
    chapter_11,
    chapter_12,
    chapters_0_to_7,
    clocks,
    finished_clock,
    finished_parts,
    fp8_parts,
    loops,
)


@pytest.mark.parametrize("chapter", command.MEASURED)
def test_what_is_measured_is_what_is_stored(chapter):
    """On one card or another. Renaming a field would measure everything again."""
    cards = [results.read(path) for path in results.FOLDER.glob("*.json")]
    for key in command.MEASURED[chapter]:
        stored = [row for card in cards for row in card[key]]
        assert [about for about, _ in command.measurements(chapter, key) if not sweep.is_done(about, stored)] == []


def test_an_interruption_keeps_every_finished_row(monkeypatch, tmp_path, capsys):
    """And a second run measures what is missing, of the chapters that are named."""
    ran, broken = [], [True]

    def measured(name: str):
        ran.append(name)
        if name == "second" and broken:
            raise KeyboardInterrupt
        return {"ms": 1.0}

    def cases(chapter: int, *names: str):
        return {"kernels": [lambda: ((about(chapter, "add", name), lambda name=name: measured(name)) for name in names)]}

    monkeypatch.setattr(command, "MEASURED", {2: cases(2, "first", "second"), 3: cases(3, "third")})
    monkeypatch.setattr(command, "require_gpu", lambda: None)
    monkeypatch.setattr(sweep, "measure_ceilings", dict)
    monkeypatch.setattr(results, "provenance", lambda: dict.fromkeys(sweep.SAME, "test"))
    path = tmp_path / "card.json"
    assert command.main([str(path)]) == 130 and "the same command goes on from there" in capsys.readouterr().err
    assert [row["provider"] for row in results.read(path)["kernels"]] == ["first"]
    ran.clear(), broken.clear()
    assert command.main([str(path), "--chapters", "2"]) == 0 and ran == ["second"]
    assert capsys.readouterr().out == f"{path}: complete\n" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("variant", chapter_10.CONTESTS)
def test_a_variant_is_measured_beside_the_same_one(variant, monkeypatch):
    """FlexAttention runs eagerly here, and the window is shorter, so that it hides something."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setattr(chapter_10, "WINDOW", 40)
    contest = chapter_10.CONTESTS[variant](128, 2)
    q, k, v = (randn(1, 2, 128, 16, seed=seed) for seed in range(3))
    assert (contest.ours(q, k, v) - contest.flex(q, k, v)).abs().max() < 1e-4


@pytest.mark.parametrize("mode", chapter_10.COSTS)
def test_each_variants_cost_is_that_of_a_call(mode, monkeypatch):
    """Of which chapter 8's give the result of ours, or cost_calls raises. The interpreter has no tanh.approx."""
    monkeypatch.setitem(chapter_10.COSTS, mode, [name for name in chapter_10.COSTS[mode] if "approx" not in name])
    for name, call in chapter_10.cost_calls(mode, S=64, H=1).items():
        assert all(x.isfinite().all() and x.any() for x in chapter_10.as_tuple(call())), name


def test_the_packages_cap_is_right_for_scores_far_beyond_it(monkeypatch):
    monkeypatch.delitem(chapter_10.CAPS, "tanh.approx")
    rows = chapter_10.cap_errors(torch.float32, 20, S=64)
    assert rows["tanh"]["error"] < 1e-4 and rows["tanh"]["largest"] > 50


@needs_gpu
def test_chapter_8s_kernels_are_measured():
    shape, tile = Shape(1, 2, 2, 256, 256, 64, False), TileConfig(64, 64, 4, 2)
    assert pages.tile_row(tile, shape).keys() >= {"ms", "registers", "shared_bytes"}
    assert chapter_8._tiles_in_turns(shape)[tile].keys() >= {"ms", "cycles", "registers"}
    assert pages.steps_in_turns(shape, chapter_8.counted_in_turns)["tuned"]["cycles"] > 0
    assert all(row["ms"] > 0 for row in chapter_8._ideas_in_turns(shape, tile).values())
    assert 0 < chapter_8._short_row(Shape(1, 2, 2, 64, 64, 64, True))["graph_us"] < 1e5


@needs_gpu
def test_two_calls_take_twice_the_cycles_of_one():
    x = timing.randn(4096, 4096)
    before = clocks.read_clocks()
    cycles = clocks.cycles_in_turns({"one": lambda: x @ x, "two": lambda: (x @ x, x @ x)})
    assert cycles["two"] == pytest.approx(2 * cycles["one"], rel=0.1)
    fastest = float(hardware.nvidia_smi("clocks.max.sm").split()[0])
    passed, ns = (clocks.read_clocks() - before).double().median(0).values.tolist()
    assert 0.2 * fastest < passed / ns * 1e3 <= 1.01 * fastest


@needs_gpu
def test_chapter_12s_kernels_are_measured(monkeypatch):
    """Each against FA2's o, on Hopper, where there are both instructions."""
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("wgmma is Hopper's")
    monkeypatch.setattr(chapter_12, "TILES", [TileConfig(64, 64, 4, 2)])
    monkeypatch.setattr(chapter_12, "LOOP_TILES", [(64, 64, 4)])
    rows = chapter_12.kernels_in_turns(Shape(1, 2, 2, 256, 256, 64, False))
    assert list(rows) == ["sdpa_flash", *chapter_12.LOOPS, *chapter_12.INSTRUCTIONS]
    assert all(0 < row["ms_20"] <= row["ms"] <= row["ms_80"] < 100 for row in rows.values())


def test_the_matmul_without_loads_multiplies_its_first_tiles_in_every_step(monkeypatch):
    monkeypatch.setattr(matmul, "matmul_kernel", changed_kernels.matmul_without_loads_kernel)
    a, b = randn(32, 16).repeat(1, 3), randn(16, 32, seed=1).repeat(3, 1)
    product = functools.partial(matmul.matmul, a, b, config=matmul.MatmulConfig(16, 16, 16, 4, 1))
    c = product()
    assert torch.allclose(c.double(), a.double() @ b.double(), atol=1e-4)
    a[:, 16:], b[16:] = 0, 0
    assert torch.allclose(product(), c)


def test_a_step_with_its_keys_in_l2_is_attention_to_two_tiles_of_each_part(monkeypatch):
    """Of eight tiles of 64 keys in two parts: tiles 0 and 1 twice, and 4 and 5 twice."""
    q, kv = randn(1, 2, 1, 16), randn(2, 1, 1, 512, 16, seed=1)
    drawn = [q, kv]
    monkeypatch.setattr(chapter_11, "randn", lambda *_: drawn.pop(0))
    o = chapter_11._own_call(Shape(1, 2, 1, 1, 512, 16, True), "11.3, keys in L2", 2)()
    k, v = kv[:, :, :, [*range(128)] * 2 + [*range(256, 384)] * 2]
    assert torch.allclose(o.double(), reference.attention(q, k, v)[0], atol=1e-5)


def test_the_packages_step_with_its_keys_in_l2_is_attention_to_two_tiles_of_each_part(monkeypatch):
    """Of 16 tiles of 32 keys, in two parts."""
    q, kv = randn(1, 2, 1, 16), randn(2, 1, 1, 512, 16, seed=1)
    lengths = torch.tensor([512], dtype=torch.int32, device=q.device)
    monkeypatch.setattr(chapter_11.decode, "choose_config", lambda *_: TileConfig(16, 32, 4, 1))  # on every card
    call = functools.partial(chapter_11.decode.flash_decode, q, *kv, lengths, num_splits=2)
    monkeypatch.setattr(chapter_11, "call_of", lambda name, shape: call)
    k, v = kv[:, :, :, [*range(64)] * 4 + [*range(256, 320)] * 4]
    o, plain = (chapter_11._package_call(name, Shape(1, 2, 1, 1, 512, 16, True))() for name in ("decode, keys in L2", "decode"))
    assert torch.allclose(o.double(), reference.attention(q, k, v)[0], atol=1e-5)
    assert torch.allclose(plain.double(), reference.attention(q, *kv)[0], atol=1e-5)


def test_what_the_kernels_are_changed_at_stands_in_their_source():
    assert all((chapters_0_to_7.one_loop(), chapters_0_to_7.transposed_later(), chapters_0_to_7.changed_one_loop(chapters_0_to_7.NO_ADDS)))
    assert all(chapters_0_to_7.changed_one_loop(instead=line) for line in ("", *chapters_0_to_7.FIFTH.values()))
    assert callable(finished_clock.forward())
    assert all(callable(backward_orders.backward(order)) for order in backward_orders.ORDERS)
    assert all("attend" in loops.module_of("one stop", True, 0, False, instead) for instead in loops.INSTEAD)
    assert all(callable(finished_parts.forward(part)) for part in finished_parts.PARTS)
    assert all(callable(fp8_parts.module_of(part)["flash_forward"]) for part in fp8_parts.PARTS)
