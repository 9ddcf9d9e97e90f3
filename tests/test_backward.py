"""Chapter 7's kernels and what launches them: broken kernels show that the comparisons can fail; the twin, configurations, bad input."""

import functools
import itertools
import math

import pytest
import torch
from attention_cases import Case, assert_gradients, check_backward_kernels, load_changed, run_guarded_backward
from buffers import DEVICE, DTYPES, needs_gpu, same_bits, vast_memory, zeros
from test_attention import far_inputs

from fa_tutorial import algorithm, backward, forward, reference

CONFIG = backward.BackwardConfig(forward.TileConfig(32, 32, 4, 1), forward.TileConfig(32, 32, 4, 1))
load = functools.partial(load_changed, backward)

# NaN and inf are what some of the broken kernels compute.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

# ---------------------------------------------------------------- broken kernels

RAGGED = Case(20, 45, D=24, B=1, H_q=1)
HEADS = Case(20, 20, D=24, B=1)
FP32 = Case(20, 45, D=24, dtype=torch.float32, B=1, H_q=1)
DLSE = Case(20, 20, D=16, dtype=torch.float32, B=1, H_q=1, dlse=True)
CAUSAL = Case(40, 40, D=16, is_causal=True, B=1, H_q=1)
FEWER_QUERIES = Case(20, 45, D=16, is_causal=True, B=1, H_q=1)
BLIND_ROWS = Case(45, 20, D=16, is_causal=True, B=1, H_q=1)
GQA = Case(20, 30, D=16, B=1, H_q=4, H_k=2)
STRIDES = Case(20, 30, D=16, view="three strides")
VERY_NEGATIVE = Case(20, 45, D=16, values="logits near -1e4", scale=1.0, B=1, H_q=1)
HUGE_VALUES = Case(20, 45, D=16, dtype=torch.float32, values="values near the largest", B=1, H_q=1)

DELTA = "o.to(tl.float32) * P_SCALE * do.to(tl.float32)"
KEY_LAST_SEEN = "key <= last_seen"
Q_AND_DO_HEADS = "q_ptr + b * stride_qb + h * stride_qh, do_ptr + b * stride_dob + h * stride_doh"
P_SCALE_1 = "DELTA_ELEMENTS = 4096\n\n\ndef p_scale(dtype):\n    return 1.0\n\n\n"

