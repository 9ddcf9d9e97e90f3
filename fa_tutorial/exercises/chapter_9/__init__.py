"""The exercises of chapter 9: a ring's phases, its roles without deadlock, the longest rows first, a consumer's loop in Gluon, a meeting of two
consumers."""
