"""Chapter 10's variants against their definition: dense scores and a dense mask in float64."""

import bisect
import dataclasses
import functools
import itertools
import math
import types

import pytest
import torch
from attention_cases import same
from buffers import DEVICE, assert_refused, guarded_outputs, needs_gpu, randn, unchanged
from mutants import put_in
from variant_cases import VariantCase, assert_like_dense, call, check, dense, differentiate, double, seen

from fa_tutorial import attention, attention_with, flash_attention, flash_attention_varlen, hardware
from fa_tutorial.variants import attention as variants
from fa_tutorial.variants import backward, forward, make_block_mask, mods, packed, tile_lists
from fa_tutorial.variants.options import check_mask

triton = hardware.require_triton("These tests")
import triton.language as tl  # noqa: E402, F401, where Triton's interpreter looks for it

HALF, BRAIN, SINGLE = torch.float16, torch.bfloat16, torch.float32
autocast = torch.autocast(DEVICE.type, dtype=BRAIN)
# A packed sequence without queries, one without keys, one of length 1, and two of several tiles.
LENGTHS_Q, LENGTHS_K = (0, 1, 33, 7, 20), (5, 1, 20, 0, 36)
WINDOW = VariantCase(37, 250, is_causal=True, window=(100, -1), dlse=True)  # with every tile size some tiles are skipped, and several not
EVERYTHING = VariantCase(
    40, 45, D=64, is_causal=True, window=(30, -1), softcap=3.0, alibi="heads", attn_mask=(2, 40, 45), sinks=True, dlse=True
)
BLIND_BUT_FOR_SINKS = VariantCase(40, 33, dtype=SINGLE, sinks=True, is_causal=True, dlse=True)
SOFTCAP = VariantCase(32, 40, dtype=SINGLE, softcap=2.0)
WIDE_SOFTCAP = VariantCase(32, 40, dtype=SINGLE, softcap=1000.0)  # which changes little, and must not add an error
ADDED = VariantCase(20, 33, B=2, alibi="batch", attn_mask=(2, 1, 20, 33), H_k=2)
# A mask's shape, which broadcasts to (2, 2, 20, 40).
MASKS = [((2, 1, 1, 40), HALF, True), ((2, 1, 1, 40), SINGLE, False), ((2, 2, 20, 40), HALF, False), ((1, 2, 20, 1), SINGLE, True),
         ((20, 40), BRAIN, True), ((40,), SINGLE, False), ((2, 1, 20, 40), SINGLE, True)]  # fmt: skip
CASES = [
    WINDOW,
    EVERYTHING,
    BLIND_BUT_FOR_SINKS,
    SOFTCAP,
    WIDE_SOFTCAP,
    ADDED,
    VariantCase(50, 37, D=40, dtype=SINGLE, window=(9, 5)),  # rows that see nothing
    VariantCase(33, 33, dtype=BRAIN, softcap=2.0, view="slices of fused qkv"),
    VariantCase(37, 45, H_k=2, alibi="heads", is_causal=True, view="padded row stride"),
    *(
        VariantCase(20, 40, B=2, dtype=dtype, is_causal=causal, **{kind: shape})
        for kind in ("attn_mask", "mask_seen")
        for shape, dtype, causal in MASKS
    ),
    VariantCase(1, 67, D=1, dtype=SINGLE, window=(40, 0), sinks=True),
    VariantCase(20, 24, D=256, dtype=BRAIN, window=(5, 3), softcap=1.5),
    VariantCase(20, 40, dtype=SINGLE, window=(10, 0), scale=-0.4),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_variant(case):
    check(case)


@pytest.mark.parametrize("is_causal", [False, True])
def test_masks_as_pytorchs(is_causal):
    """Booleans, the same as −inf and 0, and SDPA with both masks in one; left-padded rows see nothing, and have no gradient."""
    q, k, v = (randn(2, 1, 37, 24, dtype=SINGLE, seed=seed) for seed in range(3))
    first = torch.tensor([0, 21], device=q.device)
    keys = torch.arange(37, device=q.device) >= first[:, None]
    both = keys[:, None, None, :] & (torch.ones(37, 37, dtype=torch.bool, device=q.device).tril() if is_causal else True)
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=both)
    blind = ~both.any(-1, keepdim=True)  # where SDPA gives NaN, or a mean, by its version
    leaves = [x.requires_grad_() for x in (q, k, v)]
    results = []
    for mask in (keys[:, None, None, :], torch.zeros(2, 1, 1, 37, device=q.device).masked_fill(~keys[:, None, None, :], -torch.inf)):
        o, lse = flash_attention(*leaves, is_causal=is_causal, attn_mask=mask, return_lse=True)
        torch.testing.assert_close(o, want.masked_fill(blind, 0.0), rtol=1e-5, atol=1e-5)
        assert torch.equal(lse == -torch.inf, blind.expand(2, 1, 37, 1)[..., 0])
        results.append((o, *torch.autograd.grad(o.sin().sum(), leaves)))
    for by_booleans, by_numbers in zip(*results, strict=True):
        torch.testing.assert_close(by_booleans, by_numbers, rtol=1e-5, atol=1e-6)
        assert by_booleans.isfinite().all()


