"""Wrong answers beside the mistakes that the exercises name themselves. One module a chapter.

Each is an edit of the exercise's solution, or (id, answer, words that the message must hold[, the words on a GPU, None where a compiled
kernel cannot show it]).
"""
