"""Chapter 14: e4m3 by blocks, the model of the tensor core's sums, and the FP8 forward, in PyTorch and on Hopper.

    python tests/test_fp8.py "forward_kernel: p is not ordered"    runs one broken copy of the kernel
"""  # fmt: skip

import itertools
import math
import sys

import pytest
import torch
from attention_cases import Case, causal, on_hopper, same
from buffers import DEVICE, guarded_outputs, unchanged
from mutants import mutation_tests_alone

from fa_tutorial import flash_attention_fp8, fp8, reference
from fa_tutorial.bench import chapter_14, results
from fa_tutorial.fp8 import forward, model
from fa_tutorial.fp8.quantise import BLOCK, Quantised, key_order, quantise, random_hadamard

ERROR = 0.0266  # the root mean square of e4m3's relative rounding error, of numbers of any size
RANDOM = torch.Generator().manual_seed(14)


def rms(x) -> float:
    return float(x.double().square().mean().sqrt())


def draw(*shape, dtype=torch.float16) -> torch.Tensor:
    return torch.randn(shape, generator=RANDOM).to(DEVICE, dtype)


def undone(x: Quantised, S: int, as_columns: bool = False) -> torch.Tensor:
    """What quantised values stand for, (B, H, S, D) float64, keys in their own order."""
    values = x.values.double()
    if as_columns:
        values = values[:, :, :, key_order(torch.arange(values.shape[3])).argsort()].mT[:, :, :S]
    return values * x.scales.double().repeat_interleave(BLOCK, dim=2)[:, :, :S, None]


# ---------------------------------------------------------------- e4m3, by blocks


def test_to_e4m3_takes_the_nearest_and_on_a_tie_the_even_one():
    numbers = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    numbers = numbers[numbers.isfinite()].unique()
    assert len(numbers) == 253 and numbers.max() == 448  # 256 without two NaN and one of the two zeros
    middles = (numbers[1:] + numbers[:-1]) / 2
    x = torch.cat([numbers, middles, middles * (1 + 2**-20), torch.tensor([500.0, -1e9]), draw(1000, dtype=torch.float32).cpu() * 100])
    distance = (x.clamp(-448, 448)[:, None] - numbers).abs()
    assert torch.equal((model.to_e4m3(x) - x.clamp(-448, 448)).abs(), distance.min(dim=1).values)
    even = model.to_e4m3(middles[middles.abs() > 2**-6]).to(torch.float8_e4m3fn).view(torch.uint8) % 2
    assert not even.any()


both = pytest.mark.parametrize("quantise", [quantise, model.quantise], ids=["kernel", "model"])


@both
@pytest.mark.parametrize(("S", "D"), [(1, 8), (128, 64), (129, 40), (300, 128), (257, 80)])
def test_quantise_divides_a_block_by_its_largest_and_rounds(S, D, quantise):
    x = draw(2, 3, S, D, dtype=torch.float16 if S % 2 else torch.bfloat16)
    x = x.cpu() if quantise is model.quantise else x  # on a GPU PyTorch multiplies by 1 / 448
    with unchanged(x), guarded_outputs():
        values, scales = quantise(x, factor=-0.3)
    padded = torch.nn.functional.pad(x.cpu().float() * torch.tensor(-0.3), (0, values.shape[3] - D, 0, -S % BLOCK))
    blocks = padded.unflatten(2, (-1, BLOCK))
    want = blocks.abs().amax(dim=(3, 4)) / 448
    assert torch.equal(scales.cpu(), want)
    assert torch.equal(values.cpu().float(), model.to_e4m3(blocks * (1 / want)[:, :, :, None, None]).flatten(2, 3)[:, :, :S])


