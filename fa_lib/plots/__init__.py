"""The figures: one function each, from a tidy table to a matplotlib Figure."""
