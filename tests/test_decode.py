"""flash_decode and append_to_cache: exact for every length, split, page and dtype, wherever the memory is; mistakes are seen."""

import dataclasses
import itertools
import math

import pytest
import torch
from attention_cases import place
from buffers import DEVICE, ON_GPU, dtypes, far_apart, guarded_outputs, randn, same_bits, unchanged, vast_memory
from decode_cases import Decode, check, int32, raw
from mutants import mutation_tests
from variant_cases import dense

from fa_tutorial import decode, reference
from fa_tutorial.decode import FP8, append_to_cache, flash_decode, quantise_fp8
from fa_tutorial.hardware import card_of

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NaN is in the caches, and is what some broken kernels compute
SHARED_MEMORY = card_of(torch.empty(0, device=DEVICE)).shared_memory
TILE = decode.choose_config(8, 64, torch.float16, False, SHARED_MEMORY).block_n


@pytest.fixture(autouse=True)
def few_splits_at_once(monkeypatch):
    monkeypatch.setattr(decode, "SPLITS_AT_ONCE", 4)


# ---------------------------------------------------------------- what must be exact

RAGGED = (0, 1, TILE - 1, TILE, TILE + 1, 3 * TILE + 7)
FEW = (2 * TILE + 5, 3)
MANY = Decode((4 * TILE + 3,), splits=7, H_k=1, growing=True, scale=2.0)  # more than are combined at once
HARD = [Decode(RAGGED, S_q=S_q, group=group, H_k=1) for S_q, group in ((1, 1), (1, 8), (3, 3), (3, 8), (5, 1), (5, 8))]
HARD += [Decode(RAGGED, S_q=2, splits=splits, H_k=1) for splits in (1, 2, 7)]
HARD += [Decode(FEW, group=2, page=page) for page in (16, 32, 64, 256)]
HARD += [Decode(FEW, S_q=2, group=2, D=D, splits=2, H_k=1) for D in (1, 40, 256)]
HARD += [Decode(FEW, S_q=2, layout=layout) for layout in ("slice of fused", "padded rows", "(B, H, D, S)", "last stride 2")]
HARD += [Decode(FEW, scale=scale, splits=2, H_k=1) for scale in (-0.7, 0.0, 3.0)]
HARD += [Decode((5, 2), S_q=9, group=8, H_k=1), MANY]
HARD = [dataclasses.replace(case, dtype=dtype) for case, dtype in zip(HARD, itertools.cycle(decode.FLOAT_DTYPES), strict=False)]
if ON_GPU:
    HARD = [
        dataclasses.replace(case, dtype=dtype, page=page) for case in HARD for dtype in decode.FLOAT_DTYPES for page in {0, 16, case.page}
    ]
FP8_CASES = [Decode(FEW, group=3, D=40, fp8=True, page=page, dtype=dtype) for page, dtype in ((0, torch.float16), (16, torch.bfloat16))]


@pytest.mark.parametrize("case", [*HARD, *FP8_CASES], ids=str)
def test_hard_input(case):
    check(case)


WINDOWED = {"window": (TILE + 3, 0)}
OPTIONS = [
    (WINDOWED, Decode(RAGGED, S_q=3, group=2, H_k=1)),
    (WINDOWED, Decode((4 * TILE + 3, TILE), splits=3, page=16, dtype=torch.float32)),
    ({"window": (0, 0)}, Decode((2 * TILE, 5), H_k=1, dtype=torch.bfloat16)),
    ({"softcap": 3.0}, Decode(FEW, S_q=2, group=3, dtype=torch.float32, scale=2.0)),
    ({"slopes": 1}, Decode(FEW, S_q=3, group=3, splits=2)),
    ({"slopes": 2}, Decode(FEW, group=2, dtype=torch.float32)),
    ({"sinks": True}, Decode(RAGGED, S_q=2, group=3, splits=3, H_k=2, dtype=torch.float32)),
    ({"leftpad": (TILE + 1, 3, 7)}, Decode((2 * TILE, 9, 7), S_q=2, group=2, splits=2)),
    ({"leftpad": (0, 20)}, Decode(FEW, page=16, dtype=torch.float32)),
    ({"holes": 3}, Decode(FEW, S_q=2, group=2, splits=2, page=16, dtype=torch.float32)),
    (
        {"softcap": 5.0, "slopes": 1, "sinks": True, "leftpad": (9, 1), "holes": 5, **WINDOWED},
        Decode(FEW, S_q=3, group=4, D=40, fp8=True, page=16),
    ),
]


