"""Calls of flash_decode and append_to_cache: what must raise, what PyTorch asks of an operator, and a model that generates through them."""

import copy
import functools

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
    "a cache of another dtype": ({"k_cache": CACHE.half()}, TypeError, ["k_cache", "float16", "allowed: float32"]),
    "caches of two shapes": ({"v_cache": CACHE[:, :, :8]}, ValueError, ["(2, 2, 32, 8)", "(2, 2, 8, 8)"]),
    "query heads not a multiple": ({"q": Q[:, :3]}, ValueError, ["3 query heads", "2 key heads"]),
    "one length": ({"cache_seqlens": LENGTHS[:1]}, ValueError, ["1 cache_seqlens", "(2, 2, 32, 8)"]),
    "a length beyond the cache": ({"cache_seqlens": LENGTHS + 13}, ValueError, ["0 to 32", "got 33", "sequence 1"]),
    "a page that is not there": (IN_PAGES | {"block_table": TABLE + 1}, ValueError, ["pages 0 to 4", "got [5]", "sequence 1"]),
    "pages of 24": (pages_of(24), ValueError, ["page size", "power of two", "24"]),
    "a scale for each query head": (IN_FP8 | {"k_scale": torch.ones(4)}, ValueError, ["k_scale", "(2,)", "(4,)"]),
    "scales without fp8": ({"k_scale": SCALE}, ValueError, ["k_scale", "float8_e4m3fn", "float32"]),
    "two devices": ({"cache_seqlens": LENGTHS.to("meta")}, ValueError, ["one device", "cache_seqlens: meta"]),
    "padding of three": ({"cache_leftpad": torch.ones(3, dtype=torch.int32)}, ValueError, ["cache_leftpad", "(2,)", "(3,)"]),
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


@pytest.mark.parametrize(("call", "error", "words"), [
    (lambda cache, lengths: quantise_fp8(cache.double()), TypeError, ["x", "float64"]),
    (lambda cache, lengths: quantise_fp8(cache, torch.ones(3, device=DEVICE)), ValueError, ["scale", "(2,)", "(3,)"]),
    (lambda cache, lengths: append_to_cache(cache, cache, cache.half(), cache.half(), lengths), TypeError, ["k_new", "float16", "float32"]),
    (lambda cache, lengths: append_to_cache(cache, cache, cache[:, :1], cache[:, :1], lengths), ValueError, ["(2, 2, 32, 8)", "(2, 1, 32, 8)"]),
    (lambda cache, lengths: append_to_cache(cache, cache, *[cache.clone().requires_grad_()] * 2, lengths), RuntimeError, ["no gradient", "k_new"]),
])  # fmt: skip
def test_what_else_is_refused(call, error, words):
    assert_refused(lambda: call(to_device(CACHE), to_device(LENGTHS)), error, words)


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
    (lambda cache: cache.release(2), "the sequence must be 0 to 1, got 2"),
    (lambda cache: cache.grow(0, -5), "tokens must be at least 1, got -5"),
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