# Name -> the piece of backward.py, what stands there instead, and the case that has to fail.
MUTATIONS = {
    # delta_kernel
    "delta without do": (DELTA, "o.to(tl.float32) * P_SCALE", RAGGED),
    "delta without P_SCALE": (DELTA, "o.to(tl.float32) * do.to(tl.float32)", FP32),
    "o by do's strides": ("S_q, D, stride_os, stride_od", "S_q, D, stride_dos, stride_dod", RAGGED),
    "delta: do's head by o's strides": ("do_ptr + b * stride_dob + h * stride_doh, offs_m", "do_ptr + b * stride_ob + h * stride_oh, offs_m", HEADS),
    "delta runs over a head's end": ("offs_m, delta, mask=offs_m < S_q)", "offs_m, delta)", HEADS),
    "delta: a row is left unwritten": ("offs_m, delta, mask=offs_m < S_q)", "offs_m, delta, mask=offs_m < S_q - 1)", RAGGED),
    "delta: every head writes the first": ("delta_ptr + (b * H_q + h) * S_q + offs_m, delta", "delta_ptr + b * H_q * S_q + offs_m, delta", HEADS),
    "dlse is ignored": ("if HAS_DLSE:", "if False:", DLSE),
    "dlse with the wrong sign": ("delta -= P_SCALE * dlse", "delta += P_SCALE * dlse", DLSE),
    "dlse without P_SCALE": ("delta -= P_SCALE * dlse", "delta -= dlse", DLSE),
    "dlse is taken for contiguous": ("offs_m * stride_dlses", "offs_m", DLSE),
    # p and ds
    "p without lse": ("tl.exp(s - lse)", "tl.exp(s)", RAGGED),
    "p in base 2": ("tl.exp(s - lse)", "tl.exp2(s - lse)", RAGGED),
    "ds without delta": ("ds = p * (dp - delta)", "ds = p * dp", RAGGED),
    "ds with delta's wrong sign": ("ds = p * (dp - delta)", "ds = p * (dp + delta)", RAGGED),
    "ds without p": ("ds = p * (dp - delta)", "ds = dp - delta", RAGGED),
    "p is not masked": (f"p = tl.where({KEY_LAST_SEEN}, p, 0.0)", "p = p", CAUSAL),
    "ds is not masked": (f"ds = tl.where({KEY_LAST_SEEN}, ds, 0.0)", "ds = ds", CAUSAL),
    "no mask": ("    if MASK:\n        p = ", "    if False:\n        p = ", CAUSAL),
    "no mask, rows that see nothing": ("    if MASK:\n        p = ", "    if False:\n        p = ", BLIND_ROWS),
    "no ragged mask where exp overflows": ("last_seen = tl.zeros((BLOCK_M,), dtype=tl.int32) + (S_k - 1)", "last_seen = tl.zeros((BLOCK_M,), dtype=tl.int32) + end * BLOCK_N", VERY_NEGATIVE),
    "strict causal": (KEY_LAST_SEEN, "key < last_seen", CAUSAL),
    "anti-causal": (KEY_LAST_SEEN, "key >= last_seen", CAUSAL),
    # which tiles, which rows
    "dkdv: top-left mask, fewer queries": ("(offs_m - S_q).to(tl.int32) + (S_k - start_n)", "offs_m.to(tl.int32) - start_n", FEWER_QUERIES),
    "dkdv: top-left mask, more queries": ("(offs_m - S_q).to(tl.int32) + (S_k - start_n)", "offs_m.to(tl.int32) - start_n", BLIND_ROWS),
    "dq: top-left mask": ("offs_m.to(tl.int32) + (S_k - S_q)", "offs_m.to(tl.int32)", FEWER_QUERIES),
    "dkdv: top-left start": ("start = tl.maximum(start_n + S_q - S_k, 0) // BLOCK_M", "start = start_n // BLOCK_M", FEWER_QUERIES),
    "dkdv: start is rounded up": ("start = tl.maximum(start_n + S_q - S_k, 0) // BLOCK_M", "start = tl.cdiv(tl.maximum(start_n + S_q - S_k, 0), BLOCK_M)", BLIND_ROWS),
    "dkdv: tiles crossed by the diagonal count as full": ("full = tl.cdiv(tl.maximum(tl.minimum(start_n + BLOCK_N, S_k) - 1 + S_q - S_k, 0), BLOCK_M)", "full = start", CAUSAL),
    "dkdv: tiles on the diagonal are skipped": ("tl.range(start * BLOCK_M, tl.minimum", "tl.range(full * BLOCK_M, tl.minimum", CAUSAL),
    "dkdv: full tiles are skipped": ("tl.range(full * BLOCK_M, S_q, BLOCK_M", "tl.range(S_q, S_q, BLOCK_M", RAGGED),
    "dkdv: the last ragged block of queries is skipped": ("tl.range(full * BLOCK_M, S_q, BLOCK_M", "tl.range(full * BLOCK_M, S_q // BLOCK_M * BLOCK_M, BLOCK_M", RAGGED),
    "dq: the last ragged block of keys is skipped": ("full, end = S_k // BLOCK_N, tl.cdiv(S_k, BLOCK_N)", "full, end = S_k // BLOCK_N, S_k // BLOCK_N", RAGGED),
    "dq: tiles crossed by the diagonal count as full": ("full, end = seen_by_first // BLOCK_N", "full, end = tl.cdiv(seen_by_first, BLOCK_N)", CAUSAL),
    "dq: the last tile is skipped": ("tl.cdiv(seen_by_last, BLOCK_N)", "seen_by_last // BLOCK_N", CAUSAL),
    "dq: full tiles are skipped": ("range(0, full * BLOCK_N, BLOCK_N)", "range(0, 0, BLOCK_N)", RAGGED),
    "rows of do beyond the end are loaded": ("offs_m, offs_d, S_q, D, stride_dos, stride_dod, True, True", "offs_m, offs_d, S_q, D, stride_dos, stride_dod, False, True", RAGGED),
    "rows of q beyond the end are loaded": ("rows, offs_d, S_q, D, stride_qs, stride_qd, True, True", "rows, offs_d, S_q, D, stride_qs, stride_qd, False, True", RAGGED),
    "columns of k beyond D are loaded": ("stride_ks, stride_kd, MASK, True", "stride_ks, stride_kd, MASK, False", RAGGED),
    "columns of v beyond D are loaded": ("S_k, D, stride_vs, stride_vd, True, True", "S_k, D, stride_vs, stride_vd, True, False", RAGGED),
    # heads and strides
    "GQA: only the first head of a group": ("tl.range(0, H_q // H_k, num_stages=1", "tl.range(0, 1, num_stages=1", GQA),
    "GQA: the group begins at the key head": ("h = h_k * (H_q // H_k) + member", "h = h_k + member", GQA),
    "GQA: dq, heads in turns": ("h_k = h // (H_q // H_k)", "h_k = h % H_k", GQA),
    "GQA: lse and delta by the key head": ("lse_ptr + (b * H_q + h) * S_q, delta_ptr + (b * H_q + h) * S_q", "lse_ptr + (b * H_q + h_k) * S_q, delta_ptr + (b * H_q + h_k) * S_q", GQA),
    "GQA: dq, lse by the key head": ("load_lse(lse_ptr + (b * H_q + h)", "load_lse(lse_ptr + (b * H_q + h_k)", GQA),
    "GQA: dk and dv are stored by query heads": ("out = ((b * H_k + h_k)", "out = ((b * H_k + h_k * (H_q // H_k))", GQA),
    "k's batch and head by q's strides": ("b * stride_kb + h_k * stride_kh", "b * stride_qb + h_k * stride_qh", STRIDES),
    "v's batch and head by k's strides": ("b * stride_vb + h_k * stride_vh", "b * stride_kb + h_k * stride_kh", STRIDES),
    "dkdv: do's batch and head by q's strides": (Q_AND_DO_HEADS, Q_AND_DO_HEADS.replace("stride_do", "stride_q"), STRIDES),
    "dq: do's batch and head by q's strides": ("do_ptr += b * stride_dob + h * stride_doh", "do_ptr += b * stride_qb + h * stride_qh", STRIDES),
    "do's rows by q's strides": ("load_tile(do_ptr, offs_m, offs_d, S_q, D, stride_dos, stride_dod", "load_tile(do_ptr, offs_m, offs_d, S_q, D, stride_qs, stride_qd", STRIDES),
    "v's rows by k's strides": ("S_k, D, stride_vs, stride_vd", "S_k, D, stride_ks, stride_kd", STRIDES),
    # scales and precision
    "dkdv: scale is forgotten in s": ("s_t = scale * dot(", "s_t = dot(", RAGGED),
    "dq: scale is forgotten in s": ("s = scale * dot(", "s = dot(", RAGGED),
    "dk without scale": ("dk * (scale / P_SCALE)", "dk / P_SCALE", RAGGED),
    "dq without scale": ("dq * (scale / P_SCALE)", "dq / P_SCALE", RAGGED),
    "dk: P_SCALE is not taken back": ("dk * (scale / P_SCALE)", "dk * scale", FP32),
    "dq: P_SCALE is not taken back": ("dq * (scale / P_SCALE)", "dq * scale", FP32),
    "v without P_SCALE": ("v = (v.to(tl.float32) * P_SCALE).to(v.dtype)", "v = v", FP32),
    "do without P_SCALE": ("do = (do.to(tl.float32) * P_SCALE).to(do.dtype)", "do = do", FP32),
    "dp overflows": ("DELTA_ELEMENTS = 4096", P_SCALE_1, HUGE_VALUES),
    "dk is rounded to fp16 in every step": ("dk = add_product(dk, ds_t.to(q.dtype), q)", "dk = add_product(dk, ds_t.to(q.dtype), q).to(tl.float16).to(tl.float32)", FP32),
    "dv is rounded to fp16 in every step": ("dv = add_product(dv, p_t.to(do.dtype), do)", "dv = add_product(dv, p_t.to(do.dtype), do).to(tl.float16).to(tl.float32)", FP32),
    "dq is rounded to fp16 in every step": ("return dot(ds.to(k.dtype), k, dq)", "return dot(ds.to(k.dtype), k, dq).to(tl.float16).to(tl.float32)", FP32),
    "p is fp16 beside fp32 do": ("p_t.to(do.dtype)", "p_t.to(tl.float16).to(do.dtype)", FP32),
    "ds is fp16 beside fp32 q": ("ds_t.to(q.dtype)", "ds_t.to(tl.float16).to(q.dtype)", FP32),
    # stores
    "dk and dv run over a head's end": ("mask = (offs_n[:, None] < S_k) & (offs_d[None, :] < D)", "mask = (offs_n[:, None] >= 0) & (offs_d[None, :] < D)", HEADS),
    "dk and dv run over D": ("mask = (offs_n[:, None] < S_k) & (offs_d[None, :] < D)", "mask = (offs_n[:, None] < S_k) & (offs_d[None, :] >= 0)", RAGGED),
    "dq runs over a head's end": ("mask = (offs_m[:, None] < S_q) & (offs_d[None, :] < D)", "mask = (offs_m[:, None] >= 0) & (offs_d[None, :] < D)", HEADS),
    "dq runs over D": ("mask = (offs_m[:, None] < S_q) & (offs_d[None, :] < D)", "mask = (offs_m[:, None] < S_q) & (offs_d[None, :] >= 0)", RAGGED),
    "a row of dk and dv is left unwritten": ("mask = (offs_n[:, None] < S_k)", "mask = (offs_n[:, None] < S_k - 1)", RAGGED),
    "a row of dq is left unwritten": ("mask = (offs_m[:, None] < S_q)", "mask = (offs_m[:, None] < S_q - 1)", RAGGED),
    "dv is stored for dk": ("tl.store(dk_ptr + out, (dk * (scale / P_SCALE))", "tl.store(dk_ptr + out, dv", RAGGED),
}  # fmt: skip