@pytest.mark.parametrize(("options", "case"), OPTIONS, ids=str)
def test_options_are_flash_attentions(options, case):
    """Each sequence by itself, without its padding, against the variants' definition in float64."""
    arguments, given = case.call()
    B, H_q = arguments[0].shape[:2]
    window, softcap = options.get("window"), options.get("softcap")
    slopes = randn(*(B, H_q)[-options["slopes"] :], seed=6).abs() / 4 if "slopes" in options else None
    sinks = randn(H_q, seed=7) if "sinks" in options else None
    leftpad = options.get("leftpad", (0,) * B)
    S_max = arguments[1].shape[2] * (given["block_table"].shape[1] if case.page else 1)
    allowed = torch.arange(S_max, device=DEVICE) % options.get("holes", 2) != 1
    with unchanged(*arguments), guarded_outputs():
        o, lse = flash_decode(
            *arguments, **given, attn_mask=allowed if "holes" in options else None, window=window, softcap=softcap, alibi_slopes=slopes, sinks=sinks, return_lse=True,
            cache_leftpad=int32(*leftpad) if "leftpad" in options else None,
        )  # fmt: skip
    q, k, v = case.data()
    if case.fp8:
        k, v = (x8.float() * scale[:, None, None] for x8, scale in map(quantise_fp8, (k, v)))
    for b, (first, length) in enumerate(zip(leftpad, case.lengths, strict=True)):

        def by_definition(dtype, b=b, first=first, length=length):
            x = q[b : b + 1], k[b : b + 1, :, first:length], v[b : b + 1, :, first:length]
            numbers = {"alibi_slopes": slopes if slopes is None or slopes.ndim == 1 else slopes[b : b + 1], "sinks": sinks}
            numbers = {name: None if value is None else value.to(dtype) for name, value in numbers.items()}
            keys = allowed[first:length] if "holes" in options else None
            return dense(*(y.to(dtype) for y in x), is_causal=True, scale=case.scale, window=window, softcap=softcap,
                         attn_mask=keys, **numbers)  # fmt: skip

        (truth, truth_lse), (plain, _) = by_definition(torch.float64), by_definition(case.dtype)
        reference.assert_accurate(o[b : b + 1], truth, plain.nan_to_num(0.0))
        reference.assert_lse_accurate(lse[b : b + 1], truth_lse, case.dtype)


def test_a_window_reads_no_other_keys_and_splits_those_that_it_reads(monkeypatch):
    """NaN in every key before the window's first tile changes nothing, and few keys are split into few parts."""
    (q, k, v, lengths), _ = Decode((6 * TILE, 6 * TILE), H_k=1).call()
    want = flash_decode(q, k, v, lengths, window=(TILE, 0))
    for x in (k, v):
        x[:, :, : 4 * TILE] = math.nan
    assert same_bits(flash_decode(q, k, v, lengths, window=(TILE, 0)), want).all()
    asked = []
    monkeypatch.setattr(decode, "choose_num_splits", lambda n, tiles, *_: asked.append(tiles) or 1)
    flash_decode(q, k, v, lengths, window=(TILE, 0))
    flash_decode(q, k, v, lengths)
    assert asked == [2, 7]


