"""flash_decode and append_to_cache: exact for every length, split, page and dtype; what must raise; mistakes that must be seen; a model that generates."""

import copy
import dataclasses
import functools
import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from attention_cases import copy_of, place
from buffers import DEVICE, ON_GPU, dtypes, far_apart, guarded_outputs, needs_gpu, randn, same_bits, unchanged, vast_memory
from mutants import put_in

from fa_tutorial import decode, flash_attention, reference
from fa_tutorial.bench import training
from fa_tutorial.decode import FP8, append_to_cache, flash_decode, quantise_fp8

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NaN is in the caches, and is what some broken kernels compute
TILE = decode.choose_config(8, 64, torch.float16, False, decode.card_of(torch.empty(0, device=DEVICE)).shared_memory).block_n


@pytest.fixture(autouse=True)
def few_splits_at_once(monkeypatch):
    monkeypatch.setattr(decode, "SPLITS_AT_ONCE", 4)


NAN_BYTE = 0x7F  # NaN in float8_e4m3fn


def int32(*values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


@dataclass(frozen=True)
class Decode:
    """One call. lengths: keys of each sequence; group: query heads of a key head; page: rows of a page, 0 for a cache without pages."""

    lengths: tuple[int, ...]
    S_q: int = 1
    group: int = 1
    H_k: int = 2
    D: int = 16
    dtype: torch.dtype = torch.float16
    page: int = 0
    splits: int | None = None
    scale: float | None = None
    layout: str = "contiguous"
    growing: bool = False
    fp8: bool = False

    def __str__(self) -> str:
        fields = [(field.name, getattr(self, field.name), field.default) for field in dataclasses.fields(self)]
        return ", ".join(f"{name} {value}" for name, value, default in fields if value != default)

    def data(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, and k and v as long as the longest sequence and 5 more; each next key of a growing case has a larger score."""
        B, S_max = len(self.lengths), max(self.lengths) + 5
        q = randn(B, self.H_k * self.group, self.S_q, self.D, dtype=self.dtype, seed=1)
        k, v = (randn(B, self.H_k, S_max, self.D, dtype=self.dtype, seed=seed) for seed in (2, 3))
        if self.growing:
            q.fill_(0).select(-1, 0).fill_(1)
            k.select(-1, 0).copy_(0.25 * torch.arange(S_max, device=DEVICE))
        return q, k, v

    def call(self) -> tuple[list[torch.Tensor], dict]:
        """The arguments of flash_decode. Beyond each length the caches hold NaN, and the block table pages that are not there."""
        q, k, v = self.data()
        lengths, options = int32(*self.lengths), {"scale": self.scale, "num_splits": self.splits}
        if self.fp8:
            k, options["k_scale"] = quantise_fp8(k)
            v, options["v_scale"] = quantise_fp8(v)
        if self.page:
            (k, v), options["block_table"] = self.paged(k, v)
        for x in () if self.page else (k, v):
            for b, length in enumerate(self.lengths):
                raw(x)[b, :, length:] = NAN_BYTE if self.fp8 else math.nan
        if not self.fp8:
            q, k, v = (place(x, self.layout) for x in (q, k, v))
        return [q, k, v, lengths], options

    def paged(self, k, v) -> tuple[list[torch.Tensor], torch.Tensor]:
        """k and v in shuffled pages among NaN, with three that nobody owns, and their block table, which has two entries more than are needed."""
        wanted = [-(-length // self.page) for length in self.lengths]
        order = iter(torch.randperm(sum(wanted) + 3, generator=torch.Generator().manual_seed(4)).tolist())
        table = torch.full((len(wanted), max(wanted) + 2), -1, dtype=torch.int32, device=DEVICE)
        pages = [torch.empty(sum(wanted) + 3, self.H_k, self.page, self.D, dtype=k.dtype, device=DEVICE) for _ in range(2)]
        for x in pages:
            raw(x).fill_(NAN_BYTE if self.fp8 else math.nan)
        for b, length in enumerate(self.lengths):
            for i, start in enumerate(range(0, length, self.page)):
                table[b, i] = page = next(order)
                for x, paged in zip((k, v), pages, strict=True):
                    raw(paged)[page, :, : min(self.page, length - start)] = raw(x)[b, :, start : min(start + self.page, length)]
        return pages, table

    def truth(self):
        """o and lse in float64, and o of unfused attention in q's dtype, of each sequence by itself."""
        q, k, v = self.data()
        if self.fp8:
            k, v = (x8.float() * scale[:, None, None] for x8, scale in map(quantise_fp8, (k, v)))
        parts = []
        for b, length in enumerate(self.lengths):
            wide = [x[b : b + 1, :, :length].to(k.dtype) for x in (k, v)]
            o, lse = reference.attention(q[b : b + 1].to(k.dtype), *wide, True, self.scale)
            narrow = [copy_of(x.to(q.dtype)) for x in (q[b : b + 1], *wide)]
            plain = reference.naive_attention(*narrow, True, self.scale)
            parts.append((o, lse, plain.where(torch.isfinite(plain), o.to(plain.dtype))))
        return [torch.cat(part) for part in zip(*parts, strict=True)]


def raw(x: torch.Tensor) -> torch.Tensor:
    """x, or the bytes of an fp8 tensor, which can be indexed and compared."""
    return x.view(torch.uint8) if x.dtype == FP8 else x


def check(case: Decode) -> torch.Tensor:
    """flash_decode is accurate on the case, writes all of its outputs and nothing else; returns o."""
    inputs, options = case.call()
    with unchanged(*inputs), guarded_outputs():
        o, lse = flash_decode(*inputs, **options, return_lse=True)
    truth, truth_lse, plain = case.truth()
    assert o.is_contiguous() and (o.dtype, o.shape, lse.dtype) == (case.dtype, inputs[0].shape, torch.float32)
    reference.assert_accurate(o, truth, plain)
    reference.assert_lse_accurate(lse, truth_lse, case.dtype)
    unseen = truth_lse == -math.inf
    assert bool((o[unseen] == 0).all())
    return o


# ---------------------------------------------------------------- what must be exact

RAGGED = (0, 1, TILE - 1, TILE, TILE + 1, 3 * TILE + 7)
FEW = (2 * TILE + 5, 3)
MANY = Decode((4 * TILE + 3,), splits=7, H_k=1, growing=True, scale=2.0)  # more than are combined at once
HARD = [Decode(RAGGED, S_q=S_q, group=group, H_k=1) for S_q, group in ((1, 1), (1, 8), (3, 3), (3, 8), (5, 1), (5, 8))]
HARD += [Decode(RAGGED, S_q=2, splits=splits, H_k=1) for splits in (1, 2, 7)]
HARD += [Decode(FEW, group=2, page=page) for page in (16, 32, 64, 256)]
HARD += [Decode(FEW, S_q=2, group=2, D=D, splits=2, H_k=1) for D in (1, 40, 80, 256)]
HARD += [Decode(FEW, S_q=2, layout=layout) for layout in ("(B, S, H, D)", "slice of fused", "padded rows", "(B, H, D, S)", "last stride 2")]
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


@pytest.mark.parametrize("page", [16, 64])
def test_pages_give_the_bits_of_a_cache_without(page):
    case = Decode((40, 33), S_q=3, group=2, layout="padded rows")
    assert same_bits(check(dataclasses.replace(case, page=page)), check(case)).all()


@dtypes
def test_one_token_is_flash_attentions(dtype):
    q, k, v = Decode((60, 60), group=3, dtype=dtype, H_k=1).data()
    o, lse = flash_decode(q, k, v, int32(65, 65), num_splits=2, return_lse=True)
    want, want_lse = flash_attention(q, k, v, return_lse=True)
    torch.testing.assert_close(o, want, rtol=0, atol=2 * torch.finfo(dtype).eps)
    torch.testing.assert_close(lse, want_lse)


def test_tokens_ahead_are_tokens_one_by_one():
    case = Decode((35, 40), S_q=3, dtype=torch.float32, H_k=1)
    (q, k, v, lengths), _ = case.call()
    ones = [flash_decode(q[:, :, t : t + 1], k, v, lengths - 2 + t) for t in range(3)]
    torch.testing.assert_close(flash_decode(q, k, v, lengths), torch.cat(ones, dim=2))


def test_lengths_and_tables_may_be_views():
    (q, k, v, lengths), options = Decode(FEW, page=16).call()
    table = torch.stack([options["block_table"], torch.full_like(options["block_table"], -1)], dim=-1)[..., 0]
    spread = torch.stack([lengths, torch.full_like(lengths, -1)], dim=-1)[:, 0]
    assert torch.equal(flash_decode(q, k, v, spread, block_table=table), flash_decode(q, k, v, lengths, block_table=options["block_table"]))


@pytest.mark.parametrize("shape", [(0, 2, 1, 16), (2, 2, 0, 16), (2, 0, 1, 16)], ids=str)
def test_without_queries_nothing_is_launched(shape, monkeypatch):
    monkeypatch.setattr(decode, "decode", None)
    cache = torch.zeros(shape[0], shape[1], 8, 16, device=DEVICE)
    o, lse = flash_decode(torch.zeros(shape, device=DEVICE), cache, cache, int32(*[8] * shape[0]), return_lse=True)
    assert o.shape == shape and lse.shape == shape[:3]


def test_a_cache_without_room_gives_zeros():
    cache = torch.zeros(1, 1, 0, 16, device=DEVICE)
    o, lse = flash_decode(torch.ones(1, 1, 1, 16, device=DEVICE), cache, cache, int32(0), return_lse=True)
    assert (o == 0).all() and (lse == -math.inf).all()


# ---------------------------------------------------------------- splits


def test_splits_fill_whole_waves():
    """On an H200's 132 multiprocessors, 8 key heads: one sequence takes 32 splits, 64 take one; a short cache, no split of less than 256 keys."""
    assert [decode.choose_num_splits(B, 8, 32_768, 132) for B in (1, 8, 64)] == [32, 4, 1]
    assert [decode.choose_num_splits(1, 8, S_max, 132) for S_max in (0, 255, 512, 4096)] == [1, 1, 2, 16]
    assert decode.choose_num_splits(1, 8, 32_768, 1) == 1, "the interpreter's"


def test_the_tile_holds_16_kib():
    for D, dtype, block_n in ((64, torch.float16, 128), (128, torch.float16, 64), (128, FP8, 128), (256, torch.float32, 16)):
        assert decode.choose_config(8, D, dtype, False, 232_448).block_n == block_n
    assert [decode.choose_config(rows, 64, FP8, False, None).block_m for rows in (1, 16, 17, 500)] == [16, 16, 32, 64]


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
    assert (raw(quantise_fp8(torch.zeros(1, 1, 2, 2))[0]) == 0).all(), "and no 0 / 0"
    assert quantise_fp8(x, scale / 2)[0].float().abs().max() == 448, "what is beyond the given scale is cut off"


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


IN_INT32 = {
    "batch": (0, 0, "key_pointers", "offsets 1", "b * x.strides[0] + offs_n.to(tl.int64) * x.strides[2]"),
    "page": (0, 16, "key_pointers", "page", "tl.load(entries, mask=mask_n, other=0)"),
    "head": (1, 0, "key_pointers", "head", "x.ptr + h_k * x.strides[1]"),
    "key": (2, 0, "key_pointers", "offsets 1", "b.to(tl.int64) * x.strides[0] + offs_n * x.strides[2]"),
    "row of a page": (2, 16, "key_pointers", "offsets 2", "page * x.strides[0] + offs_n % PAGE_SIZE * x.strides[2]"),
    "column": (3, 0, "load_keys", "offs_d", "tl.arange(0, BLOCK_D)[None, :]"),
}


@pytest.mark.parametrize("mutation", IN_INT32.values(), ids=IN_INT32)
def test_int32_offsets_are_caught(mutation, monkeypatch):
    axis, page, *change = mutation
    case, inputs, options = far_case(axis, page)
    put_in(monkeypatch, decode, "split_kernel", *change)
    truth, _, plain = case.truth()
    with pytest.raises(AssertionError):
        reference.assert_accurate(flash_decode(*inputs, **options), truth, plain)


# ---------------------------------------------------------------- broken kernels

SPLIT = Decode(FEW, S_q=3, group=2, H_k=1, splits=2)
PAGED = dataclasses.replace(SPLIT, splits=1, page=16)
ONE = dataclasses.replace(SPLIT, splits=1, H_k=2)
SCALED = Decode((20, 3), fp8=True)
EMPTY = Decode((0, 40), splits=3, H_k=1)

# Name -> the kernel, the function, its statement, what stands there instead (see mutants.py), and the case that has to fail.
MUTATIONS = {
    "new tokens see one another": ("split_kernel", "split_kernel", "last_seen", "seqlen - 1 + 0 * offs_m", ONE),
    "tokens are taken for heads": ("split_kernel", "split_kernel", "last_seen", "seqlen - S_q + offs_m // S_q", ONE),
    "the newest token is hidden": ("split_kernel", "split_kernel", "last_seen", "seqlen - S_q - 1 + offs_m % S_q", ONE),
    "parts overlap": ("split_kernel", "split_kernel", "part", "tl.cdiv(seqlen, splits)", SPLIT),
    "the rest of the tiles is dropped": ("split_kernel", "split_kernel", "part", "tl.cdiv(seqlen, BLOCK_N) // splits * BLOCK_N", SPLIT),
    "each part goes on to the end": ("split_kernel", "split_kernel", "start, end", "(split * part, seqlen)", SPLIT),
    "parts lie on one another": ("split_kernel", "split_kernel", "split_batch_head", "batch_head", SPLIT),
    "a part without keys is divided by 0": ("split_kernel", "split_kernel", "l_or_one", "l", EMPTY),
    "a part's lse in base 2": ("split_kernel", "split_kernel", "lse", "m + tl.log2(l_or_one)", SPLIT),
    "acc is not rescaled": ("split_kernel", "split_kernel", "acc 2", "dot(p.to(q_tile.dtype), v_tile.to(q_tile.dtype), acc)", ONE),
    "k_scale is forgotten": ("split_kernel", "split_kernel", "if k_scale_ptr is not None", "False", SCALED),
    "v_scale is forgotten": ("split_kernel", "split_kernel", "if v_scale_ptr is not None", "False", SCALED),
    "what lies beyond the length is loaded": ("split_kernel", "load_keys", "mask_n", "offs_n >= 0", ONE),
    "key head 0 for all": ("split_kernel", "key_pointers", "head", "x.ptr", ONE),
    "pages in the order of memory": ("split_kernel", "key_pointers", "page", "(offs_n // PAGE_SIZE).to(tl.int64)", PAGED),
    "the first sequence's pages": ("split_kernel", "key_pointers", "entries", "block_table.ptr + offs_n // PAGE_SIZE * block_table.strides[1]", PAGED),
    "rows by the key's number": ("split_kernel", "key_pointers", "offsets 2", "page * x.strides[0] + offs_n.to(tl.int64) * x.strides[2]", PAGED),
    "parts are averaged": ("combine_kernel", "combine_kernel", "s", "tl.where(mask, 0.0, -float('inf'))", SPLIT),
    "combined acc is not rescaled": ("combine_kernel", "combine_kernel", "acc 2", "acc + tl.sum(p[:, :, None] * v_tile, axis=1)", MANY),
    "only the first parts": ("combine_kernel", "combine_kernel", "for start", "range(0, 1, BLOCK_S)", MANY),
    "an empty sequence is divided by 0": ("combine_kernel", "combine_kernel", "l_or_one", "l", EMPTY),
}  # fmt: skip


@pytest.mark.parametrize("case", [SPLIT, PAGED, ONE, MANY, SCALED, EMPTY], ids=str)
def test_a_copy_without_a_mistake_is_right(case, monkeypatch):
    put_in(monkeypatch, decode, "split_kernel")
    put_in(monkeypatch, decode, "combine_kernel")
    check(case)


@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS)
def test_a_mistake_is_caught(mutation, monkeypatch):
    kernel, *change, case = mutation
    put_in(monkeypatch, decode, kernel, *change)
    with pytest.raises(AssertionError):
        check(case)


APPEND_MUTATIONS = {
    "lengths without the new tokens": ("offs_n", "tl.load(seqlens_ptr + b) + token"),
    "positions below 0 are written": ("mask_n", "(token < S_new) & (offs_n < S_max)"),
    "v is k": ("v_tile", "k_tile"),
}


@pytest.mark.parametrize("change", APPEND_MUTATIONS.values(), ids=APPEND_MUTATIONS)
def test_a_mistake_of_append_is_caught(change, monkeypatch):
    put_in(monkeypatch, decode, "append_kernel", "append_kernel", *change)
    with pytest.raises(AssertionError):
        test_appended_tokens_stand_where_they_are_looked_for(torch.float32, 0)


# ---------------------------------------------------------------- what must raise

Q, CACHE, PAGES = torch.ones(2, 4, 1, 8), torch.ones(2, 2, 32, 8), torch.ones(5, 2, 16, 8)
LENGTHS, TABLE = torch.tensor([3, 20], dtype=torch.int32), torch.tensor([[0, -1], [4, 2]], dtype=torch.int32)
CACHE_8, SCALE = CACHE.to(FP8), torch.ones(2)
GOOD = {"q": Q, "k_cache": CACHE, "v_cache": CACHE, "cache_seqlens": LENGTHS}
IN_FP8 = {"q": Q.half(), "k_cache": CACHE_8, "v_cache": CACHE_8, "k_scale": SCALE, "v_scale": SCALE}
IN_PAGES = {"k_cache": PAGES, "v_cache": PAGES, "block_table": TABLE}
# Name -> what is given instead; the error; words that its message must hold.
BAD_INPUTS = {
    "q of float64": ({"q": Q.double()}, TypeError, ["q", "float64", "float16, bfloat16, float32"]),
    "q of 3 dimensions": ({"q": Q[0]}, ValueError, ["q", "4 dimensions", "(4, 1, 8)"]),
    "a cache of another dtype": ({"k_cache": CACHE.half()}, TypeError, ["k_cache", "float16", "allowed: float32"]),
    "fp8 beside float32": (IN_FP8 | {"q": Q}, TypeError, ["k_cache", "float8_e4m3fn", "allowed: float32"]),
    "caches of two dtypes": (IN_FP8 | {"v_cache": CACHE.half()}, TypeError, ["k_cache: float8_e4m3fn", "v_cache: float16"]),
    "caches of two shapes": ({"v_cache": CACHE[:, :, :8]}, ValueError, ["(2, 2, 32, 8)", "(2, 2, 8, 8)"]),
    "another head dimension": ({"q": Q[..., :4]}, ValueError, ["q (2, 4, 1, 4)", "k_cache (2, 2, 32, 8)"]),
    "D of 257": ({"k_cache": torch.ones(2, 2, 1, 257), "v_cache": torch.ones(2, 2, 1, 257)}, ValueError, ["1 to 256", "257"]),
    "query heads not a multiple": ({"q": Q[:, :3]}, ValueError, ["3 query heads", "2 key heads"]),
    "lengths of int64": ({"cache_seqlens": LENGTHS.long()}, TypeError, ["cache_seqlens", "int64", "int32"]),
    "one length": ({"cache_seqlens": LENGTHS[:1]}, ValueError, ["1 cache_seqlens", "(2, 2, 32, 8)"]),
    "another batch": ({"q": Q[:1]}, ValueError, ["q (1, 4, 1, 8)", "2 cache_seqlens"]),
    "a list of lengths": ({"cache_seqlens": [3, 20]}, TypeError, ["cache_seqlens", "list", "torch.Tensor"]),
    "a length beyond the cache": ({"cache_seqlens": LENGTHS + 13}, ValueError, ["0 to 32", "got 33", "sequence 1"]),
    "a length below 0": ({"cache_seqlens": LENGTHS - 4}, ValueError, ["0 to 32", "got -1", "sequence 0"]),
    "a length beyond the table": (IN_PAGES | {"cache_seqlens": LENGTHS + 30}, ValueError, ["0 to 32", "got 33"]),
    "a page that is not there": (IN_PAGES | {"block_table": TABLE + 1}, ValueError, ["pages 0 to 4", "got [5]", "sequence 1"]),
    "a page below 0": (IN_PAGES | {"cache_seqlens": LENGTHS + 17 - LENGTHS}, ValueError, ["pages 0 to 4", "got [-1]", "sequence 0"]),
    "a table of int64": (IN_PAGES | {"block_table": TABLE.long()}, TypeError, ["block_table", "int64", "int32"]),
    "a table of one dimension": (IN_PAGES | {"block_table": TABLE[0]}, ValueError, ["block_table", "2 dimensions", "(2,)"]),
    "a table of another batch": (IN_PAGES | {"block_table": TABLE[:1]}, ValueError, ["block_table", "(2, pages)", "(1, 2)"]),
    "pages of 24": (
        IN_PAGES | dict.fromkeys(("k_cache", "v_cache"), torch.ones(5, 2, 24, 8)),
        ValueError,
        ["page size", "power of two", "24"],
    ),
    "pages of 8": (IN_PAGES | dict.fromkeys(("k_cache", "v_cache"), PAGES[:, :, :8]), ValueError, ["page size", "at least 16", "8"]),
    "fp8 without scales": (IN_FP8 | {"v_scale": None}, TypeError, ["v_scale", "NoneType", "torch.Tensor"]),
    "a scale for each query head": (IN_FP8 | {"k_scale": torch.ones(4)}, ValueError, ["k_scale", "(2,)", "(4,)"]),
    "scales without fp8": ({"k_scale": SCALE}, ValueError, ["k_scale", "float8_e4m3fn", "float32"]),
    "two devices": ({"cache_seqlens": LENGTHS.to("meta")}, ValueError, ["one device", "cache_seqlens: meta"]),
    "q elsewhere": ({"q": Q.to("meta")}, ValueError, ["one device", "q: meta"]),
    "no split": ({"num_splits": 0}, ValueError, ["num_splits", "at least 1", "got 0"]),
    "half a split": ({"num_splits": 1.5}, TypeError, ["num_splits", "integer", "1.5"]),
    "too many splits": ({"num_splits": 65_536}, ValueError, ["num_splits", "65535", "65536"]),
    "scale NaN": ({"scale": math.nan}, ValueError, ["scale", "finite", "nan"]),
    "a gradient": ({"q": Q.clone().requires_grad_()}, RuntimeError, ["no gradient", "q", "torch.no_grad()", "flash_attention"]),
}


@pytest.mark.parametrize(("given", "error", "words"), BAD_INPUTS.values(), ids=BAD_INPUTS)
def test_bad_input(given, error, words):
    """On the CPU, which looks at lengths and pages too."""
    if ON_GPU and any(word.startswith(("0 to", "pages 0")) for word in words):
        pytest.skip("on a GPU values are not looked at")
    given = {name: to_device(value) for name, value in (GOOD | given).items()}
    with pytest.raises(error) as caught:
        flash_decode(**given)
    assert all(word in str(caught.value) for word in words), caught.value


def to_device(value):
    return value.to(DEVICE) if isinstance(value, torch.Tensor) and value.device.type != "meta" else value


BAD_NEWS = {
    "another dtype": (CACHE.half(), TypeError, ["k_new", "float16", "float32"]),
    "another batch": (CACHE[:1], ValueError, ["(2, 2, 32, 8)", "(1, 2, 32, 8)"]),
    "another number of heads": (CACHE[:, :1], ValueError, ["(2, 2, 32, 8)", "(2, 1, 32, 8)"]),
    "a gradient": (CACHE.clone().requires_grad_(), RuntimeError, ["no gradient", "k_new"]),
}


@pytest.mark.parametrize(("new", "error", "words"), BAD_NEWS.values(), ids=BAD_NEWS)
def test_bad_news(new, error, words):
    new = new.to(DEVICE)
    with pytest.raises(error) as caught:
        append_to_cache(*(to_device(x).clone() for x in (CACHE, CACHE)), new, new, to_device(LENGTHS))
    assert all(word in str(caught.value) for word in words), caught.value


def test_gradients_are_refused_only_where_they_are_asked_for():
    q = to_device(Q).clone().requires_grad_()
    with torch.no_grad():
        flash_decode(q, *map(to_device, (CACHE, CACHE, LENGTHS)))


def test_a_cpu_tensor_where_the_interpreter_is_off(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    with pytest.raises(RuntimeError, match=r"q is on cpu.*TRITON_INTERPRET=1"):
        flash_decode(Q, CACHE, CACHE, LENGTHS)


# ---------------------------------------------------------------- as operators of PyTorch's


def test_opcheck():
    (q, k, v, lengths), options = Decode((20,), page=16, H_k=1).call()
    torch.library.opcheck(torch.ops.fa_tutorial.flash_decode.default, (q, k, v, lengths, options["block_table"], None, None, 0.25, 1))
    new = torch.zeros(1, 1, 1, 16, dtype=q.dtype, device=DEVICE)
    k, v = torch.zeros_like(k), torch.zeros_like(v)
    torch.library.opcheck(torch.ops.fa_tutorial.append_to_cache.default, (k, v, new, new, lengths, options["block_table"]))


def step(q, k, v, new, lengths, table):
    """What a model's layer does for each token."""
    append_to_cache(k, v, new, 2 * new, lengths, block_table=table)
    return flash_decode(q.sin(), k, v, lengths, block_table=table, num_splits=2) + 1


def step_inputs():
    (q, k, v, lengths), options = Decode((20, 3), page=16).call()
    return q, k, v, randn(2, 2, 1, 16, dtype=q.dtype, seed=5), lengths, options["block_table"]


@pytest.mark.parametrize("backend", ["aot_eager", *(["inductor"] if ON_GPU else [])])
def test_torch_compile_equals_eager(backend):
    torch._dynamo.reset()
    got, want = step_inputs(), step_inputs()
    compiled = torch.compile(step, fullgraph=True, backend=backend)
    torch.testing.assert_close(compiled(*got), step(*want))
    assert all(same_bits(x, y).all() for x, y in zip(got[1:3], want[1:3], strict=True)), "the caches too"


def test_meta_tensors():
    q, k, v, lengths = (x.to("meta") for x in Decode((20, 3)).call()[0])
    o, lse = flash_decode(q, k, v, lengths, return_lse=True)
    assert (o.shape, o.dtype, lse.shape) == (q.shape, q.dtype, q.shape[:3])


@needs_gpu
def test_a_cuda_graph_follows_the_lengths_and_nothing_waits_for_the_gpu():
    q, k, v, new, lengths, table = step_inputs()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step(q, k, v, new, lengths, table)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.cuda.graph(graph):
            got = step(q, k, v, new, lengths, table)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for _ in range(2):
        lengths -= 1
        graph.replay()
        assert torch.equal(got, step(q, k, v, new, lengths, table))


# ---------------------------------------------------------------- a model that generates


def test_pages_go_round():
    cache = decode.PagedCache(1, num_pages=5, H_k=1, page_size=16, D=16, B=2, S_max=64, dtype=torch.float32, device=DEVICE)
    cache.grow(0, 33)
    cache.grow(1, 16)
    assert [len(pages) for pages in cache.pages] == [3, 1] and cache.cache_seqlens.tolist() == [33, 16]
    cache.grow(0, 15)
    assert len(cache.pages[0]) == 3, "its last page had room"
    with pytest.raises(MemoryError, match=r"sequence 1 needs 2 more pages, 1 of 5 are free"):
        cache.grow(1, 17)
    with pytest.raises(ValueError, match=r"at most 4 pages of 16 tokens, 65 do not fit"):
        cache.grow(0, 17)
    cache.release(0)
    cache.grow(1, 17)
    assert cache.lengths == [0, 33] and cache.cache_seqlens.tolist() == [0, 33]
    held = cache.pages[1]
    assert cache.block_table[1, :3].tolist() == held and sorted(held + cache.free) == list(range(5))


@torch.no_grad()
def test_a_model_generates_the_same_tokens_through_the_paged_cache():
    """The chapters' small transformer, two prompts at once, a token at a time after the first step."""
    torch.manual_seed(0)
    setup = training.SMALL
    model = training.TinyTransformer(setup, functools.partial(reference.naive_attention, is_causal=True)).to(DEVICE)
    for parameter in model.parameters():
        parameter.mul_(3)  # so that the tokens differ
    D = setup.width // setup.heads
    cache = decode.PagedCache(setup.layers, 6, setup.heads, 16, D, 2, 40, torch.float32, DEVICE)
    cached = copy.deepcopy(model)
    for layer, block in enumerate(cached.blocks):
        block.attention = functools.partial(cache.attend, layer)

    tokens = torch.randint(setup.vocabulary, (2, 13), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    new, start = tokens, 0
    for _ in range(6):
        for b in range(2):
            cache.grow(b, new.shape[1])
        logits, want = cached(new, start)[:, -1], model(tokens)[:, -1]
        torch.testing.assert_close(logits, want, rtol=1e-4, atol=1e-4)
        new, start = logits.argmax(dim=-1, keepdim=True), tokens.shape[1]
        assert torch.equal(new, want.argmax(dim=-1, keepdim=True))
        tokens = torch.cat([tokens, new], dim=1)
    assert len(tokens[:, 13:].unique()) > 2 and cache.lengths == [18, 18]