@both
@pytest.mark.parametrize(("S", "D"), [(1, 8), (130, 64), (300, 128)])
def test_vs_columns_are_its_rows_in_key_order(S, D, quantise):
    x = draw(2, 3, S, D)
    rows, columns = quantise(x), quantise(x, as_columns=True)
    assert sorted(key_order(p) for p in range(16)) == list(range(16))
    assert torch.equal(rows.scales, columns.scales) and columns.values.shape[3] == -(-S // 16) * 16
    zeros, zero_scales = quantise(torch.zeros_like(x))
    assert not zeros.float().any() and (zero_scales > 0).all()
    padded = torch.nn.functional.pad(rows.values.float(), (0, 0, 0, -S % 16))
    assert torch.equal(columns.values.float(), padded[:, :, key_order(torch.arange(padded.shape[2]))].mT)


@pytest.mark.parametrize("D", [64, 128])
def test_the_rotation_is_orthogonal_and_leaves_exact_products_alone(D):
    rotation = random_hadamard(D, torch.float32, torch.device("cpu")).double()
    assert torch.equal(rotation @ rotation.T, D * torch.eye(D, dtype=torch.float64))
    q, k = (torch.randint(-3, 4, (50, D), generator=RANDOM).double() for _ in range(2))
    assert torch.equal((q @ rotation) @ (k @ rotation).T, D * (q @ k.T))


@both
@pytest.mark.parametrize("D", [40, 64])
def test_rotated_numbers_are_rotated(D, quantise):
    x = draw(1, 2, 130, D)
    want = -0.3 * x.double() @ random_hadamard(64, torch.float64, x.device)[:D] / 8
    assert rms(undone(quantise(x, factor=-0.3, rotate=True), 130) - want) <= 1.1 * ERROR * rms(want)


# ---------------------------------------------------------------- sums


def test_sums_of_ones_are_exact_up_to_2_to_the_14_and_then_stand_still():
    ones = torch.ones(1, 2**14 + 64, dtype=torch.float64)
    zero = torch.zeros(1, 1, dtype=torch.float64)
    assert model.tensor_core_sum(ones[:, : 2**14], ones[:, : 2**14], zero) == 2**14
    assert model.tensor_core_sum(ones, ones, zero) == 2**14


def test_the_model_gives_what_an_h200_gave():
    """Sums of positive numbers, and of p and v with a mean: the mean error is within 6 % of the measured one, and 1e-4."""
    h200 = results.load("h200")
    for kind, K, way in itertools.product(("uniform", "p v, mean 1"), (1024, 4096), ("chain", "blocks")):
        measured = chapter_14.row(h200, kernel="sums", data=kind, K=K, provider=way)["mean"]
        a, b = chapter_14.factors(kind, 8, K)
        length = BLOCK if way == "blocks" else K
        parts = zip(a.split(length, 1), b.split(length, 1), strict=True)
        found = sum(model.tensor_core_sum(x, y, torch.zeros(8, 8, dtype=torch.float64)) for x, y in parts)
        assert chapter_14.error_of(found, a @ b.T)["mean"] == pytest.approx(measured, rel=0.06, abs=1e-4)


@pytest.mark.parametrize("name", chapter_14.PROBES)
def test_the_model_cuts_and_aligns_as_the_h200_does(name):
    measured = chapter_14.row(results.load("h200"), kernel="probe", data=name)["sum"]
    assert model.tensor_core_sum(*chapter_14.probe(name, rows=1), torch.zeros(1, 1).double()).item() == measured


def test_the_stand_in_by_blocks_is_as_accurate_as_an_h200_and_one_chain_is_not():
    q, k, v = (x[:, :, :8192].to(DEVICE) for x in chapter_14.data("16,384 keys, v + 1", 1, 16_384, 64))
    q = q[:, :, :8]
    truth = reference.attention(q, k, v)[0].cpu()
    measured = chapter_14.row(results.load("h200"), kernel="error", provider="fp8", data="16,384 keys, v + 1", D=64)["mean"]
    ways = fp8.sums_in_float32, fp8.sums_by_blocks, fp8.sums_in_one_chain, fp8.sums_in_two_chains
    means = [chapter_14.error_of(o, truth)["mean"] for o in fp8.emulated(q, k, v, *ways)]
    assert means[1] < means[0] - 2e-4 and means[1] == pytest.approx(measured, abs=3e-4) and means[2] < -0.05, means
    assert means[3] > 0.01, "l loses more than acc"


# ---------------------------------------------------------------- attention

LENGTHS = [(1, 1), (1, 239), (128, 128), (113, 203), (203, 113), (130, 300), (300, 3)]


def attend(case: Case, rotate: bool = False, q_k_v=None):
    """flash_attention_fp8's o and lse; all of them is written and nothing around it, and q, k, v are as they were."""
    q, k, v = q_k_v or case.inputs()
    with unchanged(q, k, v), guarded_outputs():
        return flash_attention_fp8(q, k, v, is_causal=case.is_causal, scale=case.scale, rotate=rotate, return_lse=True)


def assert_close(o, lse, truth, truth_lse, bound: float, lse_bound: float | torch.Tensor) -> None:
    """o is off by at most `bound` of its root mean square; NaN never passes; rows that see nothing are 0 and −inf."""
    assert not o.isnan().any() and rms(o - truth) <= bound * rms(truth) + 1e-5, f"{rms(o - truth):.3g} of {rms(truth):.3g}"
    blind = truth_lse == -torch.inf
    assert not o[blind].any() and (lse[blind] == -torch.inf).all()
    assert ((lse - truth_lse).abs() <= lse_bound)[~blind].all()


def check(case: Case, rotate: bool = False) -> None:
    """Against float64 on the originals by (14.5), with room for a small sample; against that on its own quantised inputs by p's rounding alone."""
    q, k, v = case.inputs()
    o, lse = attend(case, rotate, (q, k, v))
    assert o.dtype == q.dtype and o.shape == q.shape and o.is_contiguous() and lse.shape == q.shape[:3]
    scale = case.D**-0.5 if case.scale is None else case.scale
    spread = max(rms(scale * q.double() @ reference.repeat_heads(k, q.shape[1]).double().mT), 1e-9)  # of s
    assert_close(
        o, lse, *reference.attention(q, k, v, case.is_causal, scale), 1.5 * ERROR * math.sqrt(2 + 2 * spread**2), 0.2 * spread + 0.02
    )
    q8, k8, v8 = fp8.quantised(q, k, v, scale, rotate)
    exact = [undone(q8, q.shape[2]) / math.log2(math.e), undone(k8, k.shape[2]), undone(v8, k.shape[2], as_columns=True)[..., : case.D]]
    exact[2] = torch.nn.functional.pad(exact[2], (0, exact[0].shape[3] - case.D))
    truth, truth_lse = reference.attention(*exact, case.is_causal, 1.0)
    assert_close(o, lse, truth[..., : case.D], truth_lse, 1.3 * ERROR, 0.04)


# A case, and whether q and k are rotated.
HARD = [(Case(S_q, S_k, B=1, is_causal=is_causal), S_q % 2 == 0) for S_q, S_k in LENGTHS for is_causal in (False, True)]
HARD += [(Case(70, 140, D=D, dtype=torch.bfloat16 if D % 16 else torch.float16), D % 16 == 0) for D in (8, 40, 64, 72, 128)]
HARD += [(Case(70, 150, H_q=H_q, H_k=H_k, is_causal=True), False) for H_q, H_k in ((6, 2), (4, 1))]
HARD += [(Case(37, 145, B=1, view=view), False) for view in ("four strides", "k and v expanded from one head", "storage offset of one")]
HARD += [(Case(70, 150, scale=scale, is_causal=True), False) for scale in (0.3, 0.0, -0.1)]
HARD += [(Case(70, 300, values=values), False) for values in ("equal keys", "growing maximum", "falling maximum")]


@pytest.mark.parametrize(("case", "rotate"), HARD, ids=str)
def test_hard_input(case, rotate):
    check(case, rotate)


def test_a_constant_v_comes_out_exact():
    """o is a mean, weighted by the p that were rounded: so l has to be their sum."""
    q, k, _ = Case(70, 300).data()
    o = flash_attention_fp8(q, k, torch.full_like(k, 7.0))
    torch.testing.assert_close(o, torch.full_like(q, 7.0), rtol=2e-3, atol=0)


@pytest.mark.parametrize(
    "shapes", [((2, 2, 0, 64), (2, 2, 5, 64)), ((0, 2, 3, 64), (0, 2, 5, 64)), ((2, 2, 3, 64), (2, 2, 0, 64))], ids=str
)
def test_nothing(shapes):
    q, k = (torch.zeros(shape, dtype=torch.float16, device=DEVICE) for shape in shapes)
    o, lse = flash_attention_fp8(q, k, k, return_lse=True)
    assert o.shape == q.shape and not o.any() and (lse == -torch.inf).all()


def test_an_outlier_column_costs_less_with_the_rotation():
    q, k, v = Case(200, 300).data()
    for x in (q, k):
        x[..., 5] *= 8
    truth, _ = reference.attention(q, k, v)
    plain, rotated = (rms(flash_attention_fp8(q, k, v, rotate=rotate) - truth) for rotate in (False, True))
    assert rotated < 0.8 * plain


def test_operator_and_autocast():
    q, k, v = Case(33, 40).data()
    want = flash_attention_fp8(q, k, v, return_lse=True)
    given = q, k, v, False, 0.125, True
    assert same(torch.ops.fa_tutorial.flash_attention_fp8(*given), want)
    torch.library.opcheck(torch.ops.fa_tutorial.flash_attention_fp8.default, given, test_utils=("test_schema", "test_faketensor"))
    with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
        assert flash_attention_fp8(q.float(), k.float(), v.float()).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda q, k, v: ((q.float(), k.float(), v.float()), {}), TypeError, "float16, bfloat16"),
        (lambda q, k, v: ((q[..., :60], k[..., :60], v[..., :60]), {}), ValueError, "multiple of 8"),
        (lambda *qkv: ([x.repeat(1, 1, 1, 3) for x in qkv], {}), ValueError, "1 to 128"),
        (lambda q, k, v: ((q, k, v[:, :, :3]), {}), ValueError, "one shape"),
        (lambda *qkv: (qkv, {"rotate": "yes"}), TypeError, "rotate"),
        (lambda q, k, v: ((q, k.requires_grad_(), v), {}), RuntimeError, "no gradient, and k requires one"),
    ],
)
def test_bad_input(change, error, words):
    qkv, options = change(*Case(9, 9).data())
    with pytest.raises(error, match=words):
        flash_attention_fp8(*qkv, **options)


