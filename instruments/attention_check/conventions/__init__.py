"""Which attention an output is of: conventions that people mean by the word, and a search over them."""
