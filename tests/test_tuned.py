"""Chapter 8's kernels: right by descriptors and by pointers, broken copies are caught, tiles measured and launches prepared once."""

import functools
import math

import pytest
import torch
from attention_cases import Case, check_backward, check_forward, place
from buffers import randn
from mutants import mutation_tests

from fa_tutorial import forward as chapter_5
from fa_tutorial.backward import BackwardConfig
from fa_tutorial.hardware import Card, card_of
from fa_tutorial.tiles import TileConfig, heads, load_tile, padded_d
from fa_tutorial.tuned import autotuning, backward, descriptors, forward, launching, steps
from fa_tutorial.tuned.forward import tl, triton

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NaN and inf are what some broken kernels compute
TILE = TileConfig(32, 32, 4, 1)
CONFIG = BackwardConfig(TILE, TILE)

RAGGED = Case(37, 70, D=16, B=1)
HEADS = Case(20, 20, D=24, B=1, H_q=3)
CAUSAL = Case(70, 70, D=16, is_causal=True, B=1, H_q=1)
FEWER_QUERIES = Case(35, 70, D=16, is_causal=True, B=1, H_q=1)
BLIND_ROWS = Case(70, 35, D=16, is_causal=True, B=1, H_q=1)
GQA = Case(33, 40, D=16, H_q=4, H_k=2)
DLSE = Case(20, 40, D=16, dtype=torch.bfloat16, B=1, dlse=True)
FALLING = Case(35, 101, D=16, values="falling maximum", scale=20.0, B=1, H_q=1)
POINTERS = Case(40, 50, D=59, is_causal=True, B=1)

# ---------------------------------------------------------------- by descriptors and by pointers


@pytest.mark.parametrize("descriptors", [True, False])
@pytest.mark.parametrize("case", [RAGGED, GQA, CAUSAL, BLIND_ROWS, FEWER_QUERIES, DLSE, POINTERS], ids=str)
def test_kernels_are_right_by_descriptors_and_by_pointers(case, descriptors):
    check_forward(forward.flash_forward, case, tile=TILE, descriptors=descriptors)
    check_backward(backward.flash_backward, case, config=CONFIG, descriptors=descriptors)


@pytest.mark.parametrize("step", steps.STEPS)
@pytest.mark.parametrize("case", [RAGGED, BLIND_ROWS], ids=str)
def test_the_kernel_after_each_step_is_right(case, step):
    check_forward(steps.flash_forward, case, step=step, tile=TILE)


def test_a_step_whose_file_changes_is_made_again(monkeypatch, tmp_path):
    mine, kernels = tmp_path / "mine.py", []
    monkeypatch.setitem(steps.STEPS, "mine", mine)
    for factor in ("2.0", "10.0"):
        mine.write_text(steps.STEPS[steps.LAST].read_text().replace("1.0 / l_or_one", f"{factor} / l_or_one"))
        kernels.append(steps.kernel("mine"))
    assert kernels[0] is not kernels[1] and steps.kernel("mine") is kernels[1], "what is launched again is looked up"


def test_what_a_descriptor_can_reach():
    x = randn(2, 3, 5, 16, dtype=torch.float16)
    one = randn(1, 1, 5, 16, dtype=torch.float16).as_strided((1, 1, 5, 16), (3, 7, 16, 1))
    reach = {
        "contiguous": (x, True),
        "transposed": (x.transpose(1, 2), True),
        "any stride along a dimension of 1": (one, True),
        "D with another stride than 1": (x.transpose(2, 3), False),
        "an address that is not aligned": (place(x, "offset of one"), False),
        "rows that are not": (randn(2, 3, 5, 17, dtype=torch.float16)[..., :16], False),
        "D of no 16 bytes": (randn(2, 3, 5, 20, dtype=torch.float16), False),
        "an expanded head": (x[:, :1].expand(2, 3, 5, 16), False),
    }
    with_tma = card_of(x).capability >= descriptors.TMA_CAPABILITY
    for name, (tensor, reachable) in reach.items():
        assert descriptors.can_use_tma(launching.signature_of(tensor)) == (reachable and with_tma), name
    made = descriptors.descriptor_template(one, 32)(x)
    assert made.base is x and made.block_shape == [1, 1, 32, 16]


def test_what_the_kernels_apply_to():
    q = randn(1, 1, 4, 16)
    tensor_cores = card_of(q).capability >= 80
    assert not forward.applies(q, 1.0), "fp32"
    assert forward.applies(q.half(), 0.1) == tensor_cores
    assert not forward.applies(q.half(), 0.0) and not forward.applies(q.half(), -1.0)


