// Of torch for .cu files: tensors and their functions, autograd. Without operators, nn, optim, data, jit and serialize,
// nvcc's passes take half the time. A file that does not compile with this is compiled with torch's own.
#pragma once
#include <torch/types.h>
#include <torch/autograd.h>
#include <torch/cuda.h>
#include <torch/utils.h>