@pytest.mark.skipif(not hardware.interpreter_on(), reason="a compiled mod can't be listened to")
def test_a_mod_is_asked_of_pairs_inside_the_sequences_only(monkeypatch):
    asked = []

    def listener(s, b, h, i, j, aux):
        asked.append((int(i.handle.data.max()), int(j.handle.data.max())))
        return s

    monkeypatch.setattr(variants, "all_scores", listener)
    q = randn(1, 1, 45, 16, dtype=SINGLE).requires_grad_()
    flash_attention(q, q, q, is_causal=True, softcap=5.0).sum().backward()
    assert max(i for i, _ in asked) == max(j for _, j in asked) == 44


@pytest.mark.parametrize("of_keys", [False, True])
@pytest.mark.parametrize(("left", "right"), [(-1, -1), (-1, 0), (3, 9)])
def test_a_mask_of_keys_leaves_the_same_tiles_as_its_pairs_do(left, right, of_keys):
    """Asked by keys and corners, or pair by pair; only a tile of which the one shows some keys and the other others may be listed too."""
    q, k = torch.empty(2, 2, 70, 16, device=DEVICE), torch.empty(2, 2, 90, 16, device=DEVICE)
    keys = randn(2, 1, 1, 90, dtype=SINGLE, seed=3) > 0.5
    keys[0, ..., 32:64], keys[0, ..., 80:], keys[1, ..., 16:48] = True, True, False
    chosen = variants.Options(None, None, check_mask(keys, q, k), None, None, None, left, right, None, 0.0, 0.25)
    _, _, block_mask = variants.plan(q, k, chosen)
    assert block_mask.keys_alone
    by_keys = lists_of(block_mask.make(16, 16, of_keys))
    by_pairs = lists_of(dataclasses.replace(block_mask, keys_alone=False).make(16, 16, of_keys))
    for (mixed, whole), (wanted, wanted_whole) in zip(by_keys, by_pairs, strict=True):
        assert whole == wanted_whole and set(mixed) >= set(wanted)
    assert sum(len(mixed) for mixed, _ in by_keys) <= 1.2 * sum(len(mixed) for mixed, _ in by_pairs)


