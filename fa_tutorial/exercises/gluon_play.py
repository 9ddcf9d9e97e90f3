"""Runs a consumer written in Gluon as plain Python, for exercises 9.3, 9.4 and 9.6: each name it uses of Gluon stands for a part of the simulator.

Tiles are small float64 tensors. A matmul starts when it is issued and reads its tiles of shared memory until it has been waited for, as
wgmma does. Producer and other consumer are the protocol's own. They act as early as they can, which shows a stage that is released too
early, or as late as they can, which shows a wait that is missing. Of layouts, which the compiler checks, only alpha's is seen here; types
are not.
"""

from __future__ import annotations

import ast
import builtins
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fa_tutorial.barriers import Barrier, ring
from fa_tutorial.exercises.ring_play import verdict
from fa_tutorial.exercises.running import Wrong, kind, show

ROWS, KEYS, D = 2, 4, 3  # of the tiles; a tile that is not transposed does not fit
SCALE_LOG2 = 0.7
RIGHT = ""
# The functions of Python that Gluon's compiler takes of numbers that only the GPU knows (int and float it takes of constants alone).
KNOWN = ("len", "range", "min", "max", "isinstance", "getattr", "hasattr", "print")
MODULES = ("gl", "gluon")  # names of what is seen of Gluon, beside those of `names`


class Stop(Exception):
    """The play has ended with a fault."""


class Tile:
    """A tile of shared memory. block: the number of the block that it holds, None for none."""

    dtype = torch.float32  # by name: it is another than acc's, as in the kernel

    def __init__(self, name: str, value: torch.Tensor):
        self.name, self.value, self.block = name, value, None

    @property
    def T(self) -> View:
        raise Wrong("a tile of shared memory has no .T or .trans: permute((1, 0)) transposes it")

    trans = T

    def permute(self, order: Sequence[int], *more: int) -> View:
        if more:
            raise Wrong("permute takes one tuple: permute((1, 0))")
        return View(self, tuple(order) == (1, 0))


@dataclass(frozen=True)
class View:
    tile: Tile
    transposed: bool

    @property
    def value(self) -> torch.Tensor:
        return self.tile.value.T if self.transposed else self.tile.value


class Ring:
    """What has an `index`: the stages of k, of v, or of a barrier."""

    dtype = Tile.dtype

    def __init__(self, name: str, stages: Sequence[Any]):
        self.name, self.stages, self.shape = name, stages, (len(stages), KEYS, D)

    def __getitem__(self, stage: Any) -> Any:
        raise Wrong(f"{self.name} takes no brackets: {self.name}.index(stage)")

    def __len__(self) -> int:
        raise Wrong(f"{self.name} has no len: its number of stages is {self.name}.shape[0]")

    def index(self, stage: int) -> Any:
        if not isinstance(stage, int) or not 0 <= stage < len(self.stages):
            raise Wrong(f"{self.name}.index({show(stage)}): the stages are 0 … {len(self.stages) - 1}")
        return self.stages[stage]


@dataclass(frozen=True)
class Operand:
    """What left_operand gives."""

    value: torch.Tensor


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


@dataclass(frozen=True)
class Play:
    """blocks of keys through `stages`; early: producer and other consumer act as early as they can, else as late. overlap: every softmax
    but the first has p v of the block before beside it. types: the code is also read for a name whose type an if or a loop changes.
    turns: which of the two consumers the reader's is, where they issue their matmuls by turns."""

    blocks: int
    stages: int
    early: bool
    overlap: bool = False
    types: bool = False
    turns: int | None = None

    def __str__(self) -> str:
        return (
            f"{'' if self.turns is None else f'C = {self.turns}, '}"
            f"{self.blocks} block{'s' * (self.blocks > 1)}, {self.stages} stages, the other roles as "
            f"{'early' if self.early else 'late'} as can be"
        )

    def run(self, attend: Callable) -> str:
        """What comes of a reader's attend: RIGHT, or the first thing that goes wrong."""
        return Stage(self).run(attend)


