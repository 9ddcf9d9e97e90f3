"""What 13.2 and 13.6 share: whole tensors, cut into shards for the routines that an answer makes, one a rank, and what these routines give."""

import inspect
from collections.abc import Callable

import torch

from fa_tutorial import reference, ring
from fa_tutorial.exercises.inputs import generator
from fa_tutorial.exercises.running import Wrong


def attend(q, k, v, is_causal=False):
    """(o, lse) of one tile in float64; scale 1/√D."""
    return reference.attention(q, k, v, is_causal)


MANY = 20  # with so many ranks, what a rank needs is far less than a whole sequence
HOLDS = "a rank holds as much as a whole sequence: use each shard and each part at once, and keep none, so that more ranks make room for a longer one"


def play(answer: Callable, tensors: tuple[torch.Tensor, ...], ranks: int, look: Callable = lambda *_: None) -> tuple[list, list[int]]:
    """What answer(*shards, ranks) returns on each rank, and the bytes that each sends: shards in plain order. look(message, the rank's shards) is
    called for each message. Wrong where it is no routine, and where many ranks hold a whole sequence each.
    """
    shards = [[x.clone() for x in mine] for mine in zip(*(x.chunk(ranks, dim=2) for x in tensors), strict=True)]
    routines = [answer(*mine, ranks) for mine in shards]
    if not all(map(inspect.isgenerator, routines)):
        raise Wrong("there is no yield in it: k, v = yield k, v sends k and v to the next rank, and receives those of the one before")

    def watched(routine, mine):
        received = None
        while True:
            try:
                message = routine.send(received)
            except StopIteration as stop:
                return stop.value
            look(message, mine)
            held = {
                x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() / x.itemsize for x in tensors_of(routine.gi_frame.f_locals)
            }
            if ranks == MANY and sum(held.values()) >= ranks * mine[0].numel():
                raise Wrong(HOLDS)
            received = yield message

    return ring.play(watched(routine, mine) for routine, mine in zip(routines, shards, strict=True))


def joined(results: list, names: tuple[str, ...]) -> tuple[torch.Tensor, ...]:
    """The results of all ranks as whole sequences: the sequence is dimension 2."""
    if not all(isinstance(result, tuple | list) and len(result) == len(names) for result in results):
        raise Wrong(f"each rank returns a tuple ({', '.join(names)})")
    return tuple(torch.cat([torch.as_tensor(x) for x in same], dim=2) for same in zip(*results, strict=True))


def draws(*shape: int, fresh: bool) -> list[torch.Tensor]:
    """q, k, v and do of one sequence, the same in each call unless fresh."""
    draw = generator() if fresh else torch.Generator().manual_seed(sum(shape))
    return [torch.randn(*shape, generator=draw, dtype=torch.float64) for _ in range(4)]


def tensors_of(value):
    """All tensors in lists, tuples and dicts."""
    if isinstance(value, tuple | list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from tensors_of(part)
    elif isinstance(value, torch.Tensor):
        yield value
