"""Wrong answers that only running shows, in which no twin can stand: (id, answer, words that the message must hold[, the words on a GPU, None where it cannot show])."""
