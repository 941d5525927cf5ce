#pragma once
#include "one_device.h"
