"""Chapter 5's kernel and what launches it: broken kernels show that the comparisons can fail; configurations, bad input, the grid."""

import functools
import itertools
import math

import pytest
import torch
from attention_cases import Case, assert_attention, check_kernel, load_changed
from buffers import DEVICE, DTYPES, needs_gpu, same_bits, vast_memory, zeros
from test_attention import far_inputs

from fa_tutorial import algorithm, forward

CONFIG = forward.TileConfig(32, 32, 4, 1)
load = functools.partial(load_changed, forward)


# ---------------------------------------------------------------- broken kernels

RAGGED = Case(35, 45, D=40)
FP32 = Case(35, 101, D=40, dtype=torch.float32)
CAUSAL = Case(70, 70, D=16, is_causal=True)
FEWER_QUERIES = Case(35, 70, D=16, is_causal=True)
BLIND_ROWS = Case(70, 35, D=16, is_causal=True)
GQA = Case(20, 40, D=16, H_q=6, H_k=2)
STRIDES = Case(20, 40, D=16, view="three strides")
FALLING = Case(35, 101, D=16, dtype=torch.float32, values="falling maximum", scale=20.0)
VERY_NEGATIVE = Case(35, 45, D=16, values="logits near -1e4", scale=1.0)
HUGE_VALUES = Case(20, 300, D=16, dtype=torch.float32, values="values near the largest")

ROUNDED_ACC = "acc = acc * alpha[:, None]  # [BLOCK_M, BLOCK_D]"
LOOP_STRIDES = "stride_ks, stride_kd, stride_vs, stride_vd, IS_CAUSAL"

