"""A small transformer on a task that only attention can solve, to train with one attention or another from the same
seeds (chapters 7, 10, 11 and 14)."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend

from fa_tutorial import hardware
from fa_tutorial.bench import peers

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Setup:
    """Sizes of the model and of its training. half: tokens in the part that is repeated. positions: how large their
    embeddings are at first, where those of tokens are 1."""

    vocabulary: int
    half: int
    width: int
    heads: int
    layers: int
    batch: int
    steps: int
    learning_rate: float  # reached in a straight line over the first tenth of the steps
    positions: float = 0.02


# Chapter 7's, which learns by the interpreter in seconds: where a token lies is as plain as which it is.
QUICK = Setup(vocabulary=16, half=8, width=64, heads=2, layers=1, batch=4, steps=60, learning_rate=1e-2, positions=1.0)
# of chapters 11 and 14, whose copiers take their own steps and learning rate
SMALL = Setup(vocabulary=16, half=20, width=32, heads=2, layers=2, batch=2, steps=4, learning_rate=3e-3)


class Block(nn.Module):
    """Causal self-attention and an MLP, each behind a layer norm, added to the stream (B, S, width)."""

    def __init__(self, width: int, heads: int, attention: Attention):
        super().__init__()
        self.heads, self.attention = heads, attention
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Views of one matmul's result, (B, heads, S, D) each: nothing is copied.
        q, k, v = self.qkv(self.norm_1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm_2(x))


class TinyTransformer(nn.Module):
    """Token and position embeddings, `setup.layers` blocks, logits (B, S, vocabulary)."""

    def __init__(self, setup: Setup, attention: Attention):
        super().__init__()
        self.tokens = nn.Embedding(setup.vocabulary, setup.width)
        self.positions = nn.Parameter(setup.positions * torch.randn(2 * setup.half, setup.width))
        self.blocks = nn.Sequential(*(Block(setup.width, setup.heads, attention) for _ in range(setup.layers)))
        self.head = nn.Sequential(nn.LayerNorm(setup.width), nn.Linear(setup.width, setup.vocabulary))

    def forward(self, tokens: torch.Tensor, start: int = 0) -> torch.Tensor:
        """tokens: (B, S), at positions start … start + S − 1."""
        return self.head(self.blocks(self.tokens(tokens) + self.positions[start : start + tokens.shape[1]]))


def copy_batch(setup: Setup, generator: torch.Generator) -> torch.Tensor:
    """(B, 2 · half) tokens: a random half, then the same again. The second half can be known from the first, and from
    nothing else."""
    first = torch.randint(setup.vocabulary, (setup.batch, setup.half), generator=generator)
    return torch.cat([first, first], dim=1)


def train(attention: Attention, setup: Setup) -> list[float]:
    """The loss on the second half, in nats a token, at every step, from the same parameters, by the same batches."""

    def warm_up(optimiser: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: min(1.0, (step + 1) / (setup.steps / 10)))

    # seed 1: of 0 … 7, only 0 gives late bumps to the run whose dk lacks its scale, by chance
    return _trained(attention, setup, setup.steps, 1, setup.learning_rate, warm_up)[1]


def train_copier(attention: Attention, setup: Setup, seed: int = 0) -> TinyTransformer:
    """A model that has learned to copy, on some seconds of one CPU core: chapters 11 and 14 use it."""
    steps, threads = 500, torch.get_num_threads()
    torch.set_num_threads(1)  # for such small matrices, threads only wait for one another
    try:
        options = {"start_factor": 1.0, "end_factor": 0.05, "total_iters": steps}
        slower = functools.partial(torch.optim.lr_scheduler.LinearLR, **options)
        return _trained(attention, setup, steps, seed, 1e-2, slower)[0]
    finally:
        torch.set_num_threads(threads)


def _trained(
    attention: Attention, setup: Setup, steps: int, seed: int, learning_rate: float, schedule: Callable
) -> tuple[TinyTransformer, list[float]]:
    """The model, and its losses."""
    device = hardware.device()
    torch.manual_seed(seed)
    model = TinyTransformer(setup, attention).to(device)  # drawn on the CPU: the same on every machine
    optimiser = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    scheduler, batches, losses = schedule(optimiser), torch.Generator().manual_seed(seed), []
    for _ in range(steps):
        tokens = copy_batch(setup, batches).to(device)
        logits = model(tokens[:, :-1])[:, setup.half - 1 :]
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, setup.half :].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        scheduler.step()
        losses.append(loss.item())
    return model, losses


ATTENTIONS: dict[str, Attention] = {
    "sdpa_math": functools.partial(peers.sdpa(SDPBackend.MATH), is_causal=True),
    "sdpa_flash": functools.partial(peers.provider("sdpa_flash"), is_causal=True),
    "basic": functools.partial(peers.provider("basic"), is_causal=True),
}
