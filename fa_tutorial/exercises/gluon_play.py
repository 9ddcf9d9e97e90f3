"""Runs a consumer written in Gluon as plain Python, for exercises 9.3, 9.4 and 9.6: each name it uses of Gluon stands for a part of the simulator.

Tiles are small float64 tensors. A matmul starts when it is issued and reads its tiles of shared memory until it has been waited for, as
wgmma does. Producer and other consumer are the protocol's own. They act as early as they can, which shows a stage that is released too
early, or as late as they can, which shows a wait that is missing. Of layouts, which the compiler checks, only alpha's is seen here; of types,
only which names are matmuls under way.
"""

from __future__ import annotations

import ast
import builtins
import functools
import itertools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from fa_tutorial.barriers import Barrier, ring
from fa_tutorial.exercises.harness import Case, case
from fa_tutorial.exercises.running import Wrong, kind, show

ROWS, KEYS, D = 2, 4, 3  # of the tiles; a tile that is not transposed does not fit
SCALE_LOG2 = 0.7
RIGHT = ""
# The functions of Python that Gluon's compiler takes of numbers that only the GPU knows (int and float it takes of constants alone).
KNOWN = ("len", "range", "min", "max", "isinstance", "getattr", "hasattr", "print")


class Stop(Exception):
    """The play has ended with a fault."""


class Operand(NamedTuple):
    """What permute and left_operand give. tile: of shared memory, None for registers."""

    value: torch.Tensor
    tile: Tile | None = None


class Tile:
    """A tile of shared memory. block: the number of the block that it holds, None for none."""

    dtype = torch.float32  # by name: it is another than acc's, as in the kernel

    def __init__(self, name: str, value: torch.Tensor):
        self.name, self.value, self.block, self.tile = name, value, None, self

    def permute(self, order: Sequence[int]) -> Operand:
        return Operand(self.value.permute(order), self)

    def __str__(self) -> str:
        return f"{self.name}, which holds {'nothing' if self.block is None else f'block {self.block}'}"


class Ring:
    """What has an `index`: the stages of k, of v, or of a barrier."""

    dtype = Tile.dtype

    def __init__(self, stages: Sequence[Any]):
        self.stages, self.shape = stages, (len(stages), KEYS, D)

    def index(self, stage: int) -> Any:
        if not 0 <= stage < len(self.stages):
            raise Stop(
                f"index({stage}) of a ring of {len(self.stages)} stages: a GPU takes what lies before or behind it, and doesn't count from its end"
            )
        return self.stages[stage]


class Alpha(torch.Tensor):
    """The softmax's alpha, [ROWS], or [ROWS, 1]. Its layout is that of the rows of s, so it multiplies s, p, m and l, but not acc."""

    def __mul__(self, other: Any) -> torch.Tensor:
        if isinstance(other, torch.Tensor) and other.shape == (ROWS, D):
            raise Wrong("alpha lies as the rows of s, and acc has another layout: rescaled(acc, alpha) converts it and multiplies")
        return self.as_subclass(torch.Tensor) * other

    __rmul__ = __mul__


class Pending:
    """A matmul that was issued, and has no tensor's operators: before it is used, warpgroup_mma_wait has to return it."""

    def __init__(self, value: torch.Tensor, reads: Tile, left: Any):
        self.value, self.reads, self.block, self.left = value, reads, reads.block, left
        self.beside_softmax = False  # whether it was under way when a softmax began

    def __str__(self) -> str:
        return f"{'p v' if self.reads.name[-1] == 'v' else 'q kᵀ'} of block {self.block}"


def begins(method: Callable) -> Callable:
    """The method of a Play, at whose begin is noted whether a block that nothing reads any more has not been released."""

    @functools.wraps(method)
    def begun(self: Play, *args: Any, **options: Any) -> Any:
        if self.summed > sum(self.released):
            self.late = self.late or f"block {self.summed - 1} is still not released at your next {method.__name__}, though its p v is done"
        return method(self, *args, **options)

    return begun


