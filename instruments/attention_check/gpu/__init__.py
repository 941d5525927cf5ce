"""Kernels of the user's and FlashAttention-2's own, run by the PTX machine in a GPU's arithmetic."""