# ---------------------------------------------------------------- on Hopper


@on_hopper
@causal
@pytest.mark.parametrize(("S_q", "S_k"), [*LENGTHS, (1030, 1030), (4096, 130), (130, 4096), (2500, 2500)])
@pytest.mark.parametrize("D", [64, 128])
def test_the_kernel_gives_what_the_model_gives(D, S_q, S_k, is_causal):
    q, k, v = Case(S_q, S_k, D=D, H_q=6, H_k=2).data()
    given = *fp8.quantised(q, k, v, D**-0.5, True), D, q.dtype, is_causal
    # Sums that are cut move some p to a neighbour, at most an eighth away: few keys don't average that.
    seen = (torch.arange(S_q, device=q.device) + 1 + S_k - S_q).clamp(max=S_k) if is_causal else torch.full((S_q,), S_k, device=q.device)
    lse_bound = torch.where(seen < 64, math.log(9 / 8), 0.03)
    for config in {forward.CONFIGS[D], forward.choose_config(D, S_q, is_causal)}:
        (o, lse), (want, want_lse) = forward.flash_forward(*given, config=config), model.flash_forward(*given)
        assert_close(o, lse, want.double(), want_lse.double(), 0.02, lse_bound)


@on_hopper
@causal
@pytest.mark.parametrize("D", [64, 128])
def test_1000_repeats_are_bit_equal(D, is_causal):
    q, k, v = Case(1000, 1000, D=D, H_q=24, H_k=8).data()
    first = flash_attention_fp8(q, k, v, is_causal=is_causal, return_lse=True)
    assert all(same(flash_attention_fp8(q, k, v, is_causal=is_causal, return_lse=True), first) for _ in range(1000))


