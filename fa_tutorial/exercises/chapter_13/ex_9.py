from typing import NamedTuple

import torch

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.running import Wrong, adapting


def pass_around(kv, dist, tile):
    """[tile(kv) of this rank's own keys, of the next ones that come, …], one for each rank.

    kv may be overwritten: the caller has another copy.
    dist: torch.distributed, with get_rank(), get_world_size(), isend and irecv.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    tiles = []
    for step in range(ranks):
        if step < ranks - 1:
            coming = torch.empty_like(kv)
            works = dist.isend(kv, (rank + 1) % ranks), dist.irecv(coming, (rank - 1) % ranks)
        tiles.append(tile(kv))
        if step < ranks - 1:
            for work in works:
                work.wait()
            kv = coming
    return tiles


LAST, START = "            kv = coming\n", "works = dist.isend(kv, (rank + 1) % ranks), dist.irecv(coming, (rank - 1) % ranks)"
MISTAKES = {
    "what comes is never used: the next tile is that of the keys that came": (LAST, ""),
    "its own keys are sent in each step: pass on what came": [("    tiles = []\n", "    tiles, own = [], kv\n"), ("isend(kv", "isend(own")],
    "the last keys that come have no tile": ("    for step in range(ranks):\n", "    for step in range(ranks - 1):\n"),
    "the own keys have no tile": ("return tiles", "return tiles[1:]"),
    "only the last tile is left: return them all, in the order of the steps": ("tiles.append(tile(kv))", "tiles = [tile(kv)]"),
}  # fmt: skip


class Started(NamedTuple):
    """A message that somebody has started, with what it sends as it was then; wait() ends it."""

    link: "Link"
    x: torch.Tensor
    was: torch.Tensor | None  # None: a receive
    number: int

    def wait(self) -> bool:
        return self.link.wait(self)


class Link:
    """torch.distributed for one rank, where all ranks do the same: what comes is what this rank sends, of the rank before.

    Keys are [ranks], 1 at their owner. What goes wrong on some machine at some time goes wrong here each time.
    """

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self.sends, self.receives, self.open = [], [], []
        self.tiles = 0
        self.words = f"rank {rank} of {ranks}"

    def get_rank(self, group=None) -> int:
        return self.rank

    def get_world_size(self, group=None) -> int:
        return self.ranks

    def isend(self, x, dst, group=None, tag=0) -> Started:
        return self.start(x, dst, self.sends, "send", "to", "keys travel to rank + 1, and from the last rank to rank 0")

    def irecv(self, x, src, group=None, tag=0) -> Started:
        return self.start(x, src, self.receives, "receive", "from", "keys come from rank − 1, and to rank 0 from the last rank")

    def send(self, x, dst, group=None, tag=0) -> None:
        self.isend(x, dst).wait()

    def recv(self, x, src, group=None, tag=0) -> None:
        self.irecv(x, src).wait()

    def P2POp(self, op, tensor, peer, group=None, tag=0):
        return op, tensor, peer

    def batch_isend_irecv(self, operations) -> list[Started]:
        return [op(tensor, peer) for op, tensor, peer in operations]

    def start(self, x, peer, started, verb, way, why) -> Started:
        is_send = verb == "send"
        if not isinstance(x, torch.Tensor):
            raise Wrong(f"{self.words} {verb}s a {type(x).__name__}: a message is a tensor")
        if peer != (self.rank + (1 if is_send else -1)) % self.ranks:
            which = f"{way} rank {peer}{'' if peer in range(self.ranks) else ', which does not exist'}"
            raise Wrong(f"{self.words} {verb}s {which}: {why}")
        if len(started) == self.ranks - 1:
            raise Wrong(f"{self.words} {verb}s more than ranks − 1 times: kv needn't travel after the last tile")
        if any(overlap(x, work.x) for work in self.open if not (is_send and work.was is not None)):
            what = "sends what is still being received: wait for it first"
            raise Wrong(
                f"{self.words} {what if is_send else 'receives into a tensor from which, or into which, another message is on its way'}"
            )
        work = Started(self, x, x.clone() if is_send else None, len(started))
        started.append(work)
        self.open.append(work)
        if not is_send:
            x.fill_(torch.nan)  # from now on it may hold anything
        return work

    def wait(self, work: Started) -> bool:
        if not any(work is one for one in self.open):
            return True
        is_send = work.was is not None
        partner = self.receives if is_send else self.sends
        if len(partner) <= work.number:
            waits, not_yet = ("until its message is taken", "receive") if is_send else ("for what comes", "send")
            raise Wrong(
                f"deadlock: {self.words} waits {waits} before it has started to {not_yet}. Where all ranks do so, they wait for ever"
            )
        if is_send and not work.x.equal(work.was):
            raise Wrong(f"{self.words} changes what it sends before wait() has returned: the next rank may get either")
        if not is_send:
            work.x.copy_(partner[work.number].was.roll(-1))
        self.open = [one for one in self.open if one is not work]
        return True

    def tile(self, kv) -> torch.Tensor:
        if any(overlap(kv, work.x) for work in self.open if work.was is None):
            raise Wrong(f"{self.words} computes with what is still being received: wait for it first")
        if self.tiles < self.ranks - 1 and (missing := self.missing()):
            raise Wrong(f"tile {self.tiles} of {self.words} has {missing}")
        self.tiles += 1
        return 2 * kv

    def missing(self) -> str:
        """Which message isn't on its way now, the one that leaves or the one that comes, and what to do; "" for neither."""
        absent, late, early = [], [], False
        for verb, which, started, is_receive in (("send", "leaves", self.sends, False), ("receive", "comes", self.receives, True)):
            if not any((work.was is None) == is_receive for work in self.open):
                absent.append(f"no message that {which}")
                late += [f"to {verb}"] * (len(started) <= self.tiles)
                early |= len(started) > self.tiles
        how = [f"start {' and '.join(late)} before it"] * bool(late) + ["wait only after it"] * early
        return f"{' and '.join(absent)} beside it: {', and '.join(how)}" if absent else ""

    def ended(self) -> None:
        if self.open:
            kind = "receives" if self.open[0].was is None else "sends"
            raise Wrong(f"{self.words} never waits for something that it {kind}: it may not have been done when the function returns")


