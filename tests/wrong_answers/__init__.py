"""Wrong answers, each with words that the message must hold. One module a chapter.

Chapters 0 to 4: (id, answer, words[, the words on a GPU, None where it cannot show]), and only what running shows, in which no twin can stand.
Chapters that are not converted yet: WrongAnswer, for every mistake.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class WrongAnswer:
    """diagnosis: words that the grader's message must hold for `answer`. on_gpu: the words where a compiled kernel's stray reads cannot be seen,
    if they are others."""

    id: str
    answer: Any
    diagnosis: str
    on_gpu: str | None = None
