"""The text-to-image study: does the deviation of an attention kernel reach the weights, and is it large there?"""
