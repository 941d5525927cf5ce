"""Number formats, rounding, sums in the orders that hardware uses, and measures of error. It knows no attention."""