class Stage:
    """One run of a Play."""

    def __init__(self, play: Play):
        self.play = play
        random = torch.Generator().manual_seed(play.blocks)
        draw = lambda *shape: torch.randn(*shape, generator=random, dtype=torch.float64)  # noqa: E731
        self.q, self.keys, self.values = draw(ROWS, D), draw(play.blocks, KEYS, D), draw(play.blocks, KEYS, D)
        self.full, self.empty = ring(play.stages, consumers=2)
        self.k, self.v = (
            [Tile(f"stage {i} of {name}", torch.full((KEYS, D), torch.nan).double()) for i in range(play.stages)] for name in "kv"
        )
        self.loaded = self.other = 0  # blocks that the producer has loaded, and the other consumer has used
        self.in_flight: list[Pending] = []
        self.issued = {"k": 0, "v": 0}
        self.softmaxes, self.p = 0, None  # softmaxes so far, and the p of the last
        self.scores_ahead = False  # whether q kᵀ of a later block was under way beside a softmax
        self.released = [0] * play.stages  # how often the reader has arrived at empty, by stage
        self.summed = 0  # blocks whose p v is done
        self.late = ""  # which stage was released later than it could be
        self.turns = [Barrier(1, f"turns[{c}]") for c in range(2)]
        self.asked = self.passed = 0  # turns that the reader has waited for, and passed on
        self.unasked = False  # whether consumer 0 took its first turn, for which a fresh barrier lets every wait pass, without a wait

    # ------------------------------------------------ the other roles

    def step(self) -> bool:
        """One block of the producer or of the other consumer; False where both must wait."""
        stage, turn = self.loaded % self.play.stages, self.loaded // self.play.stages
        if self.loaded < self.play.blocks and self.empty[stage].test_wait(1 - turn % 2):
            for tiles, source in ((self.k, self.keys), (self.v, self.values)):
                tiles[stage].value, tiles[stage].block = source[self.loaded], self.loaded
            self.full[stage].arrive()
            self.loaded += 1
            return True
        stage, turn = self.other % self.play.stages, self.other // self.play.stages
        if self.other < self.play.blocks and self.full[stage].test_wait(turn % 2) and self.others_turn():
            if self.k[stage].block != self.other:
                self.stop(f"the other consumer finds {held(self.k[stage])} in {self.k[stage].name}, where block {self.other} is due")
            self.empty[stage].arrive()
            self.other += 1
            if self.play.turns is not None and self.other > 1:
                self.turns[self.play.turns].arrive()
            return True
        return False

    def others_turn(self) -> bool:
        """Whether the other consumer may issue the matmuls of its next block."""
        c = self.play.turns
        return c is None or self.other == 0 or self.turns[1 - c].test_wait((self.other - (1 - c)) % 2)

    def others(self) -> None:
        while self.play.early and self.step():
            pass

    def stop(self, fault: str, cause: str = "") -> None:
        self.fault = verdict(fault, cause)
        raise Stop

    def why_nobody_arrives(self, barrier: Barrier) -> str:
        """The cause of a deadlock at `barrier`, as far as it can be told."""
        if any(barrier is one for one in self.turns):
            if barrier is not self.turns[self.play.turns]:
                return "consumer C waits for its own turn, at turns.index(C), and passes it on at turns.index(1 - C)"
            if self.asked > self.passed:
                return "you have not passed the turn on since you had it: arrive at turns.index(1 - C) once both matmuls are issued"
            if self.asked == self.play.blocks - 1:
                return "there is one turn for each block i ≥ 1, and none for the last p v"
            return "a consumer's parity flips from block to block, and in block 1 consumer 0 begins: its wait passes on a fresh barrier"
        if any(barrier is one for one in self.empty):
            return "a consumer waits for full[stage], and arrives at empty[stage]"
        stages = self.play.stages
        stage, round_of_ring = self.loaded % stages, self.loaded // stages
        if self.loaded < self.play.blocks and self.released[stage] < round_of_ring:
            return f"block {self.loaded} isn't loaded, since you haven't released block {self.loaded - stages}, which has its stage"
        return "nobody completes a phase of this parity: tile i's is i // STAGES % 2"

    def next_begins(self, what: str) -> None:
        """Note whether a block that nothing reads any more has not been released."""
        if self.summed > sum(self.released):
            self.late = self.late or f"block {self.summed - 1} is still not released at your next {what}, though its p v is done"

    # ------------------------------------------------ what the reader's code calls

    def wait(self, barrier: Barrier, phase: int, pred: bool = True) -> None:
        self.next_begins("mbarrier.wait")
        self.others()
        while pred and not barrier.test_wait(phase):
            if not self.step():
                has = f"{barrier.arrived} of the {barrier.count} arrivals of phase {barrier.phase}"
                fault = f"a deadlock: wait for {barrier.name}, parity {phase}, which has {has}, and nobody else arrives"
                self.stop(fault, self.why_nobody_arrives(barrier))
        if self.play.turns is not None and barrier is self.turns[self.play.turns]:
            late = self.unasked and not self.passed  # block 1's wait, after a matmul
            self.asked, self.unasked = self.asked + (not late), self.unasked and not late

    def arrive(self, barrier: Barrier, *, count: int = 1, pred: bool = True) -> None:
        if any(barrier is one for one in self.full):
            raise Wrong(f"you arrive at {barrier.name}, where the producer arrives: a consumer arrives at empty[stage]")
        if count > 1:
            raise Wrong(f"you arrive {count} times at {barrier.name}: each consumer arrives once, count=1")
        if any(barrier is one for one in self.turns):
            self.pass_turn(barrier)
        for _ in range(count if pred else 0):
            barrier.arrive()
            self.released = [n + (one is barrier) for n, one in zip(self.released, self.empty, strict=True)]
        self.others()

    def pass_turn(self, barrier: Barrier) -> None:
        block, fault = self.issued["k"] - 1, f"in block {self.issued['k'] - 1} you arrive at {barrier.name}"
        if barrier is self.turns[self.play.turns]:
            self.stop(fault, "your own turn: the other consumer waits at turns.index(1 - C)")
        if self.passed >= block:
            self.stop(f"{fault} again, or before q kᵀ is issued", "the turn is passed on once a block, when both matmuls are issued")
        if self.issued["v"] < block:
            self.stop(f"{fault} before p v of block {block - 1} is issued", "pass the turn on when both matmuls are issued")
        if len(self.in_flight) < 2:
            self.stop(f"{fault} after you have waited for a matmul", "pass the turn on as soon as both are issued, and then wait for them")
        self.passed += 1

    def take_turn(self, name: str) -> None:
        """Note a matmul that is issued without its turn."""
        block = self.issued["k"] - (name == "v")
        if name == "v" and block == self.play.blocks - 1 and self.passed == block:
            return  # after the loop
        turns = block - 1 + self.play.turns  # of the other's, which come before: block 0 takes none
        if block == 1 and not turns and not self.asked:
            self.asked, self.unasked = 1, True
        if block > 0 and (self.asked < block or (turns and self.other <= turns)):
            what = f"{'q kᵀ' if name == 'k' else 'p v'} of block {block - (name == 'v')} is issued in consumer {self.play.turns}'s block {block}"
            if self.asked < block:
                self.stop(f"{what}, and you have not waited for its turn", "in each block wait at turns.index(C) before the first matmul")
            self.stop(
                f"{what}, while it is still the other's turn",
                "the wait passes too early: its parity is that of a turn that is over. A turn comes once a block, and consumer 0 begins",
            )

    def matmul(self, a: Any, b: Any, acc: Any, *, use_acc: bool = True, is_async: bool = False) -> Any:
        if not isinstance(a, Tile | View | Operand):
            raise Wrong("warpgroup_mma's first operand is a tile of shared memory, or what left_operand gives")
        if not isinstance(b, Tile | View):
            raise Wrong("warpgroup_mma's second operand is a tile of shared memory")
        if a.value.shape[1] != b.value.shape[0]:
            sizes = f"{list(a.value.shape)} by {list(b.value.shape)} (the check's tiles are small)"
            raise Wrong(f"warpgroup_mma of {sizes}: the inner sizes differ. tile.permute((1, 0)) transposes a tile")
        tile = b.tile if isinstance(b, View) else b
        name = tile.name[-1]
        if name == "q":
            raise Wrong(
                "warpgroup_mma's second operand is q: the scores have queries as rows, so q is the first operand and k's tile the second"
            )
        if tile.block is None or tile.block != self.issued[name]:
            due = f"where block {self.issued[name]} is due" if self.issued[name] < self.play.blocks else "and all blocks have been read"
            self.stop(f"a matmul reads {tile.name}, which holds {held(tile)}, {due}", self.why_not_there(tile, name))
        if self.play.turns is not None:
            self.take_turn(name)
        self.issued[name] += 1
        self.next_begins("matmul")
        product = a.value @ b.value
        start = acc.value if isinstance(acc, Pending) else acc
        if start.shape != product.shape:
            raise Wrong("warpgroup_mma's third argument has the shape of the product: zeros for q kᵀ, acc for p v")
        pending = Pending(start + product if use_acc else product, tile, a)
        self.in_flight.append(pending)
        self.others()
        return pending if is_async else self.matmul_wait(0, [pending])

    def matmul_wait(self, num_outstanding: int = 0, deps: Sequence[Any] | None = None) -> Any:
        if not isinstance(deps, Sequence):
            raise Wrong("warpgroup_mma_wait takes a list of what it waits for, and returns it: s = warpgroup_mma_wait(0, [s])")
        self.others()
        while len(self.in_flight) > num_outstanding:
            done = self.in_flight.pop(0)
            self.summed += done.reads.name[-1] == "v"
            if done.reads.block != done.block:
                fault = f"block {done.reads.block} is loaded into {done.reads.name} while a matmul reads block {done.block} there"
                self.stop(fault, f"you release block {done.block} before you have waited for the matmul that reads it")
            if self.play.overlap and done.beside_softmax and isinstance(done.left, Operand) and not any(x is done.left for x in deps):
                if any(x is self.p for x in deps):
                    fault = f"the wait that ends p v of block {done.block} has the p of block {self.softmaxes - 1} among what it waits for"
                    self.stop(fault, "p in the list is the new block's, and p v reads the old one: keep that, and name the new one p_new")
                fault = f"the wait that ends p v of block {done.block} has no p among what it waits for"
                self.stop(fault, "p v reads p's registers until you have waited for it: wait for both, [acc, p]")
        found = [self.ready(x, num_outstanding) if isinstance(x, Pending) else x for x in deps]
        return found[0] if len(found) == 1 else tuple(found)

    def ready(self, x: Pending, num_outstanding: int) -> torch.Tensor:
        if x in self.in_flight:
            cause = "warpgroup_mma_wait(n, …) leaves up to n matmuls in flight, the last that were issued, and here yours is one of them"
            what = f"{'p v' if x.reads.name[-1] == 'v' else 'q kᵀ'} of block {x.block}"
            self.stop(f"warpgroup_mma_wait({num_outstanding}, …) returns {what}, which is still under way", cause)
        return x.value

    def why_not_there(self, tile: Tile, name: str) -> str:
        """Why `tile` doesn't hold the block that is due, as far as it can be told."""
        due = self.issued[name]
        if due >= self.play.blocks:
            return f"each block of {name} is read once"
        stage = due % self.play.stages
        if tile is not (self.k, self.v)["kv".index(name)][stage]:
            return f"block {due} lies in stage {stage}: block i in stage i % STAGES"
        if tile.block is not None and tile.block > due:
            return f"you have released block {due} before you read its {name}"
        return f"block {due} isn't there yet: no wait for its full barrier comes before, or one that passes too early"

    # ------------------------------------------------ the run

    def names(self) -> dict[str, Any]:
        """The names of Gluon and of hopper.ladder, and what stands for them."""

        def softmax_step(s, m, l, scale_log2):
            is_pending = self.play.overlap and isinstance(s, Pending) and s in self.in_flight
            later = len(self.in_flight) - 1 - self.in_flight.index(s) if is_pending else 0
            s = done(s, "s", later) * scale_log2
            self.next_begins("softmax_step")
            if self.play.turns is not None and self.asked >= self.issued["k"] > 1:
                block = self.issued["k"]
                self.stop(
                    f"you wait for the turn of block {block} before the softmax of block {block - 1}",
                    "a softmax needs no turn: wait for it right before the matmuls",
                )
            under_way = [(pending.reads.name[-1], pending.block) for pending in self.in_flight]
            before, self.softmaxes = self.softmaxes - 1, self.softmaxes + 1
            self.scores_ahead |= ("k", before + 2) in under_way
            for pending in self.in_flight:
                pending.beside_softmax = True
            if self.play.overlap and before >= 0 and ("v", before) not in under_way:
                fault = f"p v of block {before} is not under way when the softmax of block {before + 1} begins"
                if self.scores_ahead:
                    ahead = "beside a softmax you have q kᵀ of the next block under way, as chapter 8 tried. Here p v of the block before"
                    self.stop(f"{fault}, after q kᵀ of a later one was", f"{ahead} should be")
                self.stop(fault)
            m_new = torch.maximum(m, s.amax(1))
            p, alpha = torch.exp2(s - m_new[:, None]), torch.exp2(m - m_new)
            self.p = p
            return p, m_new, alpha * l + p.sum(1), alpha.as_subclass(Alpha)

        def left_operand(p, acc, dtype):
            if dtype is not Ring.dtype:
                raise Wrong("left_operand's dtype is v.dtype: both operands of a matmul have one dtype, and acc, l and s another")
            if isinstance(acc, Pending):
                raise Wrong("acc is a matmul that is under way, and has no layout for left_operand yet: wait for acc first")
            if getattr(acc, "ndim", 0) != 2:
                raise Wrong("left_operand takes p, acc and v.dtype: it lays p out for the matmul that adds to acc")
            self.next_begins("left_operand")
            return Operand(done(p, "p").double())

        def rescaled(acc, alpha):
            acc = done(acc, "acc")
            self.next_begins("rescaled")
            return acc * alpha.as_subclass(torch.Tensor)[:, None]

        for function in (softmax_step, left_operand, rescaled):
            function.__qualname__ = function.__name__  # as an error names it
        mbarrier = types.SimpleNamespace(wait=self.wait, arrive=self.arrive)
        return {
            "mbarrier": mbarrier, "warpgroup_mma": self.matmul, "warpgroup_mma_wait": self.matmul_wait, "softmax_step": softmax_step,
            "left_operand": left_operand, "rescaled": rescaled,
        }  # fmt: skip

    def run(self, attend: Callable) -> str:
        code = getattr(attend, "fn", attend)
        seen = {name: code.__globals__[name] for name in MODULES if name in code.__globals__} | self.names()
        seen["__builtins__"] = {name: getattr(builtins, name) for name in KNOWN} | {"NotImplementedError": NotImplementedError}
        plain = types.FunctionType(code.__code__, seen, code.__name__, code.__defaults__, code.__closure__)
        q = Tile("q", self.q)
        zeros, l, acc = (torch.zeros(*shape, dtype=torch.float64) for shape in ((ROWS, KEYS), (ROWS,), (ROWS, D)))
        rings = [Ring(name, stages) for name, stages in (("k", self.k), ("v", self.v), ("full", self.full), ("empty", self.empty))]
        by_turns = self.play.turns is not None
        rings += [Ring("turns", self.turns)] * by_turns
        more = (self.play.turns,) * by_turns
        try:
            result = plain(q, *rings, zeros, torch.full_like(l, -torch.inf), l, acc, SCALE_LOG2, self.play.blocks, *more)
        except Stop:
            return self.fault
        except NameError as error:
            if isinstance(error, UnboundLocalError) or error.name in code.__code__.co_varnames:
                raise
            known = f"of Python's functions it takes only {', '.join(KNOWN)}"
            raise Wrong(f"uses {error.name}, which Gluon's compiler refuses here: it sees this function alone, and {known}") from None
        except (ValueError, RuntimeError) as error:
            if "gluon.jit" in f"{error}" or "triton.jit" in f"{error}":
                raise Wrong("the check has no function of gl: softmax_step and rescaled compute, tile.permute((1, 0)) transposes") from None
            raise
        if not isinstance(result, tuple) or len(result) != 2:
            raise Wrong(f"returns {kind(result)}, want (l, acc)")
        l, acc = (done(x, name) for x, name in zip(result, ("l", "acc"), strict=True))
        if (l.shape, acc.shape) == ((ROWS, D), (ROWS,)):
            raise Wrong("returns (acc, l), want (l, acc)")
        s = SCALE_LOG2 * self.q @ self.keys.reshape(-1, D).T
        p = torch.exp2(s - s.amax(1, keepdim=True))
        for name, got, want in (("l", l, p.sum(1)), ("acc", acc, p @ self.values.reshape(-1, D))):
            if got.shape != want.shape or not torch.allclose(got, want):
                fault = f"{name} = {show(got)} instead of {show(want)}"
                if name == "l" and acc.shape == (ROWS, D) and torch.allclose(acc, p @ self.values.reshape(-1, D)):
                    return verdict(fault, "acc is right. softmax_step has rescaled l and added p's sum: return its last l as it is")
                return fault
        for stage, times in enumerate(self.released):
            if times != (want := len(range(stage, self.play.blocks, self.play.stages))):
                fault = f"arrivals of yours at empty[{stage}]: {times}, blocks in this stage: {want}"
                last = "each block's stage is released once, the last block's, too: the next rows of a kernel need it"
                return verdict(fault, last if times < want else "a stage is released more than once for a block")
        if by_turns and self.passed != self.play.blocks - 1:
            fault = f"you have passed the turn {self.passed} times in {self.play.blocks - 1} turns of consumer {self.play.turns}"
            return verdict(fault, "pass it on once a block, in the last block, too: the other consumer waits for it")
        if self.late:
            return verdict(self.late, "you release a stage late: once p v is done nothing reads it, and the producer waits for it")
        arguments = dict.fromkeys(code.__code__.co_varnames[: code.__code__.co_argcount], False)
        if self.play.types and (name := carried(attend.parse().body[0].body, arguments)):
            fault = f"{name} is a matmul under way at one end of an if or of a loop's body, and a tensor at the other"
            return verdict(fault, "an if or a loop can't change a type: issue the matmul and wait for it in one body")
        return RIGHT


