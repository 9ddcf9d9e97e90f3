"""Chapter 8's kernels: every step is right, what TMA cannot reach takes pointers, tiles are measured once and kept."""

import math
import types

import pytest
import torch
from attention_cases import VIEWS, Case, assert_attention, assert_gradients, load_changed, place
from buffers import DEVICE, ON_GPU, randn, same_bits, unchanged

from fa_tutorial import attention, backward, flash_attention, forward, hardware, reference, tuned
from fa_tutorial.forward import TileConfig

# NaN and inf are among the inputs, and NumPy, beneath the interpreter, tells of every one.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
TILE = TileConfig(32, 32, 4, 1)
CONFIG = backward.BackwardConfig(TILE, TILE)


def check_step(case: Case, step: str, module=tuned) -> None:
    """o, lse and the gradients of a step, on inputs inside NaN."""
    q, k, v = case.inputs()
    do, dlse = case.output_gradients()
    with unchanged(q, k, v, do):
        o, lse = module.flash_forward(q, k, v, case.is_causal, case.scale, step=step, tile=TILE)
        got = module.flash_backward(q, k, v, o, do, lse, case.is_causal, case.scale, dlse=dlse, step=step, config=CONFIG)
    assert_attention(o, lse, q, k, v, case.is_causal, case.scale)
    assert_gradients(got, q, k, v, do, case.is_causal, case.scale, dlse)


@pytest.mark.parametrize("step", tuned.STEPS)
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
def test_every_step(step, is_causal):
    check_step(Case(45, 70, D=40, is_causal=is_causal, B=1, H_q=4, H_k=2, dlse=step != "delta_twice"), step)


