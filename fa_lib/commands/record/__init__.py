"""A session on a machine with a GPU: step by step it measures what only a GPU shows, into data/recorded."""
