"""The commands check, explain, compare, shrink and blame, each from its arguments to the files that it writes."""