@pytest.mark.parametrize(("H", "S_q", "S_k"), [(4, 5, 0), (4, 0, 5), (4, 0, 0), (0, 5, 5)])
def test_without_keys_queries_or_heads_nothing_is_launched(H, S_q, S_k, monkeypatch):
    monkeypatch.setattr(variants, "plan", None)
    q, k = randn(2, H, S_q, 16), randn(2, H // 2, S_k, 16)
    sinks = randn(H)
    o, lse, gradients = differentiate(call, (q, k, k), {"sinks": sinks, "attn_mask": randn(1, H, S_q, S_k)}, torch.ones_like(q))
    assert (o == 0).all() and torch.equal(lse, sinks[None, :, None].expand(2, H, S_q))
    assert all((x == 0).all() for x in gradients.values())
    q, k = q.half(), k.half()
    for o, lse in (call(q, k, k, window=(3, 3)), attention_with(q, k, k, return_lse=True)):
        assert (o == 0).all() and (lse == -math.inf).all() and (o.dtype, lse.dtype) == (HALF, SINGLE)


@pytest.mark.parametrize(("window", "is_causal"), [(None, True), ((-1, -1), False), ((-1, 0), False), ((-1, 7), True)], ids=str)
def test_where_no_variant_is_asked_for_none_runs(window, is_causal, monkeypatch):
    """The causal mask may be given as a window."""
    q, k = randn(1, 1, 5, 16), randn(1, 1, 8, 16)
    want = flash_attention(q, k, k, is_causal=is_causal or window == (-1, 0))
    assert same(flash_attention(q, k, k, window=(2**70, 1)), flash_attention(q, k, k, window=(8, 1))), "any integer"
    monkeypatch.setattr(attention, "VARIANT", None)
    assert same(flash_attention(q, k, k, is_causal=is_causal, window=window, dropout_p=0.0), want)


# ---------------------------------------------------------------- packed rows


def packed_rows(dtype=SINGLE):
    q, do = (randn(sum(LENGTHS_Q), 2, 24, dtype=dtype, seed=i) for i in (1, 4))
    k, v = (randn(sum(LENGTHS_K), 1, 24, dtype=dtype, seed=i) for i in (2, 3))
    cu = (torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=DEVICE) for lengths in (LENGTHS_Q, LENGTHS_K))
    return (q, k, v), do, *cu