def test_lengths_tables_and_scales_may_be_views():
    (q, k, v, lengths), options = Decode(FEW, group=2, page=16, fp8=True).call()
    options = {name: options[name] for name in ("block_table", "k_scale", "v_scale")} | {"cache_seqlens": lengths}
    strided = {name: torch.stack([x, torch.full_like(x, -1)], dim=-1)[..., 0] for name, x in options.items()}
    assert torch.equal(flash_decode(q, k, v, **strided), flash_decode(q, k, v, **options))
    expanded = {name: options[name][:1].expand(2) for name in ("k_scale", "v_scale")}
    copies = {name: x.contiguous() for name, x in expanded.items()}
    assert torch.equal(flash_decode(q, k, v, **options | expanded), flash_decode(q, k, v, **options | copies))


@pytest.mark.parametrize("shape", [(0, 2, 1, 16), (2, 2, 0, 16), (2, 0, 1, 16)], ids=str)
def test_without_queries_nothing_is_launched(shape, monkeypatch):
    monkeypatch.setattr(decode, "decode", None)
    cache = torch.zeros(shape[0], shape[1], 8, 16, device=DEVICE)
    o, lse = flash_decode(torch.zeros(shape, device=DEVICE), cache, cache, int32(*[8] * shape[0]), return_lse=True)
    assert o.shape == shape and lse.shape == shape[:3]
    monkeypatch.undo()
    cache = torch.zeros(1, 1, 0, 16, device=DEVICE)
    o, lse = flash_decode(torch.ones(1, 1, 1, 16, device=DEVICE), cache, cache, int32(0), return_lse=True)
    assert (o == 0).all() and (lse == -math.inf).all(), "a cache without room"


# ---------------------------------------------------------------- splits


def test_splits_fill_whole_waves():
    """On an H200's 132 multiprocessors, 8 key heads, tiles of 64 keys: one sequence takes 32 splits, 64 take one; none is shorter than 4 tiles."""
    assert [decode.choose_num_splits(8 * B, 512, 132, 4) for B in (1, 8, 64)] == [32, 4, 1]
    assert [decode.choose_num_splits(8, tiles, 132, 4) for tiles in (0, 7, 8, 64)] == [1, 1, 2, 16]
    assert decode.choose_num_splits(8, 512, 1, 4) == 1, "the interpreter's"
    for D, dtype, block_n in ((64, torch.float16, 128), (128, FP8, 128), (256, torch.float32, 16)):
        assert decode.choose_config(8, D, dtype, False, 232_448).block_n == block_n, "16 KiB"
    assert [decode.choose_config(rows, 64, FP8, False, None).block_m for rows in (1, 16, 17, 500)] == [16, 16, 32, 64]