# Name -> the piece of forward.py, what stands there instead, and the case that has to fail.
MUTATIONS = {
    "no ragged mask": ("[None, :] < left, s,", "[None, :] < BLOCK_N, s,", RAGGED),
    "rows beyond the end are loaded": ("    if MASK_R:\n", "    if False:\n", RAGGED),
    "columns beyond D are loaded": ("    if MASK_C:\n", "    if False:\n", RAGGED),
    "0 for -inf": ('< left, s, -float("inf"))', "< left, s, 0.0)", RAGGED),
    "0 for -inf, causal": ('last_seen[:, None], s, -float("inf"))', "last_seen[:, None], s, 0.0)", CAUSAL),
    "the mask is off": ("    if MASK:\n        left", "    if False:\n        left", RAGGED),
    "the last ragged block is skipped": ("full, end = S_k // BLOCK_N, tl.cdiv(S_k, BLOCK_N)", "full, end = S_k // BLOCK_N, S_k // BLOCK_N", RAGGED),
    "strict causal": ("<= last_seen[:, None]", "< last_seen[:, None]", CAUSAL),
    "anti-causal": ("<= last_seen[:, None]", ">= last_seen[:, None]", CAUSAL),
    "top-left mask, fewer queries": ("(offs_m - S_q)", "(offs_m - S_k)", FEWER_QUERIES),
    "top-left mask, more queries": ("(offs_m - S_q)", "(offs_m - S_k)", BLIND_ROWS),
    "top-left tiles": ("S_q) + S_k - S_q, 0)", "S_q), 0)", FEWER_QUERIES),
    "tiles crossed by the diagonal count as full": ("seen_by_first // BLOCK_N", "tl.cdiv(seen_by_first, BLOCK_N)", CAUSAL),
    "the last tile is skipped": ("tl.cdiv(seen_by_last, BLOCK_N)", "seen_by_last // BLOCK_N", CAUSAL),
    "full tiles are skipped": ("for start_n in range(0, full * BLOCK_N, BLOCK_N):", "for start_n in range(0, 0, BLOCK_N):", RAGGED),
    "blind rows become NaN": ('tl.where(m_new == -float("inf"), 0.0, m_new)', "m_new", BLIND_ROWS),
    "blind rows are divided by 0": ("l_or_one = tl.where(l == 0.0, 1.0, l)", "l_or_one = l", BLIND_ROWS),
    "blind rows have a finite lse": ('lse = tl.where(l == 0.0, -float("inf"), m + tl.log(l_or_one))', "lse = tl.where(l == 0.0, 0.0, m + tl.log(l_or_one))", BLIND_ROWS),
    "acc is not rescaled": (ROUNDED_ACC, "", RAGGED),
    "l is not rescaled": ("alpha * l + tl.sum(p, axis=1)", "l + tl.sum(p, axis=1)", RAGGED),
    "alpha upside down": ("alpha = tl.exp(m - shift)", "alpha = tl.exp(shift - m)", RAGGED),
    "the maximum does not run": ("tl.maximum(m, tl.max(s, axis=1))", "tl.max(s, axis=1)", FALLING),
    "m starts at 0": ('m = tl.full((BLOCK_M,), -float("inf"), dtype=tl.float32)', "m = tl.zeros((BLOCK_M,), dtype=tl.float32)", VERY_NEGATIVE),
    "acc is rounded to fp16 in every step": (ROUNDED_ACC, "acc = (acc * alpha[:, None]).to(tl.float16).to(tl.float32)", FP32),
    "p is fp16 beside fp32 v": ("acc = dot((p * P_SCALE).to(v.dtype), v, acc)", "acc = dot((p * P_SCALE).to(tl.float16).to(v.dtype), v, acc)", FP32),
    "acc overflows": ("return 1.0 if dtype == torch.float16 else 2.0**-20", "return 1.0", HUGE_VALUES),
    "P_SCALE is not taken back": ("(l_or_one * P_SCALE)[:, None]", "l_or_one[:, None]", FP32),
    "o is not divided": ("o = acc / (l_or_one * P_SCALE)[:, None]", "o = acc", RAGGED),
    "scale is forgotten": ("s = scale * dot(", "s = dot(", RAGGED),
    "lse in base 2": ("m + tl.log(l_or_one)", "m + tl.log2(l_or_one)", RAGGED),
    "lse without m": ("m + tl.log(l_or_one)", "tl.log(l_or_one)", RAGGED),
    "k's batch and head by q's strides": ("b * stride_kb + h_k * stride_kh", "b * stride_qb + h_k * stride_qh", STRIDES),
    "v's batch and head by k's strides": ("b * stride_vb + h_k * stride_vh", "b * stride_kb + h_k * stride_kh", STRIDES),
    "k's rows by q's strides": (LOOP_STRIDES, LOOP_STRIDES.replace("stride_ks", "stride_qs"), STRIDES),
    "v's rows by k's strides": (LOOP_STRIDES, LOOP_STRIDES.replace("stride_vs", "stride_ks"), STRIDES),
    "o by q's strides": ("offs_m[:, None] * stride_os", "offs_m[:, None] * stride_qs", STRIDES),
    "GQA: heads in turns": ("h // (H_q // H_k)", "h % H_k", GQA),
    "GQA: v by the query head": ("h_k * stride_vh", "h * stride_vh", GQA),
    "lse by the key head": ("(b * H_q + h) * S_q", "(b * H_q + h_k) * S_q", GQA),
    "o runs over a head's end": ("mask=mask_m[:, None] & (offs_d[None, :] < D)", "mask=offs_d[None, :] < D", RAGGED),
    "o runs over D": ("mask=mask_m[:, None] & (offs_d[None, :] < D)", "mask=mask_m[:, None]", RAGGED),
    "lse runs over a head's end": ("lse, mask=mask_m)", "lse)", RAGGED),
    "a row is left unwritten": ("mask_m = offs_m < S_q", "mask_m = offs_m < S_q - 1", RAGGED),
}  # fmt: skip

CASES = sorted({case for *_, case in MUTATIONS.values()}, key=str)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_kernel_is_right_where_broken_ones_are_not(case, tmp_path, monkeypatch):
    check_kernel(load(tmp_path, monkeypatch), case, CONFIG)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NaN and inf are what some of them compute