@triton.jit
def one_block(q, k, m_ptr, scale_log2, S: tl.constexpr, D: tl.constexpr):
    """m after one block of S keys, for S queries."""
    zero = tl.program_id(0)
    m = tl.full((S,), -float("inf"), dtype=tl.float32)
    l = tl.zeros((S,), dtype=tl.float32)
    acc = tl.zeros((S, D), dtype=tl.float32)
    q_tile = load_tile(q, zero, zero, 0, S, D, S, D)
    m, l, acc = forward.attend(q_tile, k, k, m, l, acc, zero, zero, 0, l, S, D, scale_log2, False, S, D)
    tl.store(m_ptr + tl.arange(0, S), m)


@pytest.mark.parametrize("sign", [1, -1])
def test_m_is_never_below_the_largest_exponent(sign):
    """Else p, by a multiply-add that rounds once, is above 1 for the largest score, and the dot rounds that to 1 while l does not."""
    q, k = (randn(1, 1, 64, 64, seed=seed).mul(10).round().abs().half() for seed in (0, 1))  # q · k is exact in float32
    m = torch.empty(64, device=q.device)
    scale_log2 = 0.1875 * math.log2(math.e)
    one_block[(1,)](heads(sign * q), heads(k), m, scale_log2, 64, 64)
    largest = (sign * q.double() @ k.double().mT)[0, 0].amax(1) * torch.tensor(scale_log2).double().item()
    assert (m >= largest).all()
    torch.testing.assert_close(m.double(), largest, rtol=1e-6, atol=0.0)


# ---------------------------------------------------------------- broken kernels

ROWS = "b, h, start_m, S_q, D, BLOCK_M, BLOCK_D)"
KEYS = "b, h_k, start_n, S_k, D, BLOCK_N, BLOCK_D)"
# See mutants.mutation_tests.
FORWARD_MUTATIONS = {
    "forward_kernel": {
        "no mask": ("attend", "if MASK 1", "False", CAUSAL),
        "the diagonal is hidden": ("attend", "s 2", "tl.where(offs_n[None, :] < last_seen[:, None], s, -float('inf'))", CAUSAL),
        "rows that see nothing become NaN": ("attend", "if MASK 2", "False", BLIND_ROWS),
        "the maximum does not run": ("attend", "m_new", "tl.max(s, axis=1) * scale_log2", FALLING),
        "l is not rescaled": ("attend", "l", "l + tl.sum(p, axis=1)", RAGGED),
        "scale in base e": ("forward_kernel", "scale_log2", "scale", RAGGED),
        "the order runs past the first block": ("forward_kernel", "row_block 2", "row_blocks - row_block", CAUSAL),
        "top-left mask": ("forward_kernel", "last_seen 2", "offs_m", FEWER_QUERIES),
        "tiles that the diagonal crosses are full": (
            "forward_kernel", "full_n", "tl.cdiv(start_m + 1 + S_k - S_q, BLOCK_N) * BLOCK_N", CAUSAL),
        "lse in base 2": ("forward_kernel", "lse", "tl.where(l == 0.0, -float('inf'), m + tl.log2(l_or_one))", RAGGED),
        "lse runs over a head's end": (
            "forward_kernel", "tl.store", "tl.store(lse_ptr + batch_head.to(tl.int64) * S_q + offs_m, lse)", RAGGED),
    },
}  # fmt: skip
BACKWARD_MUTATIONS = {
    "prepare_kernel": {
        "lse2 in base e": ("prepare_kernel", "lse2", "tl.where(lse == -float('inf'), float('inf'), lse)", RAGGED),
        "delta is forgotten": ("prepare_kernel", "delta", "tl.zeros((BLOCK_M,), dtype=tl.float32)", RAGGED),
        "lse of the first head": ("prepare_kernel", "lse", "tl.load(lse_ptr + offs_m, mask=offs_m < S_q, other=-float('inf'))", HEADS),
        "heads lie S_q apart": ("prepare_kernel", "rows", "batch_head.to(tl.int64) * S_q + offs_m", HEADS),
        "rows beyond S_q are left unwritten": ("prepare_kernel", "tl.store 1", "tl.store(lse2_ptr + rows, lse2, mask=offs_m < S_q)", HEADS),
    },
    "dkdv_kernel": {
        "p without lse": ("add_to_dkdv", "p_t 1", "tl.exp2(s_t * scale_log2)", RAGGED),
        "no mask": ("add_to_dkdv", "if MASK", "False", CAUSAL),
        "the diagonal is hidden": ("add_to_dkdv", "p_t 2", "tl.where(offs_m[None, :] > first_seeing[:, None], p_t, 0.0)", CAUSAL),
        "ds without delta": ("add_to_dkdv", "ds_t", "p_t * dp_t", RAGGED),
        "top-left mask": ("dkdv_kernel", "first_seeing", "start_n + tl.arange(0, BLOCK_N)", FEWER_QUERIES),
        "the first tile of queries is skipped": (
            "dkdv_kernel", "first_m", "tl.maximum(start_n + BLOCK_M + S_q - S_k, 0) // BLOCK_M * BLOCK_M", CAUSAL),
        "tiles that the diagonal crosses are full": ("dkdv_kernel", "full_m", "first_m", CAUSAL),
        "only the first head of a group": ("dkdv_kernel", "for member", "range(0, 1)", GQA),
        "lse2 and delta lie S_q apart": ("dkdv_kernel", "row", "(b * H_k * GROUP + h).to(tl.int64) * S_q", HEADS),
        "dk without scale": ("dkdv_kernel", "store_tile 1", f"store_tile(dk, dk_acc, {KEYS}", RAGGED),
    },
    "dq_kernel": {
        "p without lse": ("add_to_dq", "p 1", "tl.exp2(s * scale_log2)", RAGGED),
        "no mask": ("add_to_dq", "if MASK", "False", CAUSAL),
        "ds without delta": ("add_to_dq", "ds", "p * dp", RAGGED),
        "key heads in turns": ("dq_kernel", "h_k", "h % H_k", GQA),
        "the order runs past the first block": ("dq_kernel", "row_block", "row_blocks - row_block", CAUSAL),
        "lse2 and delta lie S_q apart": ("dq_kernel", "rows", "batch_head.to(tl.int64) * S_q + offs_m", HEADS),
        "top-left mask": ("dq_kernel", "last_seen 2", "offs_m", FEWER_QUERIES),
        "tiles that the diagonal crosses are full": ("dq_kernel", "full_n", "tl.cdiv(start_m + 1 + S_k - S_q, BLOCK_N) * BLOCK_N", CAUSAL),
        "top-left tiles": ("dq_kernel", "end_n", "tl.minimum(start_m + BLOCK_M, S_q)", FEWER_QUERIES),
        "dq without scale": ("dq_kernel", "store_tile", f"store_tile(dq, acc, {ROWS}", RAGGED),
    },
}  # fmt: skip
if card_of(randn(1)).capability >= descriptors.TMA_CAPABILITY:
    FORWARD_MUTATIONS["forward_kernel"] |= {
        "a descriptor's first head": ("load_tile", "tile 1", "x.load([b, 0, start, 0]).reshape([ROWS, COLS])", HEADS),
        "a descriptor's rows start at 0": (
            "store_tile", "x.store", "x.store([b, h, 0, 0], tile.to(x.dtype).reshape([1, 1, ROWS, COLS]))", RAGGED),
    }  # fmt: skip