class Play:
    """One run of a consumer, over blocks of keys through `stages`. Its methods stand for the functions of Gluon and of hopper.ladder.

    early: producer and other consumer act as early as they can, else as late. overlap: every softmax but the first has p v of the block
    before beside it. consumer: which of the two the reader's is, where they issue their matmuls by turns.
    """

    def __init__(self, blocks: int, stages: int, early: bool, overlap: bool, consumer: int | None):
        self.blocks, self.stages, self.early, self.overlap, self.consumer = blocks, stages, early, overlap, consumer
        random = torch.Generator().manual_seed(blocks)
        draw = lambda *shape: torch.randn(*shape, generator=random, dtype=torch.float64)  # noqa: E731
        self.q, self.keys, self.values = draw(ROWS, D), draw(blocks, KEYS, D), draw(blocks, KEYS, D)
        self.full, self.empty = ring(stages, consumers=2)
        self.k, self.v = ([Tile(f"stage {i} of {name}", torch.full((KEYS, D), torch.nan).double()) for i in range(stages)] for name in "kv")
        # blocks that the producer has loaded; those whose q kᵀ the other consumer has issued, by turns also the turns that it has passed on
        self.loaded = self.other = 0
        self.in_flight: list[Pending] = []
        self.issued = {"k": 0, "v": 0}
        self.softmaxes = 0
        self.released = [0] * stages  # how often the reader has arrived at empty, by stage
        self.summed = 0  # blocks whose p v is done
        self.late = self.soon = ""  # which stage was released later than it could be, or while a matmul read it
        self.turns = [Barrier(1, f"turns[{c}]") for c in range(2)]
        self.passed, self.holds = 0, False  # turns that the reader has passed on; whether it has waited for the next one

    # ------------------------------------------------ the other roles

    def step(self) -> bool:
        """One block of the producer or of the other consumer; False where both must wait."""
        stage, turn = self.loaded % self.stages, self.loaded // self.stages
        if self.loaded < self.blocks and self.empty[stage].test_wait(1 - turn % 2):
            for tiles, source in ((self.k, self.keys), (self.v, self.values)):
                tiles[stage].value, tiles[stage].block = source[self.loaded], self.loaded
            self.full[stage].arrive()
            self.loaded += 1
            return True
        stage, turn, by_turns = self.other % self.stages, self.other // self.stages, self.consumer is not None
        if by_turns and not self.turns[1 - self.consumer].test_wait((self.other - self.consumer) % 2):
            return False
        if self.other < self.blocks:
            if not self.full[stage].test_wait(turn % 2):
                return False
            if self.k[stage].block != self.other:
                raise Stop(f"the other consumer reads {self.k[stage]}, where block {self.other} is due")
        used = self.other - by_turns  # by turns it is done with the block before, whose p v begins its turn
        if not used < self.blocks:
            return False
        if used >= 0:
            self.empty[used % self.stages].arrive()
        self.other += 1
        if by_turns:
            self.turns[self.consumer].arrive()
        return True

    def others(self) -> None:
        while self.early and self.step():
            pass

    # ------------------------------------------------ what the reader's code calls

    @begins
    def wait(self, barrier: Barrier, phase: int, pred: bool = True) -> None:
        self.others()
        while pred and not barrier.test_wait(phase):
            if not self.step():
                has = f"{barrier.arrived} of the {barrier.count} arrivals of phase {barrier.phase}"
                raise Stop(f"a deadlock: wait for {barrier.name}, parity {phase}, which has {has}, and nobody else arrives")
        self.holds = self.holds or any(barrier is one for one in self.turns)

    def arrive(self, barrier: Barrier, *, count: int = 1, pred: bool = True) -> None:
        if any(barrier is one for one in self.turns):
            for _ in range(count):
                self.pass_turn(barrier)
        for _ in range(count if pred else 0):
            barrier.arrive()
            reading = [
                x for x in self.in_flight for i, one in enumerate(self.empty) if one is barrier and x.reads in (self.k[i], self.v[i])
            ]
            self.soon = self.soon or "".join(
                f"you release block {x.block} before you have waited for {x}, which reads it" for x in reading[:1]
            )
            self.released = [n + (one is barrier) for n, one in zip(self.released, self.empty, strict=True)]
        self.others()

    def pass_turn(self, barrier: Barrier) -> None:
        if barrier is self.turns[self.consumer]:
            raise Stop(f"you arrive at {barrier.name}, your own turn: the other consumer waits at turns.index(1 - C)")
        if self.issued["v"] < self.passed:
            raise Stop(f"you pass turn {self.passed} on, whose p v is not issued: once a turn, behind the q kᵀ that ends it")
        if self.passed < self.blocks and self.issued["k"] == self.passed:
            raise Stop(f"you pass turn {self.passed} on before its q kᵀ: into that gap the other's p v slips")
        if self.passed < self.blocks and not self.in_flight:
            raise Stop(f"you pass turn {self.passed} on when its q kᵀ is done: pass it on as soon as that is issued")
        self.passed, self.holds = self.passed + 1, False

    @begins
    def warpgroup_mma(self, a: Any, b: Any, acc: Any, *, use_acc: bool = True, is_async: bool = False) -> Any:
        if not isinstance(a, Tile | Operand) or not isinstance(b, Tile | Operand) or b.tile is None:
            raise Wrong("warpgroup_mma takes a tile of shared memory, or what left_operand gives, and then a tile of shared memory")
        product, start = a.value @ b.value, acc.value if isinstance(acc, Pending) else acc
        if start.shape != product.shape:
            shapes = f"the product has shape {list(product.shape)}, and warpgroup_mma's third argument {list(start.shape)}"
            raise Wrong(f"{shapes} (the check's tiles are small): it is zeros for q kᵀ, acc for p v")
        due = self.issued[name := b.tile.name[-1]]
        if b.tile.block is None or b.tile.block != due:
            raise Stop(f"a matmul reads {b.tile}, {f'where block {due} is due' if due < self.blocks else 'and all blocks have been read'}")
        pending = Pending(start + product if use_acc else product, b.tile, a)
        turn = due + (name == "v")  # p v of a block and q kᵀ of the next one are one turn
        if self.consumer is not None and self.passed != turn:
            raise Stop(f"{pending} begins turn {turn}, and you haven't passed turn {self.passed} on")
        if self.consumer is not None and self.other < (due := turn + self.consumer):
            raise Stop(f"{pending} is issued when the other consumer has passed {self.other} turns on, where {due} must come before")
        self.issued[name] += 1
        self.in_flight.append(pending)
        self.others()
        return pending if is_async else self.warpgroup_mma_wait(0, [pending])

    def warpgroup_mma_wait(self, num_outstanding: int, deps: Sequence[Any]) -> Any:
        self.others()
        while len(self.in_flight) > num_outstanding:
            done = self.in_flight.pop(0)
            self.summed += done.reads.name[-1] == "v"
            if done.reads.block != done.block:
                fault = f"block {done.reads.block} is loaded into {done.reads.name} while a matmul reads block {done.block} there"
                raise Stop(f"{fault}: you release block {done.block} before you have waited for the matmul that reads it")
            if self.overlap and done.beside_softmax and done.left.tile is None and not any(x is done.left for x in deps):
                fault = f"the wait that ends {done} doesn't have its p among what it waits for"
                raise Stop(f"{fault}: p v reads p's registers until then, so wait for both, [acc, p], and give the new p another name")
        for x in deps:
            if x in self.in_flight:
                raise Stop(
                    f"warpgroup_mma_wait({num_outstanding}, …) leaves {x} in flight, as one of the last that were issued, and returns it"
                )
        found = [x.value if isinstance(x, Pending) else x for x in deps]
        return found[0] if len(found) == 1 else tuple(found)

    @begins
    def softmax_step(self, s: Any, m: torch.Tensor, l: torch.Tensor, scale_log2: float) -> tuple:
        s = done(s, "s") * scale_log2
        before, self.softmaxes = self.softmaxes - 1, self.softmaxes + 1
        if self.holds and self.issued["k"] > self.passed:
            raise Stop(f"a softmax begins, and you haven't passed turn {self.passed} on: pass it on as soon as its q kᵀ is issued")
        if self.holds:
            raise Stop(
                f"you wait for turn {self.passed} before a softmax, which then begins when the other passes its turn on: wait right before p v"
            )
        for pending in self.in_flight:
            pending.beside_softmax = True
        if self.overlap and before >= 0 and f"p v of block {before}" not in map(str, self.in_flight):
            raise Stop(f"p v of block {before} is not under way when the softmax of block {before + 1} begins")
        m_new = torch.maximum(m, s.amax(1))
        p, alpha = torch.exp2(s - m_new[:, None]), torch.exp2(m - m_new)
        return p, m_new, alpha * l + p.sum(1), alpha.as_subclass(Alpha)

    def before_a_turn(self, name: str) -> None:
        if self.holds:
            raise Stop(f"{name} comes after the wait for turn {self.passed}, whose matmuls wait for it: wait right before p v")

    @begins
    def left_operand(self, p: Any, acc: Any, dtype: Any) -> Operand:
        self.before_a_turn("left_operand")
        done(acc, "acc")
        if dtype is not Tile.dtype:
            raise Wrong("left_operand's dtype is v.dtype: both operands of a matmul have one dtype, and acc, l and s another")
        return Operand(done(p, "p").double())

    @begins
    def rescaled(self, acc: Any, alpha: torch.Tensor) -> torch.Tensor:
        self.before_a_turn("rescaled")
        return done(acc, "acc") * alpha.as_subclass(torch.Tensor)[:, None]

    # ------------------------------------------------ the run

    def run(self, attend: Callable) -> str:
        """What comes of a reader's attend: RIGHT, or the first thing that goes wrong."""
        code, by_turns = attend.fn.__code__, self.consumer is not None
        names = {name: getattr(self, name) for name in ("softmax_step", "left_operand", "rescaled", "warpgroup_mma", "warpgroup_mma_wait")}
        known = {name: getattr(builtins, name) for name in (*KNOWN, "NotImplementedError")}
        plain = types.FunctionType(code, names | {"mbarrier": self, "__builtins__": known}, closure=attend.fn.__closure__)
        zeros, l, acc = (torch.zeros(*shape, dtype=torch.float64) for shape in ((ROWS, KEYS), (ROWS,), (ROWS, D)))
        rings = [Ring(stages) for stages in (self.k, self.v, self.full, self.empty, *[self.turns] * by_turns)]
        more = (self.consumer,) if by_turns else ()
        try:
            result = plain(Tile("q", self.q), *rings, zeros, torch.full_like(l, -torch.inf), l, acc, SCALE_LOG2, self.blocks, *more)
        except Stop as fault:
            return str(fault)
        except NameError as error:
            if isinstance(error, UnboundLocalError):
                raise
            takes = f"of Python's functions Gluon's compiler takes only {', '.join(KNOWN)}"
            raise Wrong(f"uses {error.name}: the loop needs no gl.… and no function of yours, and {takes}") from None
        if not isinstance(result, tuple) or len(result) != 2:
            raise Wrong(f"returns {kind(result)}, want (l, acc)")
        s = SCALE_LOG2 * self.q @ self.keys.reshape(-1, D).T
        p = torch.exp2(s - s.amax(1, keepdim=True))
        for name, got, want in zip(("l", "acc"), result, (p.sum(1), p @ self.values.reshape(-1, D)), strict=True):
            if done(got, name).shape != want.shape or not torch.allclose(got, want):
                return f"{name} = {show(got)} instead of {show(want)}"
        for stage, times in enumerate(self.released):
            if times != (blocks := len(range(stage, self.blocks, self.stages))):
                each = "each block's stage is released once, the last block's, too"
                return f"arrivals of yours at empty[{stage}]: {times}, blocks in this stage: {blocks}: {each}"
        if by_turns and self.passed != self.blocks + 1:
            return f"you have passed on {self.passed} of {self.blocks + 1} turns: the last one, too, after the last p v"
        if self.soon:
            return self.soon
        if self.late:
            return f"{self.late}: you release a stage late, and the producer waits for it"
        arguments = dict.fromkeys(code.co_varnames[: code.co_argcount], False)
        if self.stages > 2 and (name := carried(attend.parse().body[0].body, arguments)):  # on one input is enough
            return f"an if or a loop can't change a type: {name} is a matmul under way at one end of its body, and a tensor at the other"
        return RIGHT


