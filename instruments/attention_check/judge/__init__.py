"""Measurements to findings: what counts, against which limit. No sentence."""
