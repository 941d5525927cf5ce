"""Somebody's kernel, tensors or model, judged."""