def carried(body: Sequence[ast.stmt], under_way: dict[str, bool]) -> str:
    """A name whose type changes within an if or a loop, "" where there is none. under_way: whether each name is a matmul under way."""
    for line in body:
        if isinstance(line, ast.If | ast.For | ast.While):
            ends = [dict(under_way), dict(under_way)]
            for part, end in zip((line.body, line.orelse), ends, strict=True):
                if name := carried(part, end):
                    return name
            for name in ends[0].keys() & ends[1].keys():  # the others live in one of the two alone
                if not ends[0][name] == ends[1][name] == under_way.get(name, ends[0][name]):
                    return name
                under_way[name] = ends[0][name]
        elif isinstance(line, ast.Assign):
            names, values = (x.elts if isinstance(x, ast.Tuple) else [x] for x in (line.targets[0], line.value))
            for n, name in enumerate(map(ast.unparse, names)):
                value = ast.unparse(values[n]) if len(values) == len(names) else ""
                under_way[name] = (value.startswith("warpgroup_mma(") and "is_async=True" in value) or under_way.get(value, False)
    return ""


def done(x: Any, name: str) -> torch.Tensor:
    """x, unless it is a matmul that was not waited for."""
    if isinstance(x, Pending):
        raise Wrong(f"{name} is a matmul that is under way: wait for it, and take what warpgroup_mma_wait returns")
    if not isinstance(x, torch.Tensor):
        raise Wrong(f"{name} is a {type(x).__name__}")
    return x


def adapt(answer: Callable) -> Callable:
    """A reader's attend as a function of what makes a Play."""
    if not hasattr(answer, "fn"):
        raise Wrong("is a plain function: put @gluon.jit above it")
    return functools.wraps(answer.fn)(lambda *play: Play(*play).run(answer))


def plays(overlap: bool = False, consumers: Sequence[int | None] = (None,)) -> Iterator[Case]:
    """The inputs of 9.3, 9.4 and 9.6."""
    for blocks, stages in ((1, 2), (2, 2), (3, 2), (5, 2), (4, 3)):
        for consumer, early in itertools.product(consumers, (False, True)):
            which, many = "" if consumer is None else f"C = {consumer}, ", "s" * (blocks > 1)
            on = f"{which}{blocks} block{many}, {stages} stages, the other roles as {'early' if early else 'late'} as can be"
            yield case(blocks, stages, early, overlap, consumer, on=on)
