"""Wrong answers that only running shows, so that no twin can stand for them. One module a chapter.

Each is an edit of the exercise's solution, or (id, answer, words that the message must hold[, the words on a GPU, None where a compiled
kernel cannot show it]).
"""