CASES = sorted({case for *_, case in MUTATIONS.values()}, key=str)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_kernels_are_right_where_broken_ones_are_not(case):
    check_backward_kernels(backward, case, CONFIG)


@pytest.mark.parametrize(("old", "new", "case"), MUTATIONS.values(), ids=MUTATIONS)
def test_broken_kernel_is_caught(old, new, case, tmp_path, monkeypatch):
    module = load(tmp_path, monkeypatch, (old, new))
    with pytest.raises(AssertionError):
        check_backward_kernels(module, case, CONFIG)


def kept(module, case: Case) -> tuple[torch.Tensor, ...]:
    """What flash_backward takes: q, k, v, o, do, lse."""
    q, k, v = case.data()
    o, lse = forward.flash_forward(q, k, v, case.is_causal, case.scale, config=CONFIG.dq)
    return q, k, v, o, case.output_gradients()[0], lse


def test_scale_from_the_padded_head_dimension_is_caught(tmp_path, monkeypatch):
    line = 'scale, is_causal = check_attention(q, k, v, scale, max_d=MAX_D), check_flag("is_causal", is_causal)'
    module = load(tmp_path, monkeypatch, (line, f"{line}\n    scale = padded_d(q.shape[3]) ** -0.5"))
    q, k, v, o, do, lse = kept(module, RAGGED)
    assert_gradients(backward.flash_backward(q, k, v, o, do, lse, config=CONFIG), q, k, v, do)
    with pytest.raises(AssertionError):
        assert_gradients(module.flash_backward(q, k, v, o, do, lse, config=CONFIG), q, k, v, do)


