"""The same machine, compiled: what most instructions do, as LLVM's vectors of 32 lanes."""
