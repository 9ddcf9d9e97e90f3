"""Calls of flash_decode and append_to_cache: what must raise, what PyTorch asks of an operator, and a model that generates through them."""

import copy
import functools
import math

import pytest
import torch
from buffers import DEVICE, ON_GPU, assert_refused, needs_gpu, randn, same_bits
from decode_cases import Decode

from fa_tutorial import decode, reference
from fa_tutorial.bench import training
from fa_tutorial.decode import FP8, append_to_cache, flash_decode, quantise_fp8

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NaN is in the caches, and is what some broken kernels compute

# ---------------------------------------------------------------- what must raise

Q, CACHE, PAGES = torch.ones(2, 4, 1, 8), torch.ones(2, 2, 32, 8), torch.ones(5, 2, 16, 8)
LENGTHS, TABLE = torch.tensor([3, 20], dtype=torch.int32), torch.tensor([[0, -1], [4, 2]], dtype=torch.int32)
CACHE_8, SCALE = CACHE.to(FP8), torch.ones(2)
GOOD = {"q": Q, "k_cache": CACHE, "v_cache": CACHE, "cache_seqlens": LENGTHS}
IN_FP8 = {"q": Q.half(), "k_cache": CACHE_8, "v_cache": CACHE_8, "k_scale": SCALE, "v_scale": SCALE}
IN_PAGES = {"k_cache": PAGES, "v_cache": PAGES, "block_table": TABLE}


def pages_of(size: int) -> dict:
    return IN_PAGES | dict.fromkeys(("k_cache", "v_cache"), torch.ones(5, 2, size, 8))


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
    "pages of 24": (pages_of(24), ValueError, ["page size", "power of two", "24"]),
    "pages of 8": (pages_of(8), ValueError, ["page size", "at least 16", "8"]),
    "fp8 without scales": (IN_FP8 | {"v_scale": None}, TypeError, ["v_scale", "NoneType", "torch.Tensor"]),
    "a scale for each query head": (IN_FP8 | {"k_scale": torch.ones(4)}, ValueError, ["k_scale", "(2,)", "(4,)"]),
    "scales without fp8": ({"k_scale": SCALE}, ValueError, ["k_scale", "float8_e4m3fn", "float32"]),
    "two devices": ({"cache_seqlens": LENGTHS.to("meta")}, ValueError, ["one device", "cache_seqlens: meta"]),
    "no split": ({"num_splits": 0}, ValueError, ["num_splits", "at least 1", "got 0"]),
    "too many splits": ({"num_splits": 65_536}, ValueError, ["num_splits", "65535", "65536"]),
    "scale NaN": ({"scale": math.nan}, ValueError, ["scale", "finite", "nan"]),
    "padding of three": ({"cache_leftpad": torch.ones(3, dtype=torch.int32)}, ValueError, ["cache_leftpad", "(2,)", "(3,)"]),
    "padding of float32": ({"cache_leftpad": torch.ones(2)}, TypeError, ["cache_leftpad", "float32", "int32"]),
    "a mask of another length": ({"attn_mask": torch.ones(2, 5, dtype=torch.bool)}, ValueError, ["attn_mask", "(2, 1, 1, 32)", "(2, 5)"]),
    "half a window": ({"window": 5}, TypeError, ["window", "(left, right)", "5"]),
    "softcap below 0": ({"softcap": -1.0}, ValueError, ["softcap", "-1.0"]),
    "three sinks": ({"sinks": torch.ones(3)}, ValueError, ["sinks", "4 query heads", "(3,)"]),
    "three slopes": ({"alibi_slopes": torch.ones(3)}, ValueError, ["alibi_slopes", "(4,)", "(3,)"]),
    "a gradient": ({"q": Q.clone().requires_grad_()}, RuntimeError, ["no gradient", "q", "torch.no_grad()", "flash_attention"]),
}


@pytest.mark.parametrize(("given", "error", "words"), BAD_INPUTS.values(), ids=BAD_INPUTS)
def test_bad_input(given, error, words):
    """On the CPU, which looks at lengths and pages too."""
    if ON_GPU and any(word.startswith(("0 to", "pages 0")) for word in words):
        pytest.skip("on a GPU values are not looked at")
    given = {name: to_device(value) for name, value in (GOOD | given).items()}
    assert_refused(lambda: flash_decode(**given), error, words)


def to_device(value):
    return value.to(DEVICE) if isinstance(value, torch.Tensor) and value.device.type != "meta" else value


def append(new):
    append_to_cache(*(to_device(CACHE).clone() for _ in "kv"), new.to(DEVICE), new.to(DEVICE), to_device(LENGTHS))