# ---------------------------------------------------------------- NaN that nobody may see, offsets


def last_key_is_nan(module, which: str):
    """Only the last query sees the last key: a NaN in it changes no other row of dq."""
    q, k, v, _, do, _ = kept(module, CAUSAL)
    clean = gradients(module, q, k, v, do)
    {"key": k, "value": v}[which][0, 0, -1, 3] = math.nan
    got = gradients(module, q, k, v, do)
    assert same_bits(got[0][:, :, :-1], clean[0][:, :, :-1]).all(), "a hidden key or value changed a row of dq"
    assert torch.isnan(got[0][:, :, -1]).any()


def first_query_is_nan(module):
    """The first query sees the first key only: a NaN in it changes no other row of dk and dv."""
    q, k, v, _, do, _ = kept(module, CAUSAL)
    clean = gradients(module, q, k, v, do)
    q[0, 0, 0, 3] = math.nan
    got = gradients(module, q, k, v, do)
    assert all(same_bits(x[:, :, 1:], y[:, :, 1:]).all() for x, y in zip(got, clean, strict=True)), (
        "a NaN reached keys that its row does not see"
    )
    assert all(torch.isnan(x[:, :, 0]).all() for x in got)


def blind_query_is_nan(module):
    """A NaN in a query that sees no key changes nothing."""
    q, k, v, _, do, _ = kept(module, BLIND_ROWS)
    clean = gradients(module, q, k, v, do)
    q[0, 0, 0, 3] = math.nan
    assert all(same_bits(x, y).all() for x, y in zip(gradients(module, q, k, v, do), clean, strict=True)), (
        "a NaN that sees no key reached one"
    )


