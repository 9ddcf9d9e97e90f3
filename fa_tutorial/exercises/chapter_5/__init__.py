"""The exercises of chapter 5: a tile by its strides, the forward kernel, causal, grouped heads and the log-sum-exp."""

from fa_tutorial.exercises.chapter_5.old import *  # noqa: F403  (chapters 7 and 8 use it until they are converted)
