"""The same machine, compiled: most instructions on LLVM's vectors of 32 lanes. A function that emits an instruction
raises NotNative where it is not compiled: the numpy machine then executes the instruction."""