def overlap(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Of two tensors without gaps."""
    return x.data_ptr() < y.data_ptr() + y.nbytes and y.data_ptr() < x.data_ptr() + x.nbytes


def truth(ranks):
    return tuple(tuple((rank - step) % ranks for step in range(ranks)) for rank in range(ranks))


@adapting
def adapt(answer, ranks):
    """The answer on each rank: whose keys it computes with, in order."""
    met = []
    for rank in range(ranks):
        link = Link(rank, ranks)
        tiles = answer(torch.eye(ranks)[rank], link, link.tile)
        if not isinstance(tiles, tuple | list) or not all(isinstance(x, torch.Tensor) and x.shape == (ranks,) for x in tiles):
            raise Wrong("it returns a list of what tile gave, one for each rank")
        if not all(x.max() == 2 for x in tiles):
            raise Wrong("its list holds keys themselves, where what tile gave for them is due")
        link.ended()
        met.append(tuple(int(x.argmax()) for x in tiles))
    return tuple(met)


def inputs():
    for ranks in (2, 3, 4, 7):
        yield case(
            ranks, on=f"{ranks} ranks", otherwise="for each rank, whose keys its tiles are of: its own first, and then those that come"
        )
    yield case(1, on="1 rank", edge="alone", otherwise="one rank has one tile, and sends nothing")


EXERCISE = Exercise(
    task="Write a rank's sends and receives over torch.distributed, each beside a tile.",
    conditions={"alone": "with one rank nothing is sent"},
    hints=(
        "In which order do isend, irecv, tile and the two waits come, so that nobody waits for ever, and the messages travel during the tile?",
        "Start both, compute the tile, and wait for both. Meanwhile kv is being sent and computed with. So where does the next kv arrive?",
        "coming = torch.empty_like(kv) is new room in each step. After both waits it becomes kv. The last step starts nothing.",
    ),
    solution=pass_around,
    reasoning="Both are started before anybody waits, so every message is taken. Between start and wait, kv is only read and `coming` only written, and the tile is "
    "computed. After both waits `coming` is the next kv. The last keys needn't travel on.",
    more="The package's version, ring.Passing, starts several tensors at once, and says which rank is missing.",
    inputs=inputs,
    truth=truth,
    rule="a rank computes with its own keys, and then with those that come, in the order in which they come",
    mistakes=MISTAKES,
    exact=True,
    adapt=adapt,
)  # fmt: skip
