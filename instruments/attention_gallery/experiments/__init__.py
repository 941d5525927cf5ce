"""Questions to kernels of other projects, each a pure function from parameters to rows."""
