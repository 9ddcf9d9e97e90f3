"""Watches what PyTorch multiplies while an answer runs: where tiles are asked for, no right result may come from the whole matrices."""

from __future__ import annotations

import contextlib
import dis
import math
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fa_tutorial.arguments import dtype_name
from fa_tutorial.exercises.running import Wrong, adapting

PRODUCTS = {"mm": (0, 1), "addmm": (1, 2), "bmm": (0, 1), "baddbmm": (1, 2), "mv": (0, 1), "addmv": (1, 2), "dot": (0, 1), "mul": (0, 1)}


class Operations(TorchDispatchMode):
    """Sees each operation that PyTorch carries out."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first operation imports torch.compile, which takes seconds

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.see(func.overloadpacket.__name__.rstrip("_"), args, result)
        return result

    def see(self, name: str, args: tuple, result: Any) -> None:
        """Note what an operation did."""


def parts_of(result: Any) -> tuple | list:
    return result if isinstance(result, tuple | list) else (result,)


class LargestTensor(Operations):
    """Notes in `largest` how many numbers the largest result of an operation holds."""

    largest = 0

    def see(self, name: str, args: tuple, result: Any) -> None:
        if isinstance(result, torch.Tensor) and result.dtype != torch.uint8:  # an input's storage is copied as bytes
            self.largest = max(self.largest, result.numel())


class Products(Operations):
    """Notes the largest product of two tensors (in a batch each matrix is its own), in `done` the multiply-adds of all matrix products, of
    both calls of an answer, and in `cut` how many rows the parts have into which x is cut."""

    done = 0

    def __init__(self, x: torch.Tensor) -> None:
        super().__init__()
        self.x = x
        self.cut: set[int] = set()
        self.largest: tuple[int, list[tuple[int, ...]]] = (0, [])

    def see(self, name: str, args: tuple, result: Any) -> None:
        factors = [args[place] for place in PRODUCTS.get(name, ())]
        if factors and all(isinstance(factor, torch.Tensor) and factor.ndim for factor in factors):
            shapes = [tuple(factor.shape[-2:]) if "bmm" in name else tuple(factor.shape) for factor in factors]
            steps = math.prod(result.shape[-3:]) if name == "mul" else math.prod(shapes[0]) * (shapes[1][1] if len(shapes[1]) > 1 else 1)
            self.largest = max(self.largest, (steps, shapes))
        if name in ("mm", "bmm"):
            self.done += result.numel() * args[0].shape[-1]
        for part in parts_of(result):
            is_view = isinstance(part, torch.Tensor) and part.untyped_storage().nbytes() == self.x.numel() * part.element_size()
            if is_view and part.ndim > 1 and part.shape[-1] == self.x.shape[-1]:
                self.cut.add(part.shape[-2])


class Scores(Products):
    """For attention by tiles: no product may take more than a tile of block_m × block_n scores, block_m cuts q, and o has q's dtype."""

    def __init__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block_m: int, block_n: int, *_: Any) -> None:
        super().__init__(q)
        self.q, self.block_m, self.block_n = q, block_m, block_n
        self.step = block_m * block_n * q.shape[-1]
        self.sizes = (q.shape[2], k.shape[2])

    def complaint(self, result: Any) -> str:
        steps, shapes = self.largest
        S_q, S_k = self.sizes
        if len({S_q, S_k, self.block_m, self.block_n}) == 4 and self.block_m < S_q and self.block_n < S_k:
            if steps > self.step:
                rows = {size for shape in shapes for size in shape}
                what = "all queries are taken at once" if S_q in rows else "a tile is too large"
                what = "all keys of a block of rows are taken at once" if S_k in rows else what
                what = "all scores are computed at once" if {S_q, S_k} <= rows else what
                what = "block_m stands where block_n belongs" if rows == {self.block_m, self.q.shape[-1]} else what
                parts = f"a product takes parts of shape {shapes[0]} and {shapes[1]}"
                return f"{what}: {parts}, and no tile may be larger than block_m × block_n"
            if self.block_n in self.cut and self.block_m not in self.cut:
                return f"block_m and block_n are exchanged: q is cut into blocks of {self.block_n} rows, and block_m counts rows of q"
        o = result[0] if isinstance(result, tuple | list) else result
        if isinstance(o, torch.Tensor) and o.dtype != self.q.dtype == torch.bfloat16:  # after float16, which tells other mistakes apart
            return f"o is {dtype_name(o.dtype)}, and must have the dtype of q"
        return ""