def gradients(module, q, k, v, do):
    o, lse = forward.flash_forward(q, k, v, True, config=CONFIG.dq)
    return module.flash_backward(q, k, v, o, do, lse, True, config=CONFIG)


def rows_without_lse(module):
    """A row whose lse is −inf adds nothing, also in tiles without a mask."""
    q, k, v, o, do, lse = kept(module, RAGGED)
    o[:, :, :3], lse[:, :, :3] = 0, -math.inf
    dq, dk, dv = module.flash_backward(q, k, v, o, do, lse, config=CONFIG)
    assert (dq[:, :, :3] == 0).all()
    assert_gradients((dq[:, :, 3:], dk, dv), q[:, :, 3:], k, v, do[:, :, 3:])


LEAKS = {
    "a hidden key reaches every row": (("k = finite_or_0(k)", "k = k"), functools.partial(last_key_is_nan, which="key")),
    "a hidden value reaches every row": ((f"ds = tl.where({KEY_LAST_SEEN}, ds, 0.0)", "ds = tl.where(key <= last_seen, 1.0, 0.0) * ds"), functools.partial(last_key_is_nan, which="value")),
    "a row reaches keys that it does not see": (("rows = tl.where(", "rows = offs_m + 0 * tl.where("), first_query_is_nan),
    "a row that sees nothing reaches keys": (("is_finite(delta) & is_finite(lse)", "is_finite(delta)"), blind_query_is_nan),
    "rows that see nothing become NaN": (('return tl.where(lse == -float("inf"), float("inf"), lse)', "return lse"), rows_without_lse),
}  # fmt: skip


@pytest.mark.parametrize("holds", [holds for _, holds in LEAKS.values()], ids=LEAKS)
def test_what_is_hidden_does_not_leak(holds):
    holds(backward)


@pytest.mark.parametrize(("change", "holds"), LEAKS.values(), ids=LEAKS)
def test_a_leak_is_caught(change, holds, tmp_path, monkeypatch):
    with pytest.raises(AssertionError):
        holds(load(tmp_path, monkeypatch, change))


FAR_MUTATIONS = {
    "batch": (0, (".to(tl.int64), (batch_head % H_", ", (batch_head % H_")),
    "query head": (1, ("(batch_head % H_q).to(tl.int64)", "batch_head % H_q")),
    "key head": (1, ("(batch_head % H_k).to(tl.int64)", "batch_head % H_k")),
    "query head of a group": (1, ("h = h_k * (H_q // H_k) + member", "h = (h_k * (H_q // H_k) + member).to(tl.int32)")),
    "queries": (2, ("tl.arange(0, BLOCK_M).to(tl.int64)", "tl.arange(0, BLOCK_M)")),
    "keys": (2, ("tl.arange(0, BLOCK_N).to(tl.int64)", "tl.arange(0, BLOCK_N)")),
    "D": (3, ("tl.arange(0, BLOCK_D).to(tl.int64)", "tl.arange(0, BLOCK_D)")),
}


@pytest.mark.parametrize(("axis", "change"), FAR_MUTATIONS.values(), ids=FAR_MUTATIONS)
def test_int32_offsets_are_caught(axis, change, tmp_path, monkeypatch):
    q, k, v, do = far_inputs(vast_memory(), axis, (3, 5, 5, 3))
    small = [x.contiguous() for x in (q, k, v, do)]
    o, lse = forward.flash_forward(*small[:3])
    module = load(tmp_path, monkeypatch, change)
    with pytest.raises(AssertionError):
        assert_gradients(module.flash_backward(q, k, v, o, do, lse, config=CONFIG), *small)


