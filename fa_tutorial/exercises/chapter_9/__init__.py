"""The exercises of chapter 9: a ring's phases, its roles without deadlock, a consumer's loop in Gluon, and one with p v under the softmax,
persistent roles, a meeting of two consumers."""