class OnePass(Scores):
    """Scores, and no block of rows may compute a head's scores with all keys, tile by tile, before a product with v."""

    run = longest = largest_tile = 0  # scores of a head: since the last product with v, at most, and in a tile

    def see(self, name: str, args: tuple, result: Any) -> None:
        super().see(name, args, result)
        by_sum = name == "mul" and all(isinstance(x, torch.Tensor) and x.numel() < result.numel() for x in args[:2])  # p v, or q kᵀ
        if name in ("mm", "bmm") or by_sum:
            is_score = not by_sum and args[0].shape[-1] == self.q.shape[-1]  # q kᵀ adds over D, p v over keys
            size = math.prod(result.shape[-2:])
            self.run = self.run + size if is_score else 0
            self.longest, self.largest_tile = max(self.longest, self.run), max(self.largest_tile, size if is_score else 0)

    def complaint(self, result: Any) -> str:
        if complaint := super().complaint(result):
            return complaint
        # Its products with v can be told: einsum multiplies a single key elementwise, and a tile as wide as D looks like q's.
        by_tiles = self.block_n > 1 and self.q.shape[-1] not in (self.block_m, self.block_n)
        by_tiles &= self.largest_tile <= self.block_m * self.block_n
        by_tiles &= self.block_m <= self.sizes[0] and self.sizes[1] >= 3 * self.block_n
        twice = "a block of rows goes over its keys twice: the scores of all keys come before the first product with v"
        return f"the result is right, but {twice}" if by_tiles and self.longest >= self.block_m * self.sizes[1] else ""


class NoStandIn:
    """Beside a watch: no finite number may stand for −∞ where scores are hidden."""

    stand_in = 0.0

    def see(self, name: str, args: tuple, result: Any) -> None:
        if name in ("masked_fill", "where"):
            values = [float(arg) for arg in args[1:] if isinstance(arg, int | float) or (isinstance(arg, torch.Tensor) and arg.ndim == 0)]
            self.stand_in = min([self.stand_in, *(value for value in values if -math.inf < value <= -1e4)])
        super().see(name, args, result)

    def complaint(self, result: Any) -> str:
        if (complaint := super().complaint(result)) or not self.stand_in:
            return complaint
        number = f"{self.stand_in:g}".replace("-", "−")
        why = "a score may be as small, and a row that sees no key must give p = 0. Hide scores with -math.inf"
        return f"the result is right here, but {number} stands for −∞: {why}"


