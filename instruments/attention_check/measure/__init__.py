"""A kernel measured as a black box: its errors, what it carries, what it should keep. No verdict."""
