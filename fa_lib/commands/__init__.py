"""The commands of `fa-lib`, and what each does from its arguments to the files that it writes."""
