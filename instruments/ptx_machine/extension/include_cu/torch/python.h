#pragma once
#include <torch/csrc/utils/pybind.h>
