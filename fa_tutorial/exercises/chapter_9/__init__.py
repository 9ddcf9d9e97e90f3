"""The exercises of chapter 9: a ring's phases, its roles without deadlock, the longest rows first, registers for each role, a
meeting of two consumers."""