@pytest.mark.parametrize(("old", "new", "case"), MUTATIONS.values(), ids=MUTATIONS)
def test_broken_kernel_is_caught(old, new, case, tmp_path, monkeypatch):
    module = load(tmp_path, monkeypatch, (old, new))
    with pytest.raises(AssertionError):
        check_kernel(module, case, CONFIG)


def call(module, case: Case):
    q, k, v = case.inputs()
    o, lse = module.flash_forward(q, k, v, case.is_causal, case.scale, config=CONFIG)
    assert_attention(o, lse, q, k, v, case.is_causal, case.scale)


def test_scale_from_the_padded_head_dimension_is_caught(tmp_path, monkeypatch):
    line = 'scale, is_causal = check_attention(q, k, v, scale, max_d=MAX_D), check_flag("is_causal", is_causal)'
    call(load(tmp_path, monkeypatch), RAGGED)
    with pytest.raises(AssertionError):
        call(load(tmp_path, monkeypatch, (line, f"{line}\n    scale = padded_d(q.shape[3]) ** -0.5")), RAGGED)


def hidden_nan(module):
    """A NaN in the value of the last key: under the causal mask only the last row sees it."""
    q, k, v = CAUSAL.data()
    want, _ = module.flash_forward(q, k, v, True, config=CONFIG)
    v[0, 1, -1, 0] = math.nan
    o, lse = module.flash_forward(q, k, v, True, config=CONFIG)
    assert same_bits(o[:, :, :-1], want[:, :, :-1]).all(), "a hidden value changed a row"
    assert_attention(o, lse, q, k, v, True)


LEAKS = {
    "hidden values reach every row": ("if MASK and IS_CAUSAL:", "if False:"),
    "strays are forgotten": ("if clean == 0:", "if clean == 2:"),
    "strays reach one row too many": ("sees = n <= offs_m + (S_k - S_q)", "sees = n <= 1 + offs_m + (S_k - S_q)"),
    "strays miss the diagonal": ("sees = n <= offs_m + (S_k - S_q)", "sees = n < offs_m + (S_k - S_q)"),
}


def test_hidden_values_do_not_leak():
    hidden_nan(forward)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("change", LEAKS.values(), ids=LEAKS)
def test_a_leak_of_hidden_values_is_caught(change, tmp_path, monkeypatch):
    with pytest.raises(AssertionError):
        hidden_nan(load(tmp_path, monkeypatch, change))


FAR_MUTATIONS = {
    "batch": ("b = (batch_head // H_q).to(tl.int64)", "b = batch_head // H_q"),
    "head": ("h = (batch_head % H_q).to(tl.int64)", "h = batch_head % H_q"),
    "S": ("tl.arange(0, BLOCK_N).to(tl.int64)", "tl.arange(0, BLOCK_N)"),
    "D": ("tl.arange(0, BLOCK_D).to(tl.int64)", "tl.arange(0, BLOCK_D)"),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("axis", "change"), list(enumerate(FAR_MUTATIONS.values())), ids=FAR_MUTATIONS)
def test_int32_offsets_are_caught(axis, change, tmp_path, monkeypatch):
    q, k, v = far_inputs(vast_memory(), axis)
    small = [x.contiguous() for x in (q, k, v)]
    module = load(tmp_path, monkeypatch, change)
    with pytest.raises(AssertionError):
        assert_attention(*module.flash_forward(q, k, v, config=CONFIG), *small)


def test_far_outputs():
    """o with an element offset of 2**31 and more along its batch."""
    q, k, v = Case(3, 5, D=16, H_q=1).data()
    o = vast_memory().as_strided(q.shape, (2**31 + 16, 48, 16, 1), 2**31 - 4096)
    lse = torch.full(q.shape[:3], math.nan, device=DEVICE)
    strides = [stride for x in (q, k, v, o) for stride in x.stride()]
    forward.flash_forward_kernel[(2,)](
        q, k, v, o, lse, 1, 1, 3, 5, 16, 0.25, *strides, IS_CAUSAL=False, P_SCALE=1.0, BLOCK_M=16, BLOCK_N=16, BLOCK_D=16
    )
    assert_attention(o, lse, q, k, v)


