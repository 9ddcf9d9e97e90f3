"""The exercises of chapter 9: a ring's phases, its roles without deadlock, a consumer's loop in Gluon, one with p v under the softmax, what
stamps say, a loop that takes turns, persistent roles, consumers of the backward that meet, the order of a block of the backward."""
