#include "$header"
const void * chosen[] = {$kernels};
extern "C" __device__ int configuration[] = {$configuration};
