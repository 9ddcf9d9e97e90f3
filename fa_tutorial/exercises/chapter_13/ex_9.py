from dataclasses import dataclass

import torch

from fa_tutorial.exercises.harness import Exercise, case
from fa_tutorial.exercises.running import Wrong, adapting, kind
from fa_tutorial.source import globals_of


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


MISTAKES = {
    "what comes is never used: the next tile is that of the keys that came": ("            kv = coming\n", ""),
    "its own keys are sent in each step: pass on what came": [("    tiles = []\n", "    tiles, own = [], kv\n"), ("isend(kv", "isend(own")],
    "the last keys that come have no tile": ("    for step in range(ranks):\n", "    for step in range(ranks - 1):\n"),
    "only the last tile is left: return them all, in the order of the steps": ("tiles.append(tile(kv))", "tiles = [tile(kv)]"),
}  # fmt: skip


@dataclass(eq=False)
class Message:
    """What a rank has started to send or to receive. was: what it sends, as it was then; None for a receive."""

    link: "Link"
    x: torch.Tensor
    was: torch.Tensor | None
    number: int

    def wait(self) -> bool:
        link, is_send = self.link, self.was is not None
        partner = link.receives if is_send else link.sends
        if len(partner) <= self.number:
            why = "is taken before it has started to receive" if is_send else "comes before it has started to send"
            raise Wrong(f"deadlock: {link.words} waits until a message {why}, as all ranks do")
        if self in link.open:
            link.open.remove(self)
            if is_send and not self.x.equal(self.was):
                raise Wrong(f"{link.words} changes what it sends before wait() has returned: the next rank may get either")
            if not is_send:
                self.x.copy_(partner[self.number].was.roll(-1))
        return True


class Link:
    """torch.distributed for one rank, where all ranks do the same: what comes is what this rank sends, of the rank before.
    Keys are [ranks] of one dtype, 1 at their owner. What goes wrong on some machine at some time goes wrong here each time."""

    def __init__(self, rank: int, ranks: int, dtype: torch.dtype) -> None:
        self.ranks, self.dtype, self.tiles, self.words = ranks, dtype, 0, f"rank {rank} of {ranks}"
        self.sends, self.receives, self.open = [], [], []
        self.get_rank, self.get_world_size = lambda: rank, lambda: ranks
        self.isend = lambda tensor, dst: self.start(tensor, self.sends, f"sends to rank {dst}", dst, (rank + 1) % ranks)
        self.irecv = lambda tensor, src: self.start(tensor, self.receives, f"receives from rank {src}", src, (rank - 1) % ranks)
        self.send = lambda tensor, dst: self.isend(tensor, dst).wait()
        self.recv = lambda tensor, src: self.irecv(tensor, src).wait()
        self.P2POp = lambda op, tensor, peer: (op, tensor, peer)
        self.batch_isend_irecv = lambda operations: [op(tensor, peer) for op, tensor, peer in operations]

    def start(self, x, started, does, peer, right) -> Message:
        is_send = started is self.sends
        if peer != right:
            raise Wrong(f"{self.words} {does}, want {right}: keys go to rank + 1, and from the last rank to rank 0")
        if len(started) == self.ranks - 1:
            raise Wrong(f"{self.words} {does} more than ranks − 1 times: kv needn't travel after the last tile")
        if (x.dtype, x.numel()) != (self.dtype, self.ranks):
            raise Wrong(f"{self.words} {does} with a tensor unlike kv: what comes has kv's shape and dtype, as torch.empty_like(kv) has")
        if any(overlap(x, other.x) for other in self.open if not is_send or other.was is None):
            raise Wrong(f"{self.words} {does} with a tensor of a message that is still on its way: wait for that first")
        started.append(Message(self, x, x.clone() if is_send else None, len(started)))
        self.open.append(started[-1])
        if not is_send:
            x.fill_(torch.nan if x.is_floating_point() else -1)  # from now on it may hold anything
        return started[-1]

    def tile(self, kv) -> torch.Tensor:
        if any(overlap(kv, message.x) and message.was is None for message in self.open):
            raise Wrong(f"{self.words} computes with what is still being received: wait for it first")
        for way, is_receive in (("leaves", False), ("comes", True)):
            if self.tiles < self.ranks - 1 and is_receive not in [message.was is None for message in self.open]:
                raise Wrong(f"no message {way} beside tile {self.tiles} of {self.words}: start one before the tile, and wait after it")
        self.tiles += 1
        return 2 * kv


def overlap(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Of two tensors without gaps."""
    return x.data_ptr() < y.data_ptr() + y.nbytes and y.data_ptr() < x.data_ptr() + x.nbytes


def truth(ranks, dtype):
    return tuple(tuple((rank - step) % ranks for step in range(ranks)) for rank in range(ranks))


@adapting
def adapt(answer, ranks, dtype):
    """The answer on each rank: whose keys it computes with, in order."""
    met = []
    for link in [Link(rank, ranks, dtype) for rank in range(ranks)]:
        tiles = answer(torch.eye(ranks, dtype=dtype)[link.get_rank()], link, link.tile)
        if not isinstance(tiles, tuple | list) or not all(torch.is_tensor(x) and x.sum() == 2 for x in tiles):
            raise Wrong(f"returns {kind(tiles)}, want a list of what tile gave, one for each rank")
        if link.open:
            raise Wrong(f"{link.words} never waits for something that it has started: it may not be done when the function returns")
        met.append(tuple(int(x.argmax()) for x in tiles))
    return tuple(met)


def inputs():
    for ranks, dtype in ((2, torch.float32), (3, torch.bfloat16), (4, torch.int64), (7, torch.float32), (1, torch.float32)):
        yield case(ranks, dtype, on=f"{ranks} rank{'s' * (ranks > 1)}, {dtype}", edge="alone" if ranks == 1 else "")


EXERCISE = Exercise(
    task="Write a rank's sends and receives over torch.distributed, each beside a tile.",
    conditions={"alone": "one rank has one tile, and sends nothing"},
    hints=(
        "In which order do isend, irecv, tile and the two waits come, so that nobody waits for ever, and the messages travel during the tile?",
        "Start both, compute the tile, and wait for both. Meanwhile kv is being sent and computed with. So where does the next kv arrive?",
        "coming = torch.empty_like(kv) is new room in each step. After both waits it becomes kv. The last step starts nothing.",
    ),
    solution=pass_around,
    reasoning="Both are started before anybody waits, so every message is taken. Between start and wait, kv is only read and `coming` only written, and the tile is "
    "computed. After both waits `coming` is the next kv. The last keys needn't travel on.",
    more="Two shards' room is enough. The package's version, ring.Passing, starts several tensors at once, and says which rank is missing.",
    inputs=inputs,
    truth=truth,
    rule="for each rank, whose keys its tiles are of: its own first, and then those that come",
    mistakes=MISTAKES,
    exact=True,
    adapt=adapt,
    refused=lambda answer: "; ".join(f"other processes run your function alone: define {name} in it" for name in globals_of(answer) if name != "torch"),
)  # fmt: skip