BAD_CALLS = {
    "float64": (lambda: quantise_fp8(CACHE.double()), TypeError, ["x", "float64"]),
    "2 dimensions": (lambda: quantise_fp8(CACHE[0, 0]), ValueError, ["x", "(…, H, S, D)", "(32, 8)"]),
    "a scale for all heads": (lambda: quantise_fp8(CACHE, torch.ones(())), ValueError, ["scale", "1 dimension"]),
    "scales of other heads": (lambda: quantise_fp8(CACHE, torch.ones(3)), ValueError, ["scale", "(2,)", "(3,)"]),
    "tokens of another dtype": (lambda: append(CACHE.half()), TypeError, ["k_new", "float16", "float32"]),
    "tokens of another batch": (lambda: append(CACHE[:1]), ValueError, ["(2, 2, 32, 8)", "(1, 2, 32, 8)"]),
    "tokens of other heads": (lambda: append(CACHE[:, :1]), ValueError, ["(2, 2, 32, 8)", "(2, 1, 32, 8)"]),
    "tokens with a gradient": (lambda: append(CACHE.clone().requires_grad_()), RuntimeError, ["no gradient", "k_new"]),
}


@pytest.mark.parametrize(("call", "error", "words"), BAD_CALLS.values(), ids=BAD_CALLS)
def test_what_else_is_refused(call, error, words):
    assert_refused(call, error, words)


def test_gradients_are_refused_only_where_they_are_asked_for():
    q = to_device(Q).clone().requires_grad_()
    with torch.no_grad():
        flash_decode(q, *map(to_device, (CACHE, CACHE, LENGTHS)))


# ---------------------------------------------------------------- as operators of PyTorch's


@pytest.mark.slow
def test_opcheck():
    (q, k, v, lengths), options = Decode((20,), page=16, H_k=1).call()
    torch.library.opcheck(
        torch.ops.fa_tutorial.flash_decode.default, (q, k, v, lengths, options["block_table"], None, None, 0.25, 1, *decode.NO_OPTIONS)
    )
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
    cache = decode.PagedCache(1, num_pages=5, H_k=1, page_size=16, D=16, B=2, S_max=60, dtype=torch.float32, device=DEVICE)
    cache.grow(0, 33)
    cache.grow(1, 16)
    assert [len(pages) for pages in cache.pages] == [3, 1] and cache.cache_seqlens.tolist() == [33, 16]
    cache.grow(0, 15)
    assert len(cache.pages[0]) == 3, "its last page had room"
    with pytest.raises(MemoryError, match=r"sequence 1 needs 2 more pages, 1 of 5 are free"):
        cache.grow(1, 17)
    with pytest.raises(ValueError, match=r"at most S_max = 60 tokens, 65 do not fit"):
        cache.grow(0, 17)
    cache.release(0)
    cache.grow(1, 17)
    assert cache.lengths == [0, 33] and cache.cache_seqlens.tolist() == [0, 33]
    held = cache.pages[1]
    assert cache.block_table[1, :3].tolist() == held and sorted(held + cache.free) == list(range(5))


@pytest.mark.parametrize(("bad_call", "words"), [
    (lambda cache: cache.grow(2, 1), "the sequence must be 0 to 1, got 2"),
    (lambda cache: cache.grow(-1, 1), "the sequence must be at least 0, got -1"),
    (lambda cache: cache.release(2), "the sequence must be 0 to 1, got 2"),
    (lambda cache: cache.grow(0, -5), "tokens must be at least 1, got -5"),
    (lambda cache: decode.PagedCache(1, -1, 1, 16, 16, 2, 64, torch.float32, DEVICE), "num_pages must be at least 1, got -1"),
])  # fmt: skip
def test_a_bad_call_of_the_paged_cache(bad_call, words):
    cache = decode.PagedCache(1, 4, 1, 16, 16, 2, 64, torch.float32, DEVICE)
    with pytest.raises(ValueError, match=words):
        bad_call(cache)
    assert cache.lengths == [0, 0] and len(cache.free) == 4


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

    tokens = torch.randint(setup.vocabulary, (2, 14), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    new, start = tokens, 0
    for _ in range(4):
        for b in range(2):
            cache.grow(b, new.shape[1])
        logits, want = cached(new, start)[:, -1], model(tokens)[:, -1]
        torch.testing.assert_close(logits, want, rtol=1e-4, atol=1e-4)
        new, start = logits.argmax(dim=-1, keepdim=True), tokens.shape[1]
        assert torch.equal(new, want.argmax(dim=-1, keepdim=True))
        tokens = torch.cat([tokens, new], dim=1)
    assert len(tokens[:, 14:].unique()) > 2 and cache.lengths == [17, 17]