test_copies_of_the_forward_are_right, test_a_mistake_of_the_forward_is_caught = mutation_tests(
    forward, FORWARD_MUTATIONS, functools.partial(check_forward, forward.flash_forward, tile=TILE)
)
test_copies_of_the_backward_are_right, test_a_mistake_of_the_backward_is_caught = mutation_tests(
    backward, BACKWARD_MUTATIONS, functools.partial(check_backward, backward.flash_backward, config=CONFIG)
)


# ---------------------------------------------------------------- tiles


@pytest.mark.parametrize("kernel", autotuning.TILES)
@pytest.mark.parametrize("D", [16, 80, 256])
def test_candidates_fit_the_card(kernel, D):
    block_d = max(padded_d(D), 64)
    for shared_memory in (65_536, 101_376, 166_912, 232_448):
        tiles = autotuning.candidates(kernel, D, shared_memory)
        assert 1 <= len(tiles) <= 5
        assert all(autotuning.shared_bytes(kernel, tile, block_d) <= max(shared_memory, 101_376) for tile in tiles)
        assert kernel == "forward" or all(tile.block_m <= backward.MAX_BLOCK.value for tile in tiles)
    assert autotuning.candidates(kernel, D, 232_448) == autotuning.TILES[kernel][232_448][block_d]
    assert autotuning.candidates(kernel, D, None) == (chapter_5.INTERPRETER_CONFIG,)
    rows = {"forward": 128 + 3 * 2 * 64, "dkdv": 2 * 64 + 3 * 2 * 128, "dq": 2 * 128 + 3 * 2 * 64}[kernel]
    assert autotuning.shared_bytes(kernel, TileConfig(128, 64, 4, 3), 64) == 2 * 64 * rows