# ---------------------------------------------------------------- the twin, and what is launched


@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(("S_q", "S_k", "block_m", "block_n"), [(45, 75, 32, 16), (75, 45, 16, 32)])
def test_the_kernels_are_the_twin_of_chapter_6(S_q, S_k, block_m, block_n, is_causal):
    case = Case(S_q, S_k, D=24, dtype=torch.float32, B=1, H_q=2, H_k=1, is_causal=is_causal, dlse=True)
    q, k, v = case.data()
    do, dlse = case.output_gradients()
    o, lse = algorithm.flash_forward(q, k, v, block_m, block_n, is_causal)
    tile = forward.TileConfig(block_m, block_n, 4, 1)
    got = backward.flash_backward(q, k, v, o, do, lse, is_causal, dlse=dlse, config=backward.BackwardConfig(tile, tile))
    want = algorithm.flash_backward(q, k, v, o, do, lse, block_m, block_n, is_causal, dlse=dlse)
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)


def test_guarded_run_is_flash_backward():
    """What the guarded launches prove holds of the function: it launches the same kernels, on memory that is aligned otherwise."""
    case = Case(45, 30, D=24, dtype=torch.float32, is_causal=True, B=1, H_q=4, H_k=2, dlse=True)
    config = backward.choose_config(24, case.dtype, forward.shared_memory_limit())
    *want, _ = run_guarded_backward(backward, case, config)
    q, k, v = case.inputs()
    do, dlse = case.output_gradients()
    o, lse = (x.float() for x in reference.attention(q, k, v, True))
    got = backward.flash_backward(q, k, v, o, do, lse, True, dlse=dlse)
    assert all(x.is_contiguous() for x in got)
    torch.testing.assert_close(got, tuple(want), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("needs", list(itertools.product((False, True), repeat=3)), ids=str)
def test_only_what_is_needed_is_returned_and_launched(needs, monkeypatch):
    q, k, v, o, do, lse = kept(backward, GQA)
    want = backward.flash_backward(q, k, v, o, do, lse, config=CONFIG) if all(needs) else None
    if not needs[0]:
        monkeypatch.setattr(backward, "dq_kernel", None)  # a launch would fail
    if not any(needs[1:]):
        monkeypatch.setattr(backward, "dkdv_kernel", None)
    got = backward.flash_backward(q, k, v, o, do, lse, needs=needs, config=CONFIG)
    assert [x is not None for x in got] == list(needs)
    if want:
        assert all(same_bits(x, y).all() for x, y in zip(got, want, strict=True))


# ---------------------------------------------------------------- configurations


@pytest.mark.parametrize("D", [1, 16, 40, 64, 65, 96, 128, 129, 256])
def test_the_configuration_of_a_card(D):
    """By its shared memory: 48, 64, 99, 163 and 227 KB. That each really fits is shown by compiling it for the card."""
    block_d = max(forward.padded_d(D), 64)
    largest, middle = backward.CONFIGS.values()
    small = backward.SMALL_CONFIGS
    for kilobytes, configs in ((48, small), (64, small), (99, middle), (163, middle), (227, largest)):
        for dtype in (torch.float16, torch.bfloat16):
            assert backward.choose_config(D, dtype, kilobytes * 1024) is configs[block_d]
        if kilobytes >= 99 or block_d < 256:
            assert backward.choose_config(D, torch.float32, kilobytes * 1024) is backward.FP32_CONFIGS[block_d]


def test_a_card_too_small_for_fp32_is_told_so():
    with pytest.raises(ValueError) as caught:
        backward.choose_config(129, torch.float32, 64 * 1024)
    assert all(word in str(caught.value) for word in ("D = 129", "float32", "65,536", "float16", "at most 128")), caught.value


def test_the_interpreter_has_its_own_configuration():
    assert backward.choose_config(64, torch.float16, None) is backward.INTERPRETER_CONFIG


@needs_gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_configuration_gives_the_right_result(dtype):
    limit = forward.shared_memory_limit()
    fitting = [configs for least, configs in backward.CONFIGS.items() if least <= limit and dtype != torch.float32]
    for configs in (*fitting, backward.FP32_CONFIGS if dtype == torch.float32 else backward.SMALL_CONFIGS):
        for (block_d, config), is_causal, dlse in itertools.product(configs.items(), (False, True), (False, True)):
            case = Case(200, 331, D=block_d - 5, dtype=dtype, is_causal=is_causal, H_q=4, H_k=2, dlse=dlse)
            check_backward_kernels(backward, case, config)


# ---------------------------------------------------------------- bad input


def call(**changes):
    """flash_backward on zeros, S_q = 3, S_k = 2, with some arguments changed."""
    arguments = {name: zeros(1, 2, S, 4) for name, S in (("q", 3), ("k", 2), ("v", 2), ("o", 3), ("do", 3))} | {"lse": zeros(1, 2, 3)}
    return backward.flash_backward(**{**arguments, **changes})


BAD_INPUTS = {
    "D of 257": ({"q": zeros(1, 2, 3, 257), "k": zeros(1, 2, 2, 257), "v": zeros(1, 2, 2, 257)}, ValueError, ["256", "257"]),
    "float64": ({name: zeros(1, 2, 3, 4, dtype=torch.float64) for name in "qkv"}, TypeError, ["q", "float64"]),
    "scale NaN": ({"scale": math.nan}, ValueError, ["scale", "nan"]),
    "o of another dtype": ({"o": zeros(1, 2, 3, 4, dtype=torch.float16)}, TypeError, ["o ", "float16", "float32"]),
    "o of another shape": ({"o": zeros(1, 2, 2, 4)}, ValueError, ["o ", "(1, 2, 3, 4)", "(1, 2, 2, 4)"]),
    "o on another device": ({"o": torch.zeros(1, 2, 3, 4, device="meta")}, ValueError, ["o ", DEVICE.type, "meta"]),
    "o is no tensor": ({"o": None}, TypeError, ["o ", "NoneType", "torch.Tensor"]),
    "do of another dtype": ({"do": zeros(1, 2, 3, 4, dtype=torch.bfloat16)}, TypeError, ["do ", "bfloat16", "float32"]),
    "do of another shape": ({"do": zeros(1, 1, 3, 4)}, ValueError, ["do ", "(1, 2, 3, 4)", "(1, 1, 3, 4)"]),
    "do on another device": ({"do": torch.zeros(1, 2, 3, 4, device="meta")}, ValueError, ["do ", DEVICE.type, "meta"]),
    "do is sparse": ({"do": zeros(1, 2, 3, 4).to_sparse()}, TypeError, ["do ", "dense", "sparse"]),
    "lse of another dtype": ({"lse": zeros(1, 2, 3, dtype=torch.float16)}, TypeError, ["lse ", "float16", "float32"]),
    "lse of another shape": ({"lse": zeros(1, 2, 3, 1)}, ValueError, ["lse ", "(1, 2, 3)", "(1, 2, 3, 1)"]),
    "lse on another device": ({"lse": torch.zeros(1, 2, 3, device="meta")}, ValueError, ["lse ", DEVICE.type, "meta"]),
    "lse with strides": ({"lse": zeros(1, 3, 2).mT}, ValueError, ["lse ", "contiguous", "(6, 1, 2)"]),
    "dlse of another dtype": ({"dlse": zeros(1, 2, 3, dtype=torch.float16)}, TypeError, ["dlse ", "float16", "float32"]),
    "dlse of another shape": ({"dlse": zeros(1, 2, 2)}, ValueError, ["dlse ", "(1, 2, 3)", "(1, 2, 2)"]),
    "dlse on another device": ({"dlse": torch.zeros(1, 2, 3, device="meta")}, ValueError, ["dlse ", DEVICE.type, "meta"]),
}


@pytest.mark.parametrize(("changes", "error", "words"), BAD_INPUTS.values(), ids=BAD_INPUTS)
def test_bad_input(changes, error, words):
    with pytest.raises(error) as caught:
        call(**changes)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_cpu_tensor_where_the_interpreter_is_off(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    on_cpu = {name: torch.zeros(1, 2, 3, 4) for name in ("q", "k", "v", "o", "do")}
    with pytest.raises(RuntimeError, match=r"q is on cpu.*TRITON_INTERPRET=1"):
        call(**on_cpu, lse=torch.zeros(1, 2, 3))


def test_good_input_is_taken():
    assert all((x == 0).all() for x in call())
