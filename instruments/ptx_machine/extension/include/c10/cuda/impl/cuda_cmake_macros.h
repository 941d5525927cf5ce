#pragma once  // a build of torch without CUDA lacks this file; c10/cuda/CUDAMacros.h includes it