class HiddenByInfinity(NoStandIn, OnePass):
    """OnePass and NoStandIn, and no tile may be computed that the causal mask hides from every row of its block."""

    def __init__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block_m: int, block_n: int, *_: Any) -> None:
        super().__init__(q, k, v, block_m, block_n)
        S_q, S_k = self.sizes
        last_rows = (min(start + block_m, S_q) for start in range(0, S_q, block_m))
        tiles = sum(-(-max(0, stop + S_k - S_q) // block_n) for stop in last_rows)
        self.needed = 2 * 2 * q.shape[0] * q.shape[1] * tiles * self.step  # two products a tile, two calls

    def complaint(self, result: Any) -> str:
        if found := super().complaint(result):
            return found
        if self.done > self.needed and self.sizes[0] > 5 * self.block_m:
            return "the result is right, but tiles are computed that no row of their block sees: end the loop over keys at end"
        return ""


class WholeTilesCompared(Operations):
    """Notes in `found` whether positions, which are integers, are compared for a tile of block_m × block_n with one answer everywhere."""

    def __init__(self, block_m: int, block_n: int) -> None:
        super().__init__()
        self.tiles, self.found = {(block_m, block_n)}, False

    def see(self, name: str, args: tuple, result: Any) -> None:
        if name in ("lt", "le", "gt", "ge") and tuple(result.shape[-2:]) in self.tiles:
            self.found |= not args[0].is_floating_point() and len(result.unique()) == 1


class Tiles(Products):
    """For a product of a (M, K) and b (K, N) by tiles: a product adds over block_k, and takes no more than one tile's step; c has a's dtype."""

    def __init__(self, a: torch.Tensor, b: torch.Tensor, block_m: int, block_n: int, block_k: int) -> None:
        super().__init__(a)
        self.dtype = a.dtype
        self.whole = a.shape[0] * a.shape[1] * b.shape[1]
        self.step = block_m * block_n * block_k
        self.is_cut = block_m < a.shape[0] and block_n < b.shape[1] and block_k < a.shape[1]
        self.block_m, self.block_n, self.block_k = block_m, block_n, block_k
        self.can_tell = self.is_cut and a.numel() not in (b.numel(), a.shape[0] * b.shape[1])  # a's parts from those of b and c

    def complaint(self, result: Any) -> str:
        steps, shapes = self.largest
        if self.is_cut and steps >= self.whole:
            return "all of a and all of b go into one product: multiply a tile of a by a tile of b"
        if self.is_cut and (steps > self.step or shapes[0][-1:] == shapes[1][:1] != (self.block_k,)):
            step = "a step multiplies a tile of a, block_m × block_k, by a tile of b, block_k × block_n"
            return f"a product takes parts of shape {shapes[0]} and {shapes[1]}: {step}"
        if self.can_tell and self.block_n in self.cut and self.block_m not in self.cut:
            return f"a is cut into blocks of {self.block_n} rows: block_m counts rows of a, and block_n columns of b"
        if isinstance(result, torch.Tensor) and result.dtype != self.dtype:
            return f"c has dtype {result.dtype}, want a's: the accumulator is float32, what is stored is not"
        return ""


BY_AUTOGRAD = "autograd computes these gradients: write them yourself"


class ByHand(Operations):
    """Tells in `by_autograd` whether autograd was asked for a gradient."""

    asked: Sequence[mock.MagicMock] = ()

    def __enter__(self) -> ByHand:
        places = (torch.autograd, "grad"), (torch.autograd, "backward"), (torch, "_softmax_backward_data")
        # torch.func, Tensor.backward and autograd.functional call the first two
        self.patches = [mock.patch.object(place, name, wraps=getattr(place, name)) for place, name in places]
        self.asked = [patch.start() for patch in self.patches]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        for patch in self.patches:
            patch.stop()
        super().__exit__(*error)

    @property
    def by_autograd(self) -> bool:
        return any(function.called for function in self.asked)


def other_dtype(result: Any, names: tuple[str, ...], dtype: torch.dtype, wide: bool = False) -> str:
    """Which part of a result hasn't the inputs' dtype, or where it is to be wide at least float32, in words; "" if each has."""
    want = torch.promote_types(dtype, torch.float32) if wide else dtype
    for name, part in zip(names, parts_of(result), strict=True):
        if isinstance(part, torch.Tensor) and part.dtype != want:
            of_input = f"{name.removeprefix('d')} in {dtype_name(dtype)}: convert it to that dtype at the end"
            is_so = f"it is {dtype_name(want)} for inputs in {dtype_name(dtype)}" if wide else of_input
            return f"{name} comes in {dtype_name(part.dtype)}, and {is_so}"
    return ""


class Gradients(ByHand):
    """For gradients that no other watch is for: each has its tensor's dtype."""

    names: tuple[str, ...] = ("dq", "dk", "dv")
    wide = False

    def __init__(self, x: torch.Tensor, *_: Any) -> None:
        super().__init__()
        self.dtype = x.dtype

    def complaint(self, result: Any) -> str:
        return BY_AUTOGRAD if self.by_autograd else other_dtype(result, self.names, self.dtype, self.wide)


class Weights(Gradients):
    """For what stays on the chip: float32, or float64 where the inputs are."""

    names, wide = ("p",), True


class RowSums(Gradients, LargestTensor):
    """For what one sum for each row solves: no tensor comes up that is much larger than the inputs, as a Jacobian is."""

    names = ("ds",)

    def __init__(self, *tensors: torch.Tensor) -> None:
        super().__init__(*tensors)
        self.size = max(x.numel() for x in tensors)

    def complaint(self, result: Any) -> str:
        if (complaint := super().complaint(result)) or self.largest <= 2 * self.size:
            return complaint
        return f"a tensor of {self.largest} elements is built, from inputs of {self.size}: one sum for each row is enough"


class Delta(RowSums, Weights):
    """For delta, in the dtype of p."""

    names = ("delta",)


class SeenTiles(Scores):
    """For attention's backward by tiles: no product takes more than a tile, no mask is built for the whole matrix, no tiles are kept, and no
    tile is computed that the causal mask hides from every row. None is masked whose queries see all of its keys, as the comparison of
    positions tells. The gradients have their tensors' dtype. This is for dq, where each block of queries comes up once."""

    products, remedy, masked = 3, "end the loop over keys at end", "from full on"
    owned, others, sums = "queries", "keys", "their dq"

    def __init__(self, q, k, v, do, lse, delta, block_m: int, block_n: int, is_causal: bool, scale: float) -> None:
        super().__init__(q, k, v, block_m, block_n)
        self.step = max(self.step, q.numel(), k.numel())  # one product may scale all of q or k
        self.is_causal = is_causal
        B, H, S_q, D = q.shape
        S_k, pairs = k.shape[2], 0
        self.can_tell = len({S_q, S_k, block_m, block_n, D}) == 5 and block_m < S_q and block_n < S_k
        self.has_whole = False  # a matrix of S_q × S_k has come up
        self.tiles: list[weakref.ref] = []
        self.held = 0  # elements of tiles that are held at the same time, at most
        for start in range(0, S_q, block_m):
            stop = min(start + block_m, S_q)
            seen = max(0, stop + S_k - S_q) if is_causal else S_k
            pairs += (stop - start) * min(-(-seen // block_n) * block_n, S_k)
        self.needed = 2 * self.products * B * H * pairs * D  # in two calls
        self.compared = WholeTilesCompared(block_m, block_n)
        if self.owned == "keys":
            self.compared.tiles |= {(m, n) for m in (block_m, S_q % block_m) for n in (block_n, S_k % block_n)}
        self.length, block = (S_k, block_n) if self.owned == "keys" else (S_q, block_m)
        self.block, self.visits, self.due = -1, 0, 2 * B * H * -(-self.length // block)  # the block at hand, and how often one came up

    def see(self, name: str, args: tuple, result: Any) -> None:
        super().see(name, args, result)
        for part in parts_of(result):
            shape = tuple(part.shape[-2:]) if isinstance(part, torch.Tensor) else ()
            self.has_whole |= shape in (self.sizes, self.sizes[::-1])
            if shape in ((self.block_m, self.block_n), (self.block_n, self.block_m)):
                self.tiles = [tile for tile in self.tiles if tile() is not None] + [weakref.ref(part)]
                live = [tile for ref in self.tiles if (tile := ref()) is not None]
                sizes = {tile.untyped_storage().data_ptr(): tile.numel() for tile in live}  # views count once
                self.held = max(self.held, sum(sizes.values()))
        if name == "slice" and args[0].shape[-2:] == (self.length, self.q.shape[-1]) != result.shape[-2:]:
            first = args[2] if len(args) > 2 else 0
            self.block, self.visits = first, self.visits + (first != self.block)
        self.compared.see(name, args, result)

    def complaint(self, result: Any) -> str:
        S_q, S_k = self.sizes
        names = ("dk", "dv") if isinstance(result, tuple | list) else ("dq",)
        if complaint := other_dtype(result, names, self.q.dtype):
            return complaint
        if not self.can_tell:
            return ""
        if complaint := super().complaint(self.q):  # not of the result, whose dtype is right
            return complaint
        if self.is_causal and self.has_whole:
            return f"a tensor of the whole size, {S_q} × {S_k}, is built: make the mask of a tile from the positions of its rows and keys"
        if self.held >= S_q * S_k > 25 * self.block_m * self.block_n:
            return "tiles are kept: together they hold S_q × S_k elements; add each tile to the sums, then let it go"
        if self.visits > self.due:
            left = f"your loop comes back to {self.owned} that it has left, so {self.sums} can't stay on the chip"
            return f"the result is right, but {left}: let the outer loop take a block of {self.owned}, the inner one the {self.others}"
        has_many = self.is_causal and S_q > 5 * self.block_m
        if has_many and self.done > self.needed:
            number = ("three", "four")[self.products - 3]
            return f"the result is right, but it takes more than {number} products for each tile that is seen: {self.remedy}"
        if has_many and self.compared.found:
            return f"the result is right, but tiles are masked whose queries see all of the keys: mask only blocks {self.masked}"
        return ""


class SeenByKeys(SeenTiles):
    """SeenTiles for dk and dv: each block of keys comes up once."""

    products, remedy = 4, "begin the loop over queries at start, and take p and ds of a tile from one call"
    masked = "before full, which the last key that exists decides"
    owned, others, sums = "keys", "queries", "their dk and dv"


def codes_of(answer: Any) -> list[types.CodeType]:
    """The code of an answer, and of the functions inside it; none of what isn't written in Python."""
    codes = [code] if (code := getattr(getattr(answer, "fn", answer), "__code__", None)) else []
    for code in codes:  # grows meanwhile
        codes += [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return codes


def names_in(answer: Any) -> set[str]:
    """The globals and attributes that an answer's own code names, such as {"torch", "softmax"}."""
    return {name for code in codes_of(answer) for name in code.co_names}


def not_by(why: str, *names: str) -> Callable[[Any], str]:
    """For `refused`: why a right result isn't enough, if the answer's own code has one of these names."""
    return lambda answer: why if names_in(answer) & {*names} else ""


@adapting
def in_integers(answer: Callable, *args: Any) -> Any:
    """The answer; Wrong where its own code divides by /: for a task that says to stay with integers."""
    steps = (step for code in codes_of(answer) for step in dis.get_instructions(code))
    if any(step.opname == "BINARY_OP" and step.argrepr in ("/", "/=") for step in steps):
        raise Wrong("/ makes a float: stay with integers, x // y rounds down and -(-x // y) rounds up")
    return answer(*args)


def where_it_tells(watch: type[SeenTiles]) -> Callable:
    """`watch`, which looks at each operation only for inputs whose sizes can tell; of the others' results it knows the dtype."""
    return lambda *args: made if (made := watch(*args)).can_tell else contextlib.nullcontext(made)
