"""The exercises of chapter 9: a ring's phases, its roles without deadlock, a consumer's loop in Gluon, the longest rows first, a meeting of
two consumers."""