@pytest.mark.parametrize(
    ("options", "dtype"),
    [({}, HALF), ({"is_causal": True, "window": (9, -1), "softcap": 2.0, "sinks": True, "alibi_slopes": True}, SINGLE)],
)
def test_packed_rows_equal_each_sequence_by_itself(options, dtype):
    tensors, do, cu_q, cu_k = packed_rows(dtype=dtype)
    options = options | {name: randn(2, seed=6).abs() for name in ("sinks", "alibi_slopes") if name in options}

    def attend(q, k, v, **options):
        return flash_attention_varlen(q, k, v, cu_q, cu_k, max(LENGTHS_Q), max(LENGTHS_K), return_lse=True, **options)

    with unchanged(*tensors, do, cu_q, cu_k):
        o, lse, gradients = differentiate(attend, tensors, options, do)
    assert (o.shape, lse.shape) == (do.shape, (2, do.shape[0])) and o.is_contiguous()
    plain = {name: x for name, x in options.items() if name != "sinks"}
    dsinks = 0
    for s in range(len(LENGTHS_Q)):
        rows, keys = slice(cu_q[s], cu_q[s + 1]), slice(cu_k[s], cu_k[s + 1])
        one = [x[part].transpose(0, 1)[None] for x, part in zip((*tensors, do), (rows, keys, keys, rows), strict=True)]
        own = {name: gradients[name][part].transpose(0, 1)[None] for name, part in (("dq", rows), ("dk", keys), ("dv", keys))}
        if LENGTHS_Q[s] == 0 or LENGTHS_K[s] == 0:
            assert all((x == 0).all() for x in own.values())
            continue
        got = o[rows].transpose(0, 1)[None], lse[:, rows][None], own
        assert_like_dense(got, one[:3], options | plain, one[3])
        if "sinks" in options:
            dsinks += differentiate(dense, [x.double() for x in one[:3]], double(options), one[3])[2]["sinks"]
    if "sinks" in options:
        torch.testing.assert_close(gradients["sinks"].double(), dsinks, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("ends", [[3], [0, 3], [2, 2, 2, 5], list(range(1, 18)), [0, 0, 0]], ids=str)
def test_a_tokens_sequence_is_found(ends):
    """Also a token's after the last end, which a wrong cu_seqlens makes: it gets the last."""
    cu = torch.tensor([0, *ends], dtype=torch.int32, device=DEVICE)
    mask = packed.packed_block_mask(cu, cu, ends[-1] + 2, ends[-1] + 2, None, None)
    want = [min(bisect.bisect_right(ends, token), len(ends) - 1) for token in range(ends[-1] + 2)]
    assert mask.aux.first.tolist() == [[0, *ends][s] for s in want] and mask.aux.end.tolist() == [ends[s] for s in want]


# ---------------------------------------------------------------- lists of tiles


def lists_of(tiles) -> list[tuple[list[int], list[int]]]:
    """Each block's mixed tiles and whole tiles, in the order of the tiles."""
    rows = tiles.index.reshape(-1, tiles.across).tolist()
    mixed, whole = tiles.count.reshape(2, -1).tolist()
    return [(row[:m], row[::-1][:w]) for row, m, w in zip(rows, mixed, whole, strict=True)]


@pytest.mark.parametrize("of_keys", [False, True])
@pytest.mark.parametrize(("S_q", "S_k", "left", "right"), [(64, 96, None, 0), (70, 50, 20, 0), (33, 90, 3, 40), (50, 64, None, None)])
def test_only_tiles_that_somebody_sees_are_in_the_lists(S_q, S_k, left, right, of_keys):
    """And those that are seen whole are in the list without a mask."""
    mask = seen(S_q, S_k, False, tuple(-1 if limit is None else limit for limit in (left, right)))
    block_mask = variants.window_block_mask.__wrapped__(left, right, S_q, S_k, torch.device(DEVICE))
    m, n = 16, 32
    tiles = {}
    for row, column in itertools.product(range(math.ceil(S_q / m)), range(math.ceil(S_k / n))):
        pairs = int(mask[row * m : (row + 1) * m, column * n : (column + 1) * n].sum())
        block, tile = (column, row) if of_keys else (row, column)
        mixed, whole = tiles.setdefault(block, ([], []))
        if pairs:
            (whole if pairs == m * n else mixed).append(tile)
    found = lists_of(block_mask.tiles(m, n, of_keys))
    assert found == [tiles[block] for block in sorted(tiles)]


def test_packed_rows_find_the_same_tiles_in_ranges_as_in_all():
    _, _, cu_q, cu_k = packed_rows()
    mask = packed.packed_block_mask(cu_q, cu_k, sum(LENGTHS_Q), sum(LENGTHS_K), None, 0)
    for of_keys in (False, True):
        assert lists_of(mask.tiles(16, 16, of_keys)) == lists_of(dataclasses.replace(mask, range=None).make(16, 16, of_keys))


PREFIX = torch.tensor([5, 45], dtype=torch.int32)
DOCUMENTS = torch.arange(40, dtype=torch.int32) // 15, torch.arange(50, dtype=torch.int32) // 20
CAUSAL = torch.arange(50) <= torch.arange(40)[:, None]
READY = {
    "prefix_lm": (
        (PREFIX, 10),
        (torch.arange(50) < PREFIX[:, None, None, None]) | CAUSAL.roll(10, 1).index_fill(1, torch.arange(10), True),
    ),
    "document_mask": (DOCUMENTS, DOCUMENTS[0][:, None] == DOCUMENTS[1]),
    "causal_documents": ((DOCUMENTS[0] * 15,), (DOCUMENTS[0] * 15)[:, None].le(torch.arange(50)) & CAUSAL),
}


@pytest.mark.parametrize("name", READY)
def test_ready_mask(name):
    """With a block mask that is made once."""
    aux, mask = READY[name]
    aux = tuple(x.to(DEVICE) if isinstance(x, torch.Tensor) else x for x in aux)
    q, k, v = VariantCase(40, 50, B=2, H_q=1, dtype=SINGLE).inputs()
    block_mask = make_block_mask(getattr(mods, name), 40, 50, aux=aux, B=mask.shape[0] if mask.ndim == 4 else 1, device=DEVICE)
    for _ in range(2):
        got = attention_with(q, k, v, mask_mod=getattr(mods, name), aux=aux, block_mask=block_mask, return_lse=True)
    want = dense(q.double(), k.double(), v.double(), mask=mask.to(DEVICE))
    torch.testing.assert_close([x.double() for x in got], list(want), rtol=1e-5, atol=1e-5)


def test_lists_belong_to_the_stream_that_made_them_and_a_graphs_to_the_graph(monkeypatch):
    capturing, stream, made = [False], [1], itertools.count()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: types.SimpleNamespace(cuda_stream=stream[0]))
    monkeypatch.setattr(tile_lists.BlockMask, "make", lambda *_: next(made))
    mask = tile_lists.BlockMask(None, (), 1, 1, 16, 16, torch.device("cuda:0"))
    found = [mask.tiles(16, 16), mask.tiles(16, 16)]
    stream[0] = 2
    found += [mask.tiles(16, 16), mask.tiles(16, 16)]
    capturing[0] = True
    found += [mask.tiles(16, 16), mask.tiles(16, 16)]
    capturing[0] = False
    assert [*found, mask.tiles(16, 16)] == [0, 0, 1, 1, 2, 3, 1]


