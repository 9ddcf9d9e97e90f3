"""Exercises that grade themselves: check(id, answer), hint(id), solution(id), progress(), and answer(id, yours) to go on with."""

from fa_tutorial.exercises.calls import answer, check, hint, progress, solution

__all__ = ["answer", "check", "hint", "progress", "solution"]