@on_hopper
@pytest.mark.parametrize("D", [64, 128])
def test_a_mean_of_v_is_not_lost_over_16384_keys(D):
    """One chain of sums gives 0.187 here."""
    q, k, v = (draw(1, 2, 16_384, D) for _ in range(3))
    truth = torch.cat([reference.attention(q[:, h : h + 1], k[:, h : h + 1], v[:, h : h + 1] + 1)[0] for h in range(2)], dim=1)
    error = flash_attention_fp8(q, k, v + 1) - truth
    assert rms(error) <= 2e-3 and abs(float(error.double().mean())) <= 1.5e-3


@on_hopper
def test_nan_in_a_query_stays_in_its_row():
    q, k, v = Case(70, 150).data()
    q[0, 0, 3] = math.nan
    o = flash_attention_fp8(q, k, v)
    assert o[0, 0, 3].isnan().all() and int(o.isnan().any(dim=3).sum()) == 1


# ---------------------------------------------------------------- broken kernels

CAUSAL = Case(300, 450, is_causal=True, H_q=4, H_k=2)
LONG = Case(200, 1500, B=1)
MANY = Case(1000, 1000, B=2, H_q=24)
GROUPED = Case(300, 200, H_q=6, H_k=3)
# Name -> the function, its statement, what takes its place, and the case that has to fail.
MUTATIONS = {
    "forward_kernel": {
        "p is not ordered": ("fp8_operand", "p", "p", LONG),
        "l is not rescaled": ("next_block", "l", "l + half_of(new_l)", LONG),
        "acc is not rescaled": ("next_block", "acc", "rescaled(acc, gl.full_like(alpha, 1.0) * (v_scale / new_scale), new)", LONG),
        "v's scale does not change": ("next_block", "new_scale", "v_scale", LONG),
        "k's scale is the first block's": ("next_block", "scale_log2", "row_scale * gl.load(k_scales)", GROUPED),
        "another head's scales": ("consumer", "head_k", "0", GROUPED),
        "the diagonal is hidden": ("consumer", "seen 2", "gl.minimum(seen, offs_m + (sizes.S_k - sizes.S_q))", CAUSAL),
        "lse keeps 2⁸": ("epilogue", "lse", "gl.where(l == 0.0, -float('inf'), (m + gl.log2(l_or_one)) * LN_2)", LONG),
        "work tiles are left out": ("producer", "i 2", "next_work_tile(i, counter_ptr, flags.COUNTER) + 1", MANY),
    },
}  # fmt: skip


def check_kernel(case: Case) -> None:
    q, k, v = case.inputs()
    v.mul_(torch.linspace(0.1, 3, v.shape[2], device=v.device)[:, None])  # scales that differ
    k.mul_(torch.linspace(2, 0.1, k.shape[2], device=k.device)[:, None])  # and a maximum that grows: the last block comes first
    given = *fp8.quantised(q, k, v, 0.125, False), case.D, q.dtype, case.is_causal
    assert_close(*forward.flash_forward(*given), *(x.double() for x in model.flash_forward(*given)), 0.02, 0.03)


test_a_mistake_follows_the_kernel, test_a_mistake_is_caught, run_copy = mutation_tests_alone(
    __file__, MUTATIONS, {"forward_kernel": (forward, check_kernel)}, [CAUSAL, LONG, MANY, GROUPED]
)
if __name__ == "__main__":
    run_copy(*sys.argv[1:])
