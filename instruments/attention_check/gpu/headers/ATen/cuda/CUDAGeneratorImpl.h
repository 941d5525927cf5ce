// See UnpackRaw.cuh.
#pragma once
#include <ATen/cuda/detail/UnpackRaw.cuh>