def test_no_split_is_empty():
    """79 tiles in 19 splits are 15 parts of 5 tiles, and one of 4: three splits would have no keys."""
    assert decode.choose_num_splits(8, 79, 132, 4) == 16
    for n, tiles in itertools.product((1, 8, 300), range(1, 200, 3)):
        splits = decode.choose_num_splits(n, tiles, 132, 4)
        assert -(-tiles // -(-tiles // splits)) == splits


def test_an_h200_has_room_for_the_programs_of_a_wave():
    """PROGRAMS_PER_SM of them, and no more: a program more would leave 64 sequences of 8 heads a second wave that is mostly empty."""
    shared = 2 * 128 * (64 * 2 * (decode.choose_config(8, 128, torch.float16, False, 232_448).num_stages - 1))  # of keys and values
    assert 233_472 // (shared + 1024) == decode.PROGRAMS_PER_SM
    assert decode.choose_config(64, 128, torch.float16, False, 232_448).num_warps == 4, "a wgmma's"


@pytest.mark.parametrize(("asked", "parts"), [(3, 3), (1, 1), (None, 2)])
def test_the_keys_are_split_as_asked_or_as_chosen(asked, parts, monkeypatch):
    """It doesn't show in the result."""
    launched = []
    kernel = decode.split_kernel
    monkeypatch.setattr(decode, "split_kernel", type("Grids", (), {"__getitem__": lambda _, grid: launched.append(grid) or kernel[grid]})())
    monkeypatch.setattr(decode, "choose_num_splits", lambda *_: 2)
    (q, k, v, lengths), _ = Decode((2 * TILE,), H_k=1).call()
    flash_decode(q, k, v, lengths, num_splits=asked)
    assert launched == [(1, parts)]


# ---------------------------------------------------------------- append


@pytest.mark.parametrize("page", [0, 16, 32])
@dtypes
def test_appended_tokens_stand_where_they_are_looked_for(dtype, page):
    """And nothing else changes. The third sequence has two new tokens, the fourth has none."""
    case = Decode((37, 20, 2, 0), D=24, dtype=dtype, page=page, layout="contiguous" if page else "padded rows")
    (_, k, v, lengths), options = case.call()
    _, k_all, v_all = case.data()
    want = [x.clone() for x in (k, v)]
    new = []
    for x, full in zip((k, v), (k_all, v_all), strict=True):
        x.copy_(torch.where(x.isnan(), x, 7.0))  # what stood there before
        news = torch.full((4, 2, 3, 24), 9.0, dtype=dtype, device=DEVICE)
        for b, length in enumerate(case.lengths):
            news[b, :, max(3 - length, 0) :] = full[b, :, max(length - 3, 0) : length]
        new.append(place(news, "(B, S, H, D)"))
    with unchanged(*new, lengths):
        append_to_cache(k, v, *new, lengths, block_table=options.get("block_table"))
    for x, whole in zip((k, v), want, strict=True):
        for b, length in enumerate(case.lengths):
            for n in range(length):
                where = (options["block_table"][b, n // page], slice(None), n % page) if page else (b, slice(None), n)
                assert torch.equal(x[where], whole[where] if n >= length - 3 else torch.full_like(x[where], 7.0))
        assert torch.equal(x.isnan(), whole.isnan())


def test_what_has_no_room_in_the_cache_is_not_written():
    """Nobody checks lengths on a GPU. The operator is given a cache of 16 tokens in memory for 20."""
    memory = torch.full((2, 1, 2, 20, 16), 7.0, device=DEVICE)
    k, v = memory[..., :16, :]
    news = torch.full((1, 2, 3, 16), 9.0, device=DEVICE)
    decode.append(k, v, news, news, int32(17), None)
    assert (memory[..., 14:16, :] == 9.0).all() and (memory[..., 16:, :] == 7.0).all()


@pytest.mark.parametrize("page", [0, 16])
def test_a_cache_in_fp8_grows_by_its_own_scales(page):
    case = Decode((70, 33), page=page, fp8=True)
    (q, k, v, lengths), options = case.call()
    want = flash_decode(q, k, v, lengths, **options)
    _, k_all, v_all = case.data()
    news = [torch.stack([x[b, :, n - 2 : n] for b, n in enumerate(case.lengths)]) for x in (k_all, v_all)]
    news = [quantise_fp8(x, options[name])[0] for x, name in zip(news, ("k_scale", "v_scale"), strict=True)]
    append_to_cache(k, v, *map(torch.zeros_like, news), lengths, block_table=options.get("block_table"))
    assert not torch.equal(flash_decode(q, k, v, lengths, **options), want)
    append_to_cache(k, v, *news, lengths, block_table=options.get("block_table"))
    assert torch.equal(flash_decode(q, k, v, lengths, **options), want), "the same numbers at the same places"


def test_a_number_in_fp8_is_off_by_a_sixteenth_at_most():
    x = randn(2, 3, 50, 8, seed=1) * torch.tensor([1e-3, 1.0, 1e3], device=DEVICE)[:, None, None]
    x8, scale = quantise_fp8(x)
    assert x8.dtype == FP8 and scale.shape == (3,)
    bound = torch.maximum(x.abs() / 16, scale[:, None, None] * 2.0**-10) * (1 + 1e-6)
    assert ((x8.float() * scale[:, None, None] - x).abs() <= bound).all()
    assert quantise_fp8(x, scale / 2)[0].float().abs().max() == 448, "what is beyond the given scale is cut off"
    x8, scale = quantise_fp8(torch.zeros(3, 1, 2, device=DEVICE))
    assert (raw(x8) == 0).all() and (scale > 0).all(), "no 0 / 0"
    x8, scale = quantise_fp8(torch.zeros(3, 0, 2, device=DEVICE))
    assert x8.shape == (3, 0, 2) and torch.equal(scale, torch.ones(3, device=DEVICE))


# ---------------------------------------------------------------- far offsets

FAR = {"batch or page": 0, "head": 1, "key": 2, "column": 3}


def far_case(axis: int, page: int):
    """Caches of 3 or more along `axis`, whose stride fits int32 and whose last offset does not."""
    case = Decode((16, 9, 12), H_k=3 if axis == 1 else 1, page=page)
    (q, k, v, lengths), options = case.call()
    memory, caches = vast_memory(), []
    for i, x in enumerate((k[:, :, :16], v[:, :, :16])):
        strides = list(x.contiguous().stride())
        strides[axis] = 2**31 // (x.shape[axis] - 1) + 16
        caches.append(far_apart(memory, x, strides, offset=16_384 * i))
        assert strides[axis] * (x.shape[axis] - 1) >= 2**31
    return case, (q, *caches, lengths), {"block_table": options.get("block_table")}


@pytest.mark.parametrize("page", [0, 16])
@pytest.mark.parametrize("axis", FAR.values(), ids=FAR)
def test_offsets_of_2_to_the_31_and_more(axis, page):
    case, inputs, options = far_case(axis, page)
    truth, _, plain = case.truth()
    reference.assert_accurate(flash_decode(*inputs, **options), truth, plain)


# ---------------------------------------------------------------- broken kernels

SPLIT = Decode(FEW, S_q=3, group=2, H_k=1, splits=2)
PAGED = dataclasses.replace(SPLIT, splits=1, page=16)
ONE = dataclasses.replace(SPLIT, splits=1, H_k=2)
SCALED = Decode((20, 3), fp8=True)
EMPTY = Decode((0, 40), splits=3, H_k=1)

# See mutants.mutation_tests.
MUTATIONS = {
    "split_kernel": {
        "new tokens see one another": ("split_kernel", "last_seen", "seqlen - 1 + 0 * offs_m", ONE),
        "the newest token is hidden": ("split_kernel", "last_seen", "seqlen - S_q - 1 + offs_m % S_q", ONE),
        "parts overlap": ("split_kernel", "part", "tl.cdiv(seqlen, splits)", SPLIT),
        "the rest of the tiles is dropped": ("split_kernel", "part", "tl.cdiv(seqlen, BLOCK_N) // splits * BLOCK_N", SPLIT),
        "parts lie on one another": ("split_kernel", "split_batch_head", "batch_head", SPLIT),
        "a part without keys is divided by 0": ("split_kernel", "l_or_one", "l", EMPTY),
        "k_scale is forgotten": ("split_kernel", "if scales.k is not None", "False", SCALED),
        "v_scale is forgotten": ("split_kernel", "if scales.v is not None", "False", SCALED),
        "what lies beyond the length is loaded": ("load_keys", "mask_n", "offs_n >= 0", ONE),
        "key head 0 for all": ("key_pointers", "head", "x.ptr", ONE),
        "pages in the order of memory": ("key_pointers", "page", "(offs_n // PAGE_SIZE).to(tl.int64)", PAGED),
        "rows by the key's number": ("key_pointers", "offsets 2", "page * x.strides[0] + offs_n.to(tl.int64) * x.strides[2]", PAGED),
    },
    "combine_kernel": {
        "parts are averaged": ("combine_kernel", "s", "tl.where(mask, 0.0, -float('inf'))", SPLIT),
        "combined acc is not rescaled": ("combine_kernel", "acc 2", "acc + tl.sum(p[:, :, None] * v_tile, axis=1)", MANY),
        "only the first parts": ("combine_kernel", "for start", "range(0, 1, BLOCK_S)", MANY),
        "an empty sequence is divided by 0": ("combine_kernel", "l_or_one", "l", EMPTY),
    },
}  # fmt: skip
test_copies_without_a_mistake_are_right, test_a_mistake_is_caught = mutation_tests(decode, MUTATIONS, check)
