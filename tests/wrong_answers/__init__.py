"""Wrong answers, each with words that the grader's message must hold. One module a chapter."""

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