Stage.wait.__qualname__, Stage.arrive.__qualname__ = "mbarrier.wait", "mbarrier.arrive"  # as an error names them
Stage.matmul.__qualname__, Stage.matmul_wait.__qualname__ = "warpgroup_mma", "warpgroup_mma_wait"


def carried(body: Sequence[ast.stmt], under_way: dict[str, bool]) -> str:
    """A name that becomes, or stops being, a matmul under way within an if or a loop, "" where there is none: its type changes there.

    under_way: the names bound before `body`, and after it those after; whether each is a matmul under way.
    """
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


def held(tile: Tile) -> str:
    return "nothing" if tile.block is None else f"block {tile.block}"


def done(x: Any, name: str, later: int = 0) -> torch.Tensor:
    """x, unless it is a matmul that was not waited for. later: how many matmuls issued after it may stay in flight."""
    if not isinstance(x, torch.Tensor):
        what = f"a {type(x).__name__}"
        if isinstance(x, Pending):
            names = f"{name}, p" if x.beside_softmax and isinstance(x.left, Operand) else name  # it reads p's registers as well
            what = f"a matmul that is under way: {names} = warpgroup_mma_wait({later}, [{names}])"
            what += " waits for it alone, and leaves in flight what was issued later" if later else ""
        raise Wrong(f"{name} is {what}")
    return x
