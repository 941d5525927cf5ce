"""Beside every number that a GPU kernel computes, shadows of it in float64: what it would be if chosen source lines
made no rounding error. attention_check.gpu.blame is made of them."""
