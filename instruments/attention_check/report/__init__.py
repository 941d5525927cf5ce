"""Findings to sentences, tables and a page. No decision."""
