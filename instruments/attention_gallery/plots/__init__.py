"""The figures of the gallery: one function each, from a tidy table to a matplotlib Figure."""
