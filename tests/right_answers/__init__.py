"""Right answers written in another way than the solutions: none may be refused. One module a chapter."""
