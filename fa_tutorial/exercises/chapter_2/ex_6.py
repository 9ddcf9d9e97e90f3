import random

import torch

from fa_tutorial.exercises.harness import Exercise, case


def sectors(strides, tile, itemsize, start=0):
    """How many sectors of 32 bytes a tile touches.

    strides: (stride_r, stride_c), in elements. tile: (rows, columns). itemsize: bytes per element.
    start: where its first element lies, in elements from the beginning of a sector.
    """
    r, c = torch.arange(tile[0])[:, None], torch.arange(tile[1])[None, :]
    offsets = start + r * strides[0] + c * strides[1]  # (2.1), in elements
    return (offsets * itemsize // 32).unique().numel()


MISTAKES = {
    "you take 8 elements for a sector, which is right for 4 bytes an element only: 32 // itemsize fit": (
        "offsets * itemsize // 32", "offsets // 8"),
    "you divide each part of an offset by itself, but a row that starts inside a sector may reach into the next: add them first": (
        "offsets * itemsize // 32", "start * itemsize // 32 + r * strides[0] * itemsize // 32 + c * strides[1] * itemsize // 32"),
    "start changes nothing in your count: add it to the offset before you divide, as a tile that begins inside a sector may touch one more": (
        "start + r", "r"),
    "start counts elements, and you add it as bytes": [
        ("start + r", "r"), ("offsets * itemsize // 32", "(start + offsets * itemsize) // 32")],
    "you count the elements that differ: several of them share a sector": ("offsets * itemsize // 32", "offsets"),
    "that is how many sectors the bytes would fill if they lay side by side: count those that are touched": (
        "(offsets * itemsize // 32).unique().numel()", "-(-tile[0] * tile[1] * itemsize // 32)"),
    "the two strides are exchanged, or the tile's two sides": ("r * strides[0] + c * strides[1]", "r * strides[1] + c * strides[0]"),
    "128 bytes are a cache line, and a sector has 32": ("// 32", "// 128"),
    "you divide elements by 32: a sector has 32 bytes, so multiply the offset by itemsize first": ("offsets * itemsize // 32", "offsets // 32"),
}  # fmt: skip


def inputs():
    yield case((100, 1), (1, 8), 4, 0, otherwise="eight floats side by side fill one sector")
    yield case((1, 100), (1, 32), 4, 0, otherwise="32 floats that lie 100 apart touch 32 sectors, and those between them aren't touched")
    yield case((4, 1), (4, 2), 4, 0, otherwise="four rows that lie 16 bytes apart share sectors of 32 bytes two by two, so they touch 2")
    yield case((4, 1), (2, 8), 4, 0, otherwise="a row that starts inside a sector reaches into the next: add the offsets, then divide")
    yield case((40, 1), (4, 32), 2, 0, otherwise="16 fp16 numbers fill a sector")
    yield case((64, 1), (4, 32), 4, 3, otherwise="a row that starts inside a sector ends inside another one")
    yield case((64, 1), (1, 16), 2, 1, otherwise="start counts elements: here it is 2 bytes")
    yield case((64, 3), (1, 3), 2, 29, otherwise="start counts elements, whatever the strides: here it is 58 bytes")
    for _ in range(20):
        tile = (random.choice((1, 4, 16)), random.choice((1, 8, 32)))
        strides = random.sample((1, random.randint(2, 12), random.randint(30, 200)), 2)
        yield case(tuple(strides), tile, random.choice((1, 2, 4, 8)), random.randint(0, 40), on="a random tile", fresh=True)


EXERCISE = Exercise(
    task="Count the sectors of memory that a tile touches.",
    hints=(
        "Where does element (r, c) of the tile lie, in elements and in bytes? In which sector is that byte?",
        "By (2.1) it lies start + r · stride_r + c · stride_c elements from the beginning. Times itemsize, divided by 32 and rounded "
        "down, that is its sector's number. Count how many different numbers there are.",
    ),
    solution=sectors,
    reasoning="Memory delivers whole sectors, so what counts is how many different ones the tile's elements lie in. A tile whose elements "
    "are neighbours uses every byte of them.",
    inputs=inputs,
    truth=lambda strides, tile, itemsize, start: len(
        {(start + r * strides[0] + c * strides[1]) * itemsize // 32 for r in range(tile[0]) for c in range(tile[1])}
    ),
    rule="the sector of an element is its offset in bytes over 32, rounded down; count the different ones",
    mistakes=MISTAKES,
    exact=True,
)