def test_lengths_share_a_bucket():
    assert [autotuning.bucket(S) for S in (1, 256, 257, 4096, 4097, 16_384, 100_000)] == [256, 256, 512, 4096, 8192, 16_384, 16_384]


class Tuner:
    """In place of an autotuned kernel: what fastest does with it."""

    def __init__(self):
        self.best_config = autotuning.config_of(TILE)
        self.keys, self.error = [], None

    def __getitem__(self, grid):
        def run(*arguments, autotune_key, **constants):
            if self.error:
                raise self.error
            self.keys.append(autotune_key)

        return run


@pytest.fixture
def fastest(monkeypatch):
    """autotuning.fastest on a card with several candidates, and the Tuner that it asks."""
    tuner = Tuner()
    monkeypatch.setattr(autotuning, "card_of", lambda q: Card("a card", 90, 232_448, 132))
    monkeypatch.setattr(autotuning, "_fastest", {})
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)

    def call(S_q=100, S_k=100, tma=False, is_causal=True):
        q, k = (torch.zeros(1, 1, S, 64, dtype=torch.float16) for S in (S_q, S_k))
        return autotuning.fastest("forward", tuner, None, {"q": q, "k": k}, (), tma, {"IS_CAUSAL": is_causal, "BLOCK_D": 64})

    call.tuner = tuner
    return call


def test_a_kind_of_input_is_measured_once(fastest):
    assert fastest().items() >= TILE.launch().items() and fastest(S_q=256, S_k=256).items() >= TILE.launch().items()
    assert len(fastest.tuner.keys) == 1
    fastest(S_q=300), fastest(S_k=300), fastest(tma=True), fastest(is_causal=False)
    assert len(set(fastest.tuner.keys)) == 5


def test_what_cannot_be_measured_now_is_measured_by_a_later_call(fastest, monkeypatch):
    """While a graph is captured, and where memory does not suffice."""
    with monkeypatch.context() as capture:
        capture.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert fastest() is None and not fastest.tuner.keys
    fastest.tuner.error = torch.cuda.OutOfMemoryError("CUDA out of memory")
    assert fastest() is None
    fastest.tuner.error = None
    assert fastest().items() >= TILE.launch().items()
    measured = len(fastest.tuner.keys)
    monkeypatch.setattr(autotuning, "card_of", lambda q: Card("the interpreter", 90, None, 1))
    monkeypatch.setattr(autotuning, "_fastest", {})
    assert fastest() == chapter_5.INTERPRETER_CONFIG.launch() and len(fastest.tuner.keys) == measured, "one candidate is not measured"


def test_a_config_sets_the_tiles_of_its_descriptors():
    x = torch.zeros(1, 1, 40, 64, dtype=torch.float16)
    arguments = {name: descriptors.descriptor_template(x, 16)(x) for name in ("q", "k", "o")}
    arguments |= {"v": heads(x), "BLOCK_M": 128, "BLOCK_N": 32}
    autotuning.set_block_shapes(arguments)
    assert [arguments[name].block_shape[2] for name in ("q", "k", "o")] == [128, 32, 128]


# ---------------------------------------------------------------- prepared launches


def test_a_launch_is_prepared_once_for_a_key_and_its_integers(monkeypatch):
    monkeypatch.setattr(launching, "_prepared", {})
    monkeypatch.setattr(launching, "MAX_PREPARED", 3)
    prepared = []

    class Nothing:
        keep = True

        def __call__(self, tensors, arguments):
            pass

    def launch(key, *arguments):
        launching.launch_prepared(key, lambda: prepared.append((key, *arguments)) or Nothing(), (), arguments)

    launch("a", 1, 0.5)
    launch("a", 1, 0.25)
    assert prepared == [("a", 1, 0.5)]
    launch("a", 2, 0.5), launch("a", None, 0.5), launch("b", 1, 0.5)
    assert len(prepared) == 4
    launch("a", 1, 0.5)
    assert len(prepared) == 5, "no more than MAX_PREPARED are kept"
    monkeypatch.setattr(Nothing, "keep", False)
    launch("c", 1), launch("c", 1)
    assert len(prepared) == 7, "what is not to be kept is prepared again"


def test_a_signature_holds_all_that_a_launch_depends_on():
    x = randn(2, 3, 5, 16, dtype=torch.float16)
    others = [x.clone(), x.mT.contiguous().mT, x[:1], x.float(), x[..., 1:], x.bfloat16()]
    signatures = [launching.signature_of(y) for y in others]
    assert signatures[0] == launching.signature_of(x) and len(set(signatures)) == len(others)