CASES = {
    "bf16": Case(33, 40, D=64, dtype=torch.bfloat16, is_causal=True, B=1),
    "fp32": Case(20, 30, D=16, dtype=torch.float32, is_causal=True, B=1, H_q=1),
    "rows that see nothing": Case(70, 35, D=16, is_causal=True, H_q=1),
    "one query": Case(1, 70, D=16, H_q=1),
    "one key": Case(70, 1, D=16, H_q=1),
    "D no power of two": Case(40, 50, D=80, is_causal=True, B=1, H_q=1),
    "D that no descriptor takes": Case(40, 50, D=59, is_causal=True, B=1, H_q=1),
    "negative scale": Case(20, 30, D=16, scale=-0.5, H_q=1),
    "scale 0": Case(20, 30, D=16, scale=0.0, H_q=1),
    "logits up to 1e4": Case(20, 70, D=24, values="logits up to 1e4", scale=1.0, B=1, H_q=1, is_causal=True, dlse=True),
    "values near the largest": Case(20, 70, D=16, dtype=torch.bfloat16, values="values near the largest", B=1, H_q=1),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_hard_cases(case):
    if case.values == "values near the largest":  # its gradients are beyond the dtype; chapter 7's tests say what holds of them
        q, k, v = case.inputs()
        assert_attention(*tuned.flash_forward(q, k, v, tile=TILE), q, k, v)
    else:
        check_step(case, tuned.BEST)


@pytest.mark.parametrize("view", [view for view in VIEWS if view != "contiguous"])
def test_views(view):
    check_step(Case(35, 40, D=64, is_causal=True, B=2, H_q=2, view=view), tuned.BEST)


# ---------------------------------------------------------------- broken kernels

FULL = Case(37, 70, D=16, B=1, H_q=2)
CAUSAL = Case(45, 70, D=16, is_causal=True, B=1, H_q=2, H_k=1)
BLIND = Case(70, 35, D=16, is_causal=True, B=1, H_q=1)
GQA = Case(33, 40, D=16, B=1, H_q=4, H_k=2)
BF16 = Case(33, 40, D=16, dtype=torch.bfloat16, is_causal=True, B=1, H_q=1)
POINTERS = Case(40, 50, D=59, B=1, H_q=2)
MUTATIONS = {
    "a key too many": ("key < S_k - start_n", "key <= S_k - start_n", FULL),
    "the diagonal is hidden": ("tl.where(key <= (offs_m", "tl.where(key < (offs_m", CAUSAL),
    "top-left alignment": ("(offs_m + (S_k - S_q - start_n))[:, None], s", "(offs_m - start_n)[:, None], s", CAUSAL),
    "tiles that the diagonal crosses have no mask": ("tl.maximum(start_m + 1 + S_k - S_q, 0)", "tl.maximum(start_m + BLOCK_N + S_k - S_q, 0)", CAUSAL),
    "a row that sees nothing shifts by its maximum": ('shift = tl.where(m_new == -float("inf"), 0.0, m_new)', "shift = m_new", BLIND),
    "acc is not rescaled": ("acc = acc * alpha[:, None]", "acc = acc", FULL),
    "l is not rescaled": ("alpha * l + tl.sum(p, axis=1)", "l + tl.sum(p, axis=1)", FULL),
    "acc is not divided": ("o_tile = acc * (1.0 / l_or_one)[:, None]", "o_tile = acc", FULL),
    "lse without the shift": ("SHIFT + tl.log2(l_or_one)", "tl.log2(l_or_one)", BF16),
    "lse in base 2": ("SHIFT + tl.log2(l_or_one)) * LN_2)", "SHIFT + tl.log2(l_or_one)))", FULL),
    "key heads in turns": ("h_k = h // (H_q // H_k)", "h_k = h % H_k", GQA),
    "lse2 in base e": ("* LOG2_E_IN_KERNELS  # [BLOCK_M]", "* 1.0  # [BLOCK_M]", FULL),
    "ds without delta": ("ds = p * (dp - delta)", "ds = p * dp", FULL),
    "delta is 0 where both kernels compute it": ("delta = row_sum_of_do_o(do_tile, o,", "delta = 0 * row_sum_of_do_o(do_tile, o,", FULL),
    "p of a hidden pair": ("p = tl.where(key <= last_seen, p, 0.0)", "p = tl.where(key <= last_seen + 1, p, 0.0)", CAUSAL),
    "the first tile of queries is skipped": ("start = tl.maximum(start_n + S_q - S_k, 0)", "start = tl.maximum(start_n + BLOCK_M + S_q - S_k, 0)", CAUSAL),
    "only the first head of a group": ("tl.range(0, GROUP, num_stages=1)", "tl.range(0, 1, num_stages=1)", GQA),
    "dk: P_SCALE is not taken back": ("dk_acc * (scale / P_SCALE)", "dk_acc * scale", BF16),
    "dq: P_SCALE is not taken back": ("dq_acc * (scale / P_SCALE)", "dq_acc * scale", BF16),
    "dq without scale": ("dq_acc * (scale / P_SCALE)", "dq_acc / P_SCALE", FULL),
    "dk is stored for dv": ("store_rows(dv, dv_acc,", "store_rows(dv, dk_acc,", FULL),
    "a column of a pointer's tile is left out": ("(offs_d[None, :] < D)", "(offs_d[None, :] < D - 1)", POINTERS),
    "pointers start at the head before": ("h.to(tl.int64) * stride_h", "(h.to(tl.int64) // 2) * stride_h", POINTERS),
}  # fmt: skip
STEPS_BROKEN = {"delta is 0 where both kernels compute it": "delta_twice"}


@pytest.mark.parametrize("case", sorted({case for *_, case in MUTATIONS.values()}, key=str), ids=str)
def test_the_kernels_are_right_where_broken_ones_are_not(case):
    check_step(case, tuned.BEST)


@pytest.mark.parametrize("name", MUTATIONS)
def test_broken_kernel_is_caught(name, tmp_path, monkeypatch):
    old, new, case = MUTATIONS[name]
    broken = load_changed(tuned, tmp_path, monkeypatch, (old, new))
    with pytest.raises(AssertionError):
        check_step(case, STEPS_BROKEN.get(name, tuned.BEST), broken)


HIDING = [(16, TILE)]
if ON_GPU:  # with each tile that this card may take
    HIDING += [(D, tile) for D in (64, 128, 256) for tile in tuned.candidates("forward", D, 2, hardware.shared_memory_limit())]


@pytest.mark.parametrize(("D", "tile"), HIDING, ids=str)
def test_a_hidden_nan_or_inf_leaves_the_other_rows_untouched(D, tile):
    q, k, v = Case(70, 70, D=D, is_causal=True, B=1).data()
    do = randn(*q.shape, dtype=q.dtype, seed=4)
    o, lse = tuned.flash_forward(q, k, v, True, tile=tile)
    dq, _, _ = tuned.flash_backward(q, k, v, o, do, lse, True, config=CONFIG)
    for x, stray in ((k, math.nan), (v, math.inf), (v, math.nan)):
        kept = x[0, 1, 50, 3].clone()
        x[0, 1, 50, 3] = stray
        o_, lse_ = tuned.flash_forward(q, k, v, True, tile=tile)
        dq_, _, _ = tuned.flash_backward(q, k, v, o_, do, lse_, True, config=CONFIG)
        assert same_bits(o_[:, :, :50], o[:, :, :50]).all() and same_bits(o_[:, 0], o[:, 0]).all()
        assert same_bits(dq_[:, :, :50], dq[:, :, :50]).all()
        assert not torch.isfinite(o_[0, 1, 50:, 3]).any()
        x[0, 1, 50, 3] = kept


def one_row_of_large_logits(module, is_causal: bool) -> None:
    """Its block is done again with care, and its other rows keep their bits.

    Its logits are 2^20 + key/64 in steps of 1/8, all exact in float32: close, so that every key counts, and rising, so that m changes from tile to
    tile and with it the rounding of m · scale_log2, which is up to 1/16 there. Without care the tiles are weighed wrongly by up to 4 %.
    """
    q, k, v = Case(70, 70, D=16, B=1, H_q=1).data()
    q[..., 0], k[..., 0] = 0.0, 32.0
    k[0, 0, :, 1] = torch.arange(70) // 8 / 4
    q[0, 0, 40] = 0.0
    before, _ = module.flash_forward(q, k, v, is_causal, 1.0, tile=TILE)
    q[0, 0, 40, 0], q[0, 0, 40, 1] = 2.0**15, 0.5
    o, lse = module.flash_forward(q, k, v, is_causal, 1.0, tile=TILE)
    assert lse[0, 0, 40] > tuned.LARGE_LOGIT.value * math.log(2)
    assert_attention(o, lse, q, k, v, is_causal, 1.0)
    truth, _ = reference.attention(q, k, v, is_causal, 1.0)
    assert (o - truth)[0, 0, 40].abs().max() < 1e-3  # the bound above follows the worst row
    others = torch.arange(70, device=DEVICE) != 40
    assert same_bits(o[:, :, others], before[:, :, others]).all()


@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
def test_one_row_of_large_logits_among_small_ones(is_causal):
    one_row_of_large_logits(tuned, is_causal)


BROKEN_REPAIRS = {
    "a large logit is not marked": ("> LARGE_LOGIT) & (l > 0.0)", "> LARGE_LOGIT) & (l < 0.0)"),
    "repaired without care": ("large = tl.abs(shift_log2) > LARGE_LOGIT", "large = tl.abs(shift_log2) < 0"),
    "what is marked is not repaired": ("if any_nan(lse_ptr, start, S_q, REPAIR_ROWS)", "if start < 0"),
    "the last blocks are not repaired": ("S_q), BLOCK_M)):", "S_q), BLOCK_M) - 2):"),
}


@pytest.mark.parametrize("name", BROKEN_REPAIRS)
def test_a_broken_repair_is_caught(name, tmp_path, monkeypatch):
    broken = load_changed(tuned, tmp_path, monkeypatch, BROKEN_REPAIRS[name])
    with pytest.raises(AssertionError):
        one_row_of_large_logits(broken, False)


def test_what_auto_takes_depends_on_the_tensors_card(monkeypatch):
    cards = [tuned.Card("one", 80, 101_376), tuned.Card("other", 90, 232_448)]
    monkeypatch.setattr(attention, "interpreter_on", lambda: False)
    monkeypatch.setattr(attention, "has_gpu", lambda: True)
    monkeypatch.setattr(tuned, "card", cards.__getitem__)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert [attention.best(), attention.best(0), attention.best(1)] == ["tuned", "tuned", "hopper"]
    assert attention.implementation("hopper", 1)[1] is tuned.flash_backward
    with pytest.raises(ValueError, match=r'"hopper" is for .*9\.0'):
        attention.implementation("hopper", 0)


def test_gradients_through_flash_attention():
    q, k, v = (x.requires_grad_() for x in Case(40, 40, D=32, is_causal=True, B=1).data())
    o = flash_attention(q, k, v, is_causal=True, kernel="tuned")
    got = torch.autograd.grad(o.sum(), (q, k, v))
    assert_gradients(got, q.detach(), k.detach(), v.detach(), torch.ones_like(o), True)


@pytest.mark.skipif(ON_GPU, reason="the interpreter is off")
def test_in_the_interpreter_a_tensor_on_a_gpu_is_not_tuned_for_it():
    on_a_gpu = types.SimpleNamespace(device=types.SimpleNamespace(index=0))
    assert tuned.card_of(on_a_gpu).shared_memory is None


def test_nothing_is_launched_for_what_is_empty():
    q, k = randn(1, 1, 3, 16), randn(1, 1, 0, 16)
    o, lse = tuned.flash_forward(q.half(), k.half(), k.half())
    assert (o == 0).all() and (lse == -math.inf).all()


# ---------------------------------------------------------------- descriptors


def test_what_a_descriptor_can_reach():
    x = randn(2, 3, 5, 16, dtype=torch.float16)
    assert tuned.reachable(x) and tuned.reachable(x.transpose(1, 2)) and tuned.reachable(x[:, :1])
    assert not tuned.reachable(x.transpose(2, 3)), "D has another stride than 1"
    assert not tuned.reachable(x[..., 1:9]), "the first element is not aligned to 16 bytes"
    assert not tuned.reachable(randn(2, 3, 5, 17, dtype=torch.float16)[..., :16]), "rows are not"
    assert not tuned.reachable(x[:, :1].expand(2, 3, 5, 16)), "heads have a stride of 0"
    assert not tuned.reachable(place(x, "offset of one").tensor)


def test_a_dimension_of_one_may_have_any_stride():
    x = randn(1, 1, 5, 16, dtype=torch.float16).as_strided((1, 1, 5, 16), (3, 7, 16, 1))
    assert tuned.reachable(x) and tuned.descriptor(x, 32).block_shape == [1, 1, 32, 16]


# ---------------------------------------------------------------- tiles


@pytest.mark.parametrize("kernel", tuned.TILES)
@pytest.mark.parametrize("D", [16, 64, 80, 128, 256])
def test_candidates_fit_the_card(kernel, D):
    block_d = max(forward.padded_d(D), 64)
    tiles = {memory: tuned.candidates(kernel, D, 2, memory) for memory in (65_536, 101_376, 166_912, 232_448)}
    for shared_memory, those in tiles.items():
        assert 1 <= len(those) <= 5
        assert all(tuned.shared_bytes(kernel, tile, block_d, 2) <= max(shared_memory, 101_376) for tile in those)
        assert all(max(tile.block_m, tile.block_n) <= tuned.MAX_BLOCK for tile in those)
    assert tiles[101_376] == tiles[166_912] == tuned.TILES[kernel][101_376][block_d]
    assert tiles[232_448] == tuned.TILES[kernel][232_448][block_d]
    assert tuned.candidates(kernel, D, 2, None) == (forward.INTERPRETER_CONFIG,)


def test_shared_bytes():
    tile = TileConfig(128, 64, 4, 3)
    assert tuned.shared_bytes("forward", tile, 64, 2) == tile.shared_bytes(64, 2) == 2 * 64 * (128 + 3 * 2 * 64)
    assert tuned.shared_bytes("dkdv", tile, 64, 2) == 2 * 64 * (2 * 64 + 3 * 2 * 128)
    assert tuned.shared_bytes("dq", tile, 64, 2) == 2 * 64 * (2 * 128 + 3 * 2 * 64)


def test_lengths_share_a_bucket():
    assert [tuned.bucket(S) for S in (1, 256, 257, 4096, 4097, 16_384, 100_000)] == [256, 256, 512, 4096, 8192, 16_384, 16_384]


@pytest.fixture
def a_tuner(monkeypatch, tmp_path):
    """tuned's measuring with times that are made up, an empty disk, and no GPU: what `fastest` does, and a list of what it measured."""
    measured = []

    class Disk:
        def __init__(self, name):
            self.folder = tmp_path / name

        def get_file(self, file):
            return str(self.folder / file) if (self.folder / file).exists() else None

        def put(self, text, file, binary):
            self.folder.mkdir(exist_ok=True)
            (self.folder / file).write_text(text)

    class Kernel:
        __name__, cache_key = "kernel", "source"

    def time(launch, tile):
        measured.append(tile)
        return {32: 3.0, 64: 1.0, 128: math.inf}[tile.block_m]

    monkeypatch.setattr(tuned, "get_cache_manager", Disk)
    monkeypatch.setattr(tuned, "_time", time)
    monkeypatch.setattr(tuned, "_measured", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return Kernel, measured


TILES = [TileConfig(block_m, 64, 4, 3) for block_m in (32, 64, 128)]


def test_the_fastest_tile_is_measured_once_and_kept(a_tuner, monkeypatch):
    kernel, measured = a_tuner
    assert tuned.fastest(kernel, TILES, ("key",), None) == TILES[1] and measured == TILES * tuned.ROUNDS
    assert tuned.fastest(kernel, TILES, ("key",), None) == TILES[1] and measured == TILES * tuned.ROUNDS
    monkeypatch.setattr(tuned, "_measured", {})  # another process
    assert tuned.fastest(kernel, TILES, ("key",), None) == TILES[1] and measured == TILES * tuned.ROUNDS
    assert tuned.fastest(kernel, TILES, ("another",), None) == TILES[1] and measured == TILES * 2 * tuned.ROUNDS
    kernel.cache_key = "changed"
    assert tuned.fastest(kernel, TILES, ("third",), None) == TILES[1] and measured == TILES * 3 * tuned.ROUNDS


@pytest.mark.parametrize("text", ["", "{", "null", '{"block_m": 64}', '{"block_m": 64, "block_n": 64, "num_warps": 4, "num_stages": 0}'])
def test_a_kept_tile_that_cannot_be_read_is_measured_again(a_tuner, monkeypatch, tmp_path, text):
    kernel, measured = a_tuner
    tuned.fastest(kernel, TILES, ("key",), None)
    [kept] = tmp_path.glob("*/tile.json")
    kept.write_text(text)
    for _ in range(2):
        monkeypatch.setattr(tuned, "_measured", {})
        assert tuned.fastest(kernel, TILES, ("key",), None) == TILES[1]
    assert measured == TILES * 2 * tuned.ROUNDS, "once, and once more after the file was spoilt"


def test_nothing_is_measured_while_a_graph_is_captured(a_tuner, monkeypatch):
    kernel, measured = a_tuner
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert tuned.fastest(kernel, TILES, ("key",), None) == TILES[0] and not measured


def test_where_memory_does_not_suffice_to_measure_the_first_tile_is_taken(a_tuner, monkeypatch):
    kernel, measured = a_tuner
    time_of = tuned._time

    def too_little(launch, tile):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(tuned, "_time", too_little)
    assert tuned.fastest(kernel, TILES, ("key",), None) == TILES[0]
    monkeypatch.setattr(tuned, "_time", time_of)  # it was not kept
    assert tuned.fastest(kernel, TILES, ("key",), None) == TILES[1] and measured == TILES * tuned.ROUNDS


@pytest.mark.parametrize("step", ["descriptors", "order"])
def test_one_query_whose_keys_have_rows_that_tma_reaches_and_gradients_that_it_does_not(step):
    q = randn(1, 1, 1, 7, dtype=torch.float16, seed=1)
    k, v = (place(randn(1, 1, 40, 7, dtype=torch.float16, seed=seed), "padded rows").tensor for seed in (2, 3))  # 8 elements apart
    assert tuned.reachable(k)
    o, lse = tuned.flash_forward(q, k, v, step=step, tile=TILE)
    got = tuned.flash_backward(q, k, v, o, torch.ones_like(o), lse, step=step, config=CONFIG)
    assert_gradients(got, q, k, v, torch.ones_like(o))


def test_one_tile_is_not_measured(a_tuner):
    kernel, measured = a_tuner
    assert tuned.fastest(kernel, TILES[2:], ("key",), None) == TILES[2] and not measured


@pytest.mark.parametrize(
    "call",
    [tuned.flash_forward, lambda *x, step: tuned.flash_backward(*x, *[torch.zeros(1, 1, 2, 16, device=DEVICE)] * 2, None, step=step)],
)
def test_unknown_step(call):
    with pytest.raises(ValueError, match=r"step must be one of .*'order'.*got 'warp'"):
        call(*[torch.zeros(1, 1, 2, 16, device=DEVICE)] * 3, step="warp")


@pytest.mark.parametrize("scale", [1e-46, 2.0**-140, 1e38, 3e38])
def test_scales_at_the_ends_of_float32(scale):
    """Zeros as scores: what counts is that 0 or inf times the mask's −inf gives no NaN."""
    q, k, v = Case(20, 20, D=32, B=1).data()
    q.zero_()
    o, lse = tuned.flash_forward(q, k, v, True, scale, tile=TILE)
    assert_attention(o, lse, q, k, v, True, scale)


def test_rows_beyond_the_padding_are_refused():
    q = torch.zeros(1, 1, 4, 16, device=DEVICE, dtype=torch.float16)
    with pytest.raises(ValueError, match="block_m must be at most 128"):
        tuned.flash_backward(
            q, q, q, q, q, torch.zeros(1, 1, 4, device=DEVICE), config=backward.BackwardConfig(TileConfig(256, 32, 4, 1), TILE)
        )


@pytest.mark.parametrize("S_k", [1, 511, 512, 4096, 16_384, 1_000_000])
def test_row_blocks_of_the_heads_side_by_side_are_counted_in_int32(S_k):
    side_by_side = tuned.STEPS[tuned.BEST].heads_at_once(S_k)
    assert side_by_side >= 2 and side_by_side * 2**29 // 32 < 2**31  # 2^29 queries in blocks of 32 rows
    assert side_by_side == 64 or side_by_side == max(2, tuned.KEYS_AT_ONCE // S_k)


def test_what_the_forward_kept_is_checked():
    q = torch.zeros(1, 1, 4, 16, device=DEVICE, dtype=torch.float16)
    lse = torch.zeros(1, 1, 8, device=DEVICE)
    with pytest.raises(ValueError, match="lse must be contiguous"):
        tuned.flash_backward(q, q, q, q, q, lse[..., ::2])
    with pytest.raises(ValueError, match="lse must have shape"):
        tuned.flash_backward(q, q, q, q, q, lse)
    with pytest.raises(TypeError, match="dlse has dtype float16"):
        tuned.flash_backward(q, q, q, q, q, lse[..., :4].contiguous(), dlse=lse[..., :4].half())
