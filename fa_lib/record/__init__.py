"""Half an hour with a GPU: what is measured there, in order of value."""
