"""One file a check: what it measures of a kernel, a table, and the findings that are judged from it."""
