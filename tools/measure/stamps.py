"""Chapter 9: what the stamps of a kernel's consumers say, chapter_9.STAMPS of each block by the SM's clock."""

from collections.abc import Iterable, Sequence

import torch

from fa_tutorial import hardware

hardware.require_triton("Chapter 9's measurements")
from fa_tutorial.bench.chapter_9 import STAMPS  # noqa: E402


def completed(stamps: torch.Tensor) -> torch.Tensor:
    """Stamps, [..., n], in which one that a loop doesn't store is the one before it."""
    stamps = stamps.clone()
    for n in range(1, stamps.shape[-1]):
        stamps[..., n] = torch.where(stamps[..., n] == 0, stamps[..., n - 1], stamps[..., n])
    return stamps


def mean_parts(blocks: torch.Tensor, names: Sequence[str] = STAMPS) -> dict[str, int]:
    """The mean cycles from each of `names` to the next, of the first n that `blocks` has: [programs,
    consumers, blocks, n]."""
    until_next = torch.cat([blocks[:, :, :-1], blocks[:, :, 1:, :1]], dim=3).double().diff(dim=3)
    return dict(zip(names, until_next.mean((0, 1, 2)).round().int().tolist(), strict=False))


def of_the_usual(blocks: torch.Tensor) -> list:
    """The stamps of four blocks, and of the next one, of the program whose blocks take the mean time."""
    each = (blocks[:, :, 1:, 0] - blocks[:, :, :-1, 0]).double().mean((1, 2))
    shown = blocks[(each - each.mean()).abs().argmin(), :, 4:9]
    return (shown - shown.min()).tolist()


def softmax_at_once(alive: torch.Tensor) -> list[float]:
    """The share of the time in which 0, 1, … of one SM's consumers are at a softmax. alive: their stamps, [consumers,
    blocks, n]."""
    times = torch.arange(int(alive[:, 0, 1].max()), int(alive[:, -1, 3].min()), 7)
    begun, ended = (
        torch.stack([torch.searchsorted(of[:, n].contiguous(), times, right=True) for of in alive]) for n in (2, 3)
    )
    at_once = (begun > ended).sum(0)
    return [(at_once == n).double().mean().item() for n in range(len(alive) + 1)]


def mean_shares(groups: Iterable[torch.Tensor]) -> list[float]:
    """The mean of softmax_at_once over these groups of consumers, each of as many."""
    return torch.tensor([softmax_at_once(of) for of in groups], dtype=torch.float64).mean(0).round(decimals=3).tolist()