# ---------------------------------------------------------------- the twin


@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize(("S_q", "S_k", "block_m", "block_n"), [(45, 75, 32, 16), (75, 45, 16, 32), (64, 64, 32, 32)])
def test_the_kernel_is_the_twin_of_chapter_4(S_q, S_k, block_m, block_n, is_causal):
    q, k, v = Case(S_q, S_k, D=40, dtype=torch.float32, H_q=4, H_k=2, is_causal=is_causal).data()
    config = forward.TileConfig(block_m, block_n, 4, 1)
    got = forward.flash_forward(q, k, v, is_causal, config=config)
    want = algorithm.flash_forward(q, k, v, block_m, block_n, is_causal)
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-6)


# ---------------------------------------------------------------- configurations


@pytest.mark.parametrize("D", [1, 16, 40, 64, 65, 96, 128, 129, 256])
def test_the_configuration_of_a_card(D):
    """By its shared memory: 64, 99, 163 and 227 KB. That each really fits is shown by compiling it for the card."""
    block_d = max(forward.padded_d(D), 64)
    largest, middle = forward.CONFIGS.values()
    for kilobytes, configs in ((64, forward.SMALL_CONFIGS), (99, middle), (163, middle), (227, largest)):
        for dtype in (torch.float16, torch.bfloat16):
            assert forward.choose_config(D, dtype, kilobytes * 1024) is configs[block_d]
        assert forward.choose_config(D, torch.float32, kilobytes * 1024) is forward.SMALL_CONFIGS[block_d]


def test_a_card_with_less_memory_than_any_gets_the_small_tiles():
    for D in (64, 128, 256):
        assert forward.choose_config(D, torch.float16, 48 * 1024) is forward.SMALL_CONFIGS[D]


def test_the_interpreter_has_its_own_configuration():
    assert forward.choose_config(64, torch.float16, None) is forward.INTERPRETER_CONFIG


def test_shared_bytes_counts_q_and_the_stages_of_k_and_v():
    assert forward.TileConfig(128, 64, 4, 3).shared_bytes(64, 2) == 2 * 64 * (128 + 3 * 64 + 3 * 64)


def test_padded_d():
    assert [forward.padded_d(D) for D in (1, 15, 16, 17, 59, 64, 65, 128, 192, 256)] == [16, 16, 16, 32, 64, 64, 128, 128, 256, 256]


@needs_gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_configuration_gives_the_right_result(dtype):
    limit = forward.shared_memory_limit()
    fitting = [configs for least, configs in forward.CONFIGS.items() if least <= limit and dtype != torch.float32]
    for configs in (*fitting, forward.SMALL_CONFIGS):
        for (block_d, config), is_causal in itertools.product(configs.items(), (False, True)):
            check_kernel(forward, Case(200, 331, D=block_d - 5, dtype=dtype, is_causal=is_causal, H_q=4, H_k=2), config)


BAD_INPUTS = {
    "block_m below 16": (lambda: forward.TileConfig(8, 16, 4, 1), ValueError, ["block_m", "8", "at least 16"]),
    "block_n no power of two": (lambda: forward.TileConfig(16, 48, 4, 1), ValueError, ["block_n", "48", "power of two"]),
    "D of 257": (lambda: forward.flash_forward(*[zeros(1, 1, 2, 257)] * 3), ValueError, ["256", "257"]),
    "float64": (lambda: forward.flash_forward(*[zeros(1, 1, 2, 4, dtype=torch.float64)] * 3), TypeError, ["q", "float64"]),
    "scale NaN": (lambda: forward.flash_forward(*[zeros(1, 1, 2, 4)] * 3, scale=math.nan), ValueError, ["scale", "nan"]),
}


@pytest.mark.parametrize(("bad", "error", "words"), BAD_INPUTS.values(), ids=BAD_INPUTS)
def test_bad_input(bad, error, words):
    with pytest.raises(error) as caught:
        bad()
    assert all(word in str(caught.value) for word in words), caught.value