@needs_gpu
def test_a_block_mask_that_a_cuda_graph_used_first():
    q = randn(1, 1, 100, 64, dtype=HALF)
    block_mask = make_block_mask(mods.prefix_lm, 100, 100, aux=(cu(30), 0), device=q.device)
    ours = functools.partial(attention_with, q, q, q, mask_mod=mods.prefix_lm, aux=block_mask.aux)
    want, graph = ours(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = ours(block_mask=block_mask)
    eager = ours(block_mask=block_mask)
    graph.replay()
    assert same(eager, want) and same(captured, want)


# ---------------------------------------------------------------- a reader's own mods


@triton.jit
def squared(s, b, h, i, j, aux):
    return aux[0] * s * s + h - b


@triton.jit
def squared_grad(s, b, h, i, j, aux):
    return 2 * aux[0] * s


@triton.jit
def every_third(b, h, i, j, aux):
    return (i + j + b + h) % 3 == 0


def test_own_mods_with_their_derivative_and_a_mask_of_batch_and_head():
    case = VariantCase(20, 33, B=2, dtype=SINGLE, dlse=True)
    tensors, (do, dlse) = case.inputs(), case.output_gradients()
    b, h, i, j = torch.meshgrid(*(torch.arange(n, device=DEVICE) for n in (2, 2, 20, 33)), indexing="ij")

    def ours(q, k, v):
        return attention_with(q, k, v, score_mod=squared, score_grad=squared_grad, mask_mod=every_third, aux=(0.3,), return_lse=True)

    def definition(q, k, v):
        s = q @ k.repeat_interleave(2, 1).mT * 24**-0.5
        s = (0.3 * s * s + h - b).masked_fill((i + j + b + h) % 3 != 0, -math.inf)
        return torch.softmax(s, -1) @ v.repeat_interleave(2, 1), torch.logsumexp(s, -1)

    with guarded_outputs():
        o, lse, gradients = differentiate(ours, tensors, {}, do, dlse)
    want_o, want_lse, want = differentiate(definition, [x.double() for x in tensors], {}, do.double(), dlse)
    got = double({"o": o, "lse": lse, **gradients})
    torch.testing.assert_close(got, {"o": want_o, "lse": want_lse, **want}, rtol=1e-5, atol=1e-5)
    with autocast:
        assert attention_with(tensors[0].bfloat16(), *tensors[1:]).dtype == BRAIN


@triton.jit
def more_keys_in_later_heads(b, h, i, j, aux):
    return j < 30 * (2 * b + h) + 5


def test_a_block_mask_has_lists_for_every_batch_entry_and_head_of_a_call():
    """Unless it is told that one is for all, also where it served a call of other sizes before."""
    block_mask = make_block_mask(more_keys_in_later_heads, 20, 100, device=DEVICE)
    for B, H in ((1, 1), (2, 2), (1, 2)):
        q, k, v = VariantCase(20, 100, B=B, H_q=H, dtype=SINGLE).inputs()
        got = attention_with(q, k, v, mask_mod=more_keys_in_later_heads, block_mask=block_mask)
        first = 30 * (2 * torch.arange(B)[:, None] + torch.arange(H)) + 5
        want, _ = dense(*(x.double() for x in (q, k, v)), mask=(torch.arange(100) < first[:, :, None, None]).to(DEVICE))
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)
    assert block_mask.of_call(2, 3).tiles(16, 16).index.shape[:2] == (2, 3)
    shared = make_block_mask(mods.document_mask, 20, 20, aux=(cu(*range(20)),) * 2, B=1, H=1, device=DEVICE)
    assert shared.of_call(2, 3).tiles(16, 16).index.shape[:2] == (1, 1)


