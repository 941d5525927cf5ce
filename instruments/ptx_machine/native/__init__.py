"""The same machine, compiled: most instructions on LLVM's vectors of 32 lanes."""
