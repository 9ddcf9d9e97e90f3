"""Which tiles the kernels of chapters 5, 7 and 8 visit, which of them they mask, and in which order.

Bounds that are too wide, and another order, give the same result: they cost time, which no other test sees.
"""

import inspect
import math

import pytest
import torch
from attention_cases import Case, causal

from fa_tutorial import backward, forward, hardware, tuned
from fa_tutorial.tiles import TileConfig

pytestmark = pytest.mark.skipif(not hardware.interpreter_on(), reason="a compiled kernel doesn't say which tiles it visits")
N = 16  # rows and columns of a tile
TILE = TileConfig(N, N, 4, 1)
lengths = pytest.mark.parametrize(("S_q", "S_k"), [(40, 40), (24, 72), (72, 24), (33, 50), (24, 71), (71, 24)])
forwards = pytest.mark.parametrize("module", [forward, tuned.forward], ids=["basic", "tuned"])
backwards = pytest.mark.parametrize("module", [backward, tuned.backward], ids=["basic", "tuned"])


def visits(monkeypatch, module, function: str) -> list[tuple[int, int, bool]]:
    """Fills with the calls of a module's step: what of its first row or key the step is told, where its tile starts, MASK."""
    step, found = getattr(module, function), []
    names = list(inspect.signature(step.fn).parameters)

    def recorded(*given):
        named = dict(zip(names, given, strict=True))
        own = named["first_seeing"] if "first_seeing" in named else named["last_seen"]
        start = named["start_m"] if "first_seeing" in named else named["start_n"]
        found.append((int(own.handle.data[0]), int(start), named["MASK"]))
        return step(*given)

    monkeypatch.setattr(module, function, recorded)
    return found


def by_rows(S_q: int, S_k: int, is_causal: bool) -> list[tuple[int, int, bool]]:
    """The tiles of keys of each block of rows: all that its last row sees, masked where its first row sees them in part."""
    tiles = []
    for start_m in range(0, S_q, N):
        first, last = ((row + S_k - S_q if is_causal else S_k - 1) for row in (start_m, min(start_m + N, S_q) - 1))
        tiles += [(first, start_n, first < start_n + N - 1) for start_n in range(0, last + 1, N)]
    return tiles


def by_keys(S_q: int, S_k: int, is_causal: bool) -> list[tuple[int, int, bool]]:
    """The blocks of rows of each tile of keys: all that see its first key, masked where they do not all see its last one."""
    tiles = []
    for start_n in range(0, S_k, N):
        first_seeing, last_key = start_n - (S_k - S_q), min(start_n + N, S_k) - 1
        for start_m in range(0, S_q, N):
            if not is_causal or min(start_m + N, S_q) - 1 >= first_seeing:
                tiles.append((first_seeing, start_m, is_causal and start_m + S_k - S_q < last_key))
    return tiles


def run(module, S_q: int, S_k: int, is_causal: bool) -> None:
    q, k, v = Case(S_q, S_k, D=16, B=1, H_q=1).data()
    if module in (forward, tuned.forward):
        module.flash_forward(q, k, v, is_causal, 0.25, **({"config": TILE} if module is forward else {"tile": TILE}))
    else:
        o, lse = forward.flash_forward(q, k, v, is_causal, 0.25)
        config = backward.BackwardConfig(TILE, TILE)
        module.flash_backward(q, k, v, o, torch.ones_like(o), lse, None, is_causal, 0.25, config=config)


@forwards
@causal
@lengths
def test_forward(module, S_q, S_k, is_causal, monkeypatch):
    visited = visits(monkeypatch, module, "attend")
    run(module, S_q, S_k, is_causal)
    assert sorted(visited) == sorted(by_rows(S_q, S_k, is_causal))


@backwards
@causal
@lengths
def test_backward(module, S_q, S_k, is_causal, monkeypatch):
    of_keys, of_rows = visits(monkeypatch, module, "add_to_dkdv"), visits(monkeypatch, module, "add_to_dq")
    run(module, S_q, S_k, is_causal)
    assert sorted(of_keys) == sorted(by_keys(S_q, S_k, is_causal))
    assert sorted(of_rows) == sorted(by_rows(S_q, S_k, is_causal))


@pytest.mark.parametrize(("module", "step"), [(tuned.forward, "attend"), (tuned.backward, "add_to_dq")], ids=["forward", "dq"])
def test_the_longest_rows_come_first(module, step, monkeypatch):
    visited = visits(monkeypatch, module, step)
    run(module, 80, 80, True)
    firsts = [first for first, _, _ in visited]
    assert firsts == sorted(firsts, reverse=True) and len(set(firsts)) == math.ceil(80 / N)