# ---------------------------------------------------------------- dropout


def with_seed(*tensors, **options):
    torch.manual_seed(7)
    return call(*tensors, dropout_p=0.3, **{name: x for name, x in options.items() if name != "kept"})


def mask_of(S_q: int, S_k: int, B: int) -> torch.Tensor:
    """(B, 2, S_q, S_k) booleans, which pairs with_seed keeps: with equal weights and v the identity, o is the weights that are left."""
    zeros = torch.zeros(B, 2, S_q, 64, device=DEVICE)
    eye = torch.eye(S_k, 64, device=DEVICE).expand(B, 2, S_k, 64)
    return with_seed(zeros, torch.zeros_like(eye), eye)[0][..., :S_k] > 0


def test_dropout_drops_its_share_of_the_pairs_and_not_the_same_in_each_head():
    kept = mask_of(64, 64, B=2)
    assert abs(float(kept.float().mean()) - 0.7) < 5 * math.sqrt(0.3 * 0.7 / kept.numel())
    assert len({tuple(x.flatten().tolist()) for x in kept.flatten(0, 1)}) == 4
    by_row_and_column = torch.stack([kept.float().mean(dim) for dim in (2, 3)])
    assert (by_row_and_column - 0.7).abs().max() < 5 * math.sqrt(0.3 * 0.7 / 64)


def test_dropout_and_its_gradients_given_the_mask():
    """The backward draws the forward's mask again, and keeps none of it."""
    case = VariantCase(37, 45, B=2, dtype=SINGLE)
    tensors, (do, _) = case.inputs(), case.output_gradients()
    kept = mask_of(37, 45, B=2).double() / 0.7
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
        got = differentiate(lambda *x, **options: with_seed(*x), tensors, {}, do)
    assert_like_dense(got, tensors, {"kept": kept}, do)
    assert max(saved) <= max(x.numel() for x in tensors) + 2 * 37


def test_seed_and_offset_both_decide_what_is_dropped(monkeypatch):
    """Both are drawn from PyTorch's generator."""
    q = randn(1, 2, 20, 16)

    def dropped(*rng):
        monkeypatch.setattr(torch, "randint", lambda *_, **__: torch.tensor(rng, device=DEVICE))
        return call(q, q, q, dropout_p=0.3)

    first = dropped(1, 2)
    assert same(first, dropped(1, 2)) and not same(first, dropped(1, 3)) and not same(first, dropped(2, 2))


# ---------------------------------------------------------------- an operator of PyTorch's


def small(seed=0):
    q, k, v = (randn(1, H, 20, 16, seed=seed + i).requires_grad_() for i, H in enumerate((2, 1, 1)))
    return q, k, v, randn(2, seed=9).requires_grad_(), randn(1, 1, 20, 20, seed=8).requires_grad_()


def options_of(sinks, attn_mask) -> tuple:
    return None, sinks, attn_mask, None, None, None, 9, 0, 2.0, 0.0, 0.25


@pytest.mark.slow
def test_opcheck():
    q, k, v, sinks, attn_mask = small()
    torch.library.opcheck(variants.FORWARD, (q, k, v, *options_of(sinks, attn_mask)))
    o, lse = (x.detach() for x in variants.FORWARD(q, k, v, *options_of(sinks, attn_mask)))
    arguments = torch.ones_like(o), torch.ones_like(lse), *(x.detach() for x in (q, k, v)), o, lse
    torch.library.opcheck(variants.BACKWARD, (*arguments, *options_of(sinks.detach(), attn_mask.detach()), True, True))


