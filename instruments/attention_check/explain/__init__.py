"""Why an output is what it is: which arithmetic or mistake has this error, and the smallest call that shows it."""
