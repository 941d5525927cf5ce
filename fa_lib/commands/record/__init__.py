"""A session on a machine with a GPU: what only it can measure, step by step, into data/recorded."""