def variant_between(q, k, v, sinks, attn_mask):
    return flash_attention(
        2 * q, k, v, is_causal=True, window=(9, -1), softcap=2.0, sinks=sinks, attn_mask=attn_mask, alibi_slopes=sinks.detach()
    ).sin()


def packed_between(q, k, v, sinks, attn_mask):
    q, k, v = (x.squeeze(0).transpose(0, 1) for x in (q, k, v))
    cu = torch.tensor([0, 5, 20], dtype=torch.int32, device=q.device)
    return flash_attention_varlen(2 * q, k, v, cu, cu, is_causal=True, sinks=sinks).sin() + attn_mask.sum()


@pytest.mark.parametrize("function", [variant_between, packed_between])
def test_torch_compile_equals_eager(function):
    torch._dynamo.reset()
    leaves = small()
    compiled = torch.compile(function, fullgraph=True, backend="inductor" if torch.device(DEVICE).type == "cuda" else "aot_eager")
    got, want = compiled(*leaves), function(*leaves)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.autograd.grad(got.sum(), leaves), torch.autograd.grad(want.sum(), leaves))


def test_a_second_derivative_is_refused():
    q, k, v, sinks, _ = small()
    (dq,) = torch.autograd.grad(flash_attention(q, k, v, sinks=sinks).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once differentiable"):
        dq.sum().backward()


# ---------------------------------------------------------------- what must raise

X = torch.ones(1, 2, 3, 4, device=DEVICE)
ROWS, CU = torch.ones(3, 2, 4, device=DEVICE), torch.tensor([0, 3], dtype=torch.int32, device=DEVICE)


# Calls that are not made yet.
variant = functools.partial(functools.partial, flash_attention, X, X, X)
with_mods = functools.partial(functools.partial, attention_with, X, X, X)


def varlen(q=ROWS, cu_q=CU, cu_k=CU, **options):
    return functools.partial(flash_attention_varlen, q, ROWS, ROWS, cu_q, cu_k, **options)


def with_mask(*aux, S_k=3, **options):
    """A block mask that was made for every_third with `aux`."""
    return with_mods(block_mask=make_block_mask(every_third, 3, S_k, aux=aux, device=DEVICE), **options)


def cu(*bounds):
    return torch.tensor(bounds, dtype=torch.int32, device=DEVICE)


BAD_INPUTS = [
    (variant(window=(-2, 0)), ValueError, ["window's left side", "-2", "at least -1"]),
    (variant(softcap=0), ValueError, ["softcap", "greater than 0", "got 0", "None"]),
    (variant(softcap=torch.tensor(3.0, requires_grad=True)), TypeError, ["softcap", "without a gradient"]),
    (variant(dropout_p=1.0), ValueError, ["dropout_p", "below 1", "1.0"]),
    (variant(alibi_slopes=X[0, :, 0, 0].half()), TypeError, ["alibi_slopes", "float16", "float32"]),
    (variant(alibi_slopes=X[0, :, 0, 0].clone().requires_grad_()), TypeError, ["alibi_slopes", "no gradient", "attn_mask"]),
    (variant(sinks=X[0, 0, :, 0]), ValueError, ["sinks", "2 query heads", "(3,)"]),
    (variant(attn_mask=X), ValueError, ["attn_mask", "(1, 2, 3, 3)", "(1, 2, 3, 4)", "[:, None, None, :]"]),
    (variant(attn_mask=torch.ones(3, 3, dtype=torch.int64)), TypeError, ["attn_mask", "int64", "bool"]),
    (variant(softcap=1.0, kernel="basic"), ValueError, ["kernel", "'basic'", "auto"]),
    (varlen(q=X), ValueError, ["q", "(total, H, D)", "4 dimensions"]),
    (varlen(cu_q=CU.long()), TypeError, ["cu_seqlens_q", "int64", "int32"]),
    (varlen(cu_k=CU[:1]), ValueError, ["cu_seqlens_k", "at least 2", "1"]),
    (with_mods(score_mod=abs), TypeError, ["score_mod", "@triton.jit", "abs"]),
    (lambda: attention_with(X.clone().requires_grad_(), X, X, score_mod=squared), ValueError, ["score_grad", "derivative", "or 1"]),
    (with_mods(aux=(X.mT,)), ValueError, ["aux[0]", "strides", ".contiguous()"]),
    (with_mods(aux=(1, "x")), TypeError, ["aux[1]", "tensor, a number or None", "'x'"]),
    (with_mods(block_mask="x"), TypeError, ["block_mask", "make_block_mask", "'x'"]),
    (with_mask(4, 2, mask_mod=every_third, aux=(4, 1)), ValueError, ["aux", "block_mask", "(4, 1)", "(4, 2)"]),
    (with_mask(S_k=4, mask_mod=every_third), ValueError, ["block_mask", "3, 4", "3, 3"]),
    (lambda: make_block_mask(every_third, 3, 3, H=0, device=DEVICE), ValueError, ["H", "at least 1", "0"]),
]
if torch.device(DEVICE).type == "cpu":  # where values can be looked at without a wait
    BAD_INPUTS += [
        (varlen(cu_q=cu(0, 2)), ValueError, ["cu_seqlens_q", "tokens, 3", "[0, 2]"]),
        (varlen(cu_k=cu(1, 3)), ValueError, ["cu_seqlens_k", "start at 0", "[1, 3]"]),
        (varlen(cu_q=cu(0, 4, 3), cu_k=cu(0, 1, 3)), ValueError, ["cu_seqlens_q", "never decrease", "[0, 4, 3]"]),
    ]


@pytest.mark.parametrize(("bad_call", "error", "words"), BAD_INPUTS, ids=[f"{words[0]}-{i}" for i, (_, _, words) in enumerate(BAD_INPUTS)])
def test_bad_input(bad_call, error, words):
    assert_refused(bad_call, error, words)


# ---------------------------------------------------------------- mutants

# Name of the mistake -> the module, the kernel, what mutants.mutant takes, and the case that has to fail.
MUTATIONS = {
    "l is not rescaled": (forward, "forward_kernel", "attend", "l", "l + tl.sum(p, axis=1)", WINDOW),
    "no mask": (forward, "forward_kernel", "attend", "if MASK", "False", WINDOW),
    "the last tile is left out": (forward, "forward_kernel", "attend_tiles", "for t", "range(count - 1)", WINDOW),
    "whole tiles from the front": (
        forward, "forward_kernel", "attend_tiles", "tile 2", "tl.load(index + t, mask=t < count, other=0)", WINDOW),
    "the sink is forgotten": (forward, "forward_kernel", "forward_kernel", "l 2", "0.0", BLIND_BUT_FOR_SINKS),
    "every tile is whole": (tile_lists, "tile_lists_kernel", "ask_every_pair", "return", "(pairs > 0, pairs > 0)", WINDOW),
    "keys beyond S_k": (tile_lists, "tile_lists_kernel", "seen_pairs", "inside 1", "i < S_q + 0 * j", SOFTCAP),
    "dkdv: no mask": (backward, "dkdv_kernel", "score_gradient", "if MASK", "False", WINDOW),
    "dkdv: the group's first head": (backward, "dkdv_kernel", "dkdv_kernel", "h", "h_k * GROUP", WINDOW),
    "dkdv: no derivative": (backward, "dkdv_kernel", "through_mod", "if mods.grad is not None", "False", SOFTCAP),
    "dq: no derivative": (backward, "dq_kernel", "through_mod", "if mods.grad is not None", "False", SOFTCAP),
    "dmask of each head": (backward, "dmask_kernel", "dmask_kernel", "first_b, first_h", "(own // H_q, own % H_q)", ADDED),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS)
def test_a_mistake_is_caught(mutation, monkeypatch):
    module, kernel, *change, case = mutation
    variants.window_block_mask.cache_clear()
    put_in(monkeypatch, module, kernel, *change)
    with pytest.raises(AssertionError):
        check(case)
    variants.window_block_mask.cache_clear()
