"""Each question as a pure function from parameters to rows: what the notebooks sweep."""
