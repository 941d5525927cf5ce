"""The figures of the pages: one function each, from a tidy table to a matplotlib Figure."""
