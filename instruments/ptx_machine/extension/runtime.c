/* CUDA's runtime for an extension on a machine without a GPU. It is linked into each extension with hidden names, so that
   a libcudart that torch has loaded is never asked. Launches, memory and variables are Python's: runtime.py. */
#include <cuda_runtime_api.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#define VISIBLE __attribute__((visibility("default")))
#define DEFAULT_SHARED (48 << 10) /* bytes that a block may have without cudaFuncSetAttribute */

typedef struct { /* as _Answers in runtime.py */
  int (*launch)(int image, const char *name, const unsigned *sizes, void **arguments, size_t shared, size_t limit);
  void *(*allocate)(size_t size);
  int (*release)(void *address);
  void *(*variable)(int image, const char *name);
  int (*occupancy)(int image, const char *name, int threads, size_t shared, int *used);
  int most_shared, processors, capability;
  const char *name;
  size_t memory;
  int cache;
} Answers;
typedef struct { const void *host; const char *name; int image; size_t shared; } Symbol; /* a kernel, or a variable */
typedef struct { dim3 grid, block; size_t shared; void *stream; } Configuration;

static Answers python;
static const void *images[256];
static Symbol kernels[8192], variables[4096];
static Configuration pending[64];
static int image_count, kernel_count, variable_count, depth;
static cudaError_t last;
static int unseen; /* a launch failed, and nobody has asked since */
static char reason[2000]; /* why the first launch of a call failed */

VISIBLE int ptx_machine_connect(const Answers *answers) { python = *answers; return image_count; }
VISIBLE const void *ptx_machine_image(int index) { return images[index]; }
VISIBLE int ptx_machine_unseen(void) {
  int before = unseen;
  unseen = 0;
  if (reason[0]) reason[0] = 0, signal(SIGABRT, SIG_DFL);
  if (before) last = cudaSuccess;
  return before;
}

/* The extension may end the process before Python raises the error, which are the last words on stderr then. */
__attribute__((destructor)) static void last_words(void) {
  if (reason[0]) fprintf(stderr, "%s\n", reason), fflush(stderr);
}
static void aborted(int number) { last_words(), signal(number, SIG_DFL), raise(number); }
VISIBLE void ptx_machine_failed(const char *text) {
  snprintf(reason, sizeof reason, "%s", text);
  signal(SIGABRT, aborted);
}

static cudaError_t answer(cudaError_t error) {
  if (error) last = error;
  return error;
}
static Symbol *find(Symbol *symbols, int count, const void *host) {
  for (int i = 0; i < count; i++)
    if (symbols[i].host == host || (const void *)&symbols[i] == host) return symbols + i;
  return NULL;
}

/* what the code that nvcc makes calls by itself, before main and at each <<<>>> */
void **__cudaRegisterFatBinary(void *wrapper) {
  images[image_count] = ((const void **)wrapper)[1]; /* behind its magic number and version */
  return (void **)&images[image_count++];
}
void __cudaRegisterFatBinaryEnd(void **handle) {}
void __cudaUnregisterFatBinary(void **handle) {}
char __cudaInitModule(void **handle) { return 0; }
static int image_of(void **handle) { return (int)((const void **)handle - images); }
void __cudaRegisterFunction(void **handle, const char *host, char *stub, const char *name, int limit, void *thread,
                            void *block_id, void *block, void *grid, int *warp) {
  kernels[kernel_count++] = (Symbol){host, name, image_of(handle), DEFAULT_SHARED};
}
void __cudaRegisterVar(void **handle, char *host, char *address, const char *name, int external, size_t size, int constant,
                       int global) {
  variables[variable_count++] = (Symbol){host, name, image_of(handle), 0};
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
  pending[depth++] = (Configuration){grid, block, shared, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  Configuration *top = &pending[--depth];
  *grid = top->grid, *block = top->block, *shared = top->shared, *(void **)stream = top->stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(void **kernel, const void *host) {
  return (*kernel = find(kernels, kernel_count, host)) ? cudaSuccess : answer(cudaErrorInvalidDeviceFunction);
}

/* launches */
cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
  Symbol *kernel = find(kernels, kernel_count, host);
  unsigned sizes[] = {grid.x, grid.y, grid.z, block.x, block.y, block.z};
  cudaError_t error = kernel ? python.launch(kernel->image, kernel->name, sizes, arguments, shared, kernel->shared)
                             : cudaErrorInvalidDeviceFunction;
  if (error) unseen = 1;
  return answer(error);
}
cudaError_t __cudaLaunchKernel(void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared, void *stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared, (cudaStream_t)stream);
}
cudaError_t cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute attribute, int value) {
  Symbol *kernel = find(kernels, kernel_count, host);
  if (!kernel) return answer(cudaErrorInvalidDeviceFunction);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || value > python.most_shared) return answer(cudaErrorInvalidValue);
  kernel->shared = value > DEFAULT_SHARED ? value : DEFAULT_SHARED;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *host, int threads, size_t shared) {
  Symbol *kernel = find(kernels, kernel_count, host);
  int used[2]; /* as below */
  *blocks = kernel ? python.occupancy(kernel->image, kernel->name, threads, shared, used) : -1;
  return *blocks < 0 ? answer(cudaErrorInvalidDeviceFunction) : cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *host, int threads, size_t shared,
                                                                   unsigned flags) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, host, threads, shared);
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *p, const void *host) {
  Symbol *kernel = find(kernels, kernel_count, host);
  int used[2] = {0}; /* registers of a thread, bytes of static shared memory of a block */
  if (!kernel || python.occupancy(kernel->image, kernel->name, 32, 0, used) < 0) return answer(cudaErrorInvalidDeviceFunction);
  memset(p, 0, sizeof *p);
  p->numRegs = used[0], p->sharedSizeBytes = used[1], p->maxThreadsPerBlock = 1024;
  p->maxDynamicSharedSizeBytes = (int)kernel->shared - used[1];
  p->ptxVersion = p->binaryVersion = python.capability;
  return cudaSuccess;
}
/* A grid whose blocks may wait for each other has to be on the GPU at once. Here they run one after the other: code that
   waits for all of them is refused when it is read. */
cudaError_t cudaLaunchCooperativeKernel(const void *host, dim3 grid, dim3 block, void **arguments, size_t shared,
                                        cudaStream_t stream) {
  int most;
  cudaError_t error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&most, host, block.x * block.y * block.z, shared);
  if (!error && (size_t)grid.x * grid.y * grid.z > (size_t)most * python.processors) error = cudaErrorCooperativeLaunchTooLarge;
  if (error) unseen = 1;
  return error ? answer(error) : cudaLaunchKernel(host, grid, block, arguments, shared, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *with, const void *host, void **arguments) {
  for (unsigned i = 0; i < with->numAttrs; i++) {
    const cudaLaunchAttribute *one = with->attrs + i;
    if (one->id == cudaLaunchAttributeClusterDimension &&
        one->val.clusterDim.x * one->val.clusterDim.y * one->val.clusterDim.z > 1)
      return unseen = 1, answer(cudaErrorNotSupported); /* clusters are not modelled */
    if (one->id == cudaLaunchAttributeCooperative && one->val.cooperative)
      return cudaLaunchCooperativeKernel(host, with->gridDim, with->blockDim, arguments, with->dynamicSmemBytes, with->stream);
  }
  return cudaLaunchKernel(host, with->gridDim, with->blockDim, arguments, with->dynamicSmemBytes, with->stream);
}
cudaError_t cudaFuncSetCacheConfig(const void *host, enum cudaFuncCache config) { return cudaSuccess; }

/* errors */
cudaError_t cudaGetLastError(void) {
  cudaError_t error = last;
  last = cudaSuccess, unseen = 0;
  return error;
}
cudaError_t cudaPeekAtLastError(void) {
  unseen = 0;
  return last;
}
const char *cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorInvalidDeviceFunction: return "cudaErrorInvalidDeviceFunction";
    case cudaErrorInvalidSymbol: return "cudaErrorInvalidSymbol";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    case cudaErrorCooperativeLaunchTooLarge: return "cudaErrorCooperativeLaunchTooLarge";
    case cudaErrorNotSupported: return "cudaErrorNotSupported";
    default: return "an error that is not modelled";
  }
}
const char *cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorInvalidDeviceFunction: return "invalid device function";
    case cudaErrorInvalidSymbol: return "invalid device symbol";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    case cudaErrorCooperativeLaunchTooLarge: return "too many blocks in cooperative launch";
    case cudaErrorNotSupported: return "operation not supported";
    default: return "an error that is not modelled";
  }
}

/* memory: the process's own */
cudaError_t cudaMalloc(void **p, size_t n) { return (*p = python.allocate(n)) ? cudaSuccess : answer(cudaErrorMemoryAllocation); }
cudaError_t cudaMallocAsync(void **p, size_t n, cudaStream_t stream) { return cudaMalloc(p, n); }
cudaError_t cudaMallocManaged(void **p, size_t n, unsigned flags) { return cudaMalloc(p, n); }
cudaError_t cudaMallocHost(void **p, size_t n) { return cudaMalloc(p, n); }
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned flags) { return cudaMalloc(p, n); }
cudaError_t cudaFree(void *p) { return !p || python.release(p) ? cudaSuccess : answer(cudaErrorInvalidValue); }
cudaError_t cudaFreeAsync(void *p, cudaStream_t stream) { return cudaFree(p); }
cudaError_t cudaFreeHost(void *p) { return cudaFree(p); }
cudaError_t cudaMemcpy(void *to, const void *from, size_t n, enum cudaMemcpyKind kind) {
  memmove(to, from, n);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t stream) {
  return cudaMemcpy(to, from, n, kind);
}
cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                         enum cudaMemcpyKind kind) {
  for (size_t row = 0; row < height; row++) memmove((char *)to + row * to_pitch, (char *)from + row * from_pitch, width);
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t stream) {
  return cudaMemcpy2D(to, to_pitch, from, from_pitch, width, height, kind);
}
cudaError_t cudaMemset(void *p, int value, size_t n) {
  memset(p, value, n);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t stream) { return cudaMemset(p, value, n); }
cudaError_t cudaGetSymbolAddress(void **p, const void *host) {
  Symbol *variable = find(variables, variable_count, host);
  *p = variable ? python.variable(variable->image, variable->name) : NULL;
  return *p ? cudaSuccess : answer(cudaErrorInvalidSymbol);
}
cudaError_t cudaMemcpyToSymbol(const void *host, const void *from, size_t n, size_t offset, enum cudaMemcpyKind kind) {
  void *p;
  cudaError_t error = cudaGetSymbolAddress(&p, host);
  return error ? error : cudaMemcpy((char *)p + offset, from, n, kind);
}
cudaError_t cudaMemcpyFromSymbol(void *to, const void *host, size_t n, size_t offset, enum cudaMemcpyKind kind) {
  void *p;
  cudaError_t error = cudaGetSymbolAddress(&p, host);
  return error ? error : cudaMemcpy(to, (char *)p + offset, n, kind);
}
cudaError_t cudaMemcpyToSymbolAsync(const void *host, const void *from, size_t n, size_t offset, enum cudaMemcpyKind kind,
                                    cudaStream_t stream) {
  return cudaMemcpyToSymbol(host, from, n, offset, kind);
}
cudaError_t cudaMemcpyFromSymbolAsync(void *to, const void *host, size_t n, size_t offset, enum cudaMemcpyKind kind,
                                      cudaStream_t stream) {
  return cudaMemcpyFromSymbol(to, host, n, offset, kind);
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *p, const void *at) {
  memset(p, 0, sizeof *p);
  p->type = cudaMemoryTypeDevice, p->devicePointer = (void *)at; /* the host's memory says so, too */
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *free, size_t *total) { *free = *total = python.memory; return cudaSuccess; }

/* the device: there is one */
cudaError_t cudaRuntimeGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *version) { *version = CUDART_VERSION; return cudaSuccess; }
cudaError_t cudaDeviceSetLimit(enum cudaLimit limit, size_t value) { return cudaSuccess; }
cudaError_t cudaDeviceSetCacheConfig(enum cudaFuncCache config) { return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = *greatest = 0; return cudaSuccess; }
cudaError_t cudaGetDevice(int *device) { *device = 0; return cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return device ? answer(cudaErrorInvalidDevice) : cudaSuccess; }
cudaError_t cudaGetDeviceCount(int *count) { *count = 1; return cudaSuccess; }
cudaError_t cudaDeviceSynchronize(void) { return last == cudaErrorLaunchFailure ? last : cudaSuccess; }
cudaError_t cudaDeviceReset(void) { return cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = python.capability == 89 ? 1536 : 2048; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = DEFAULT_SHARED; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = python.most_shared; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = python.most_shared + 1024; break;
    case cudaDevAttrMaxRegistersPerBlock: *value = 65536; break;
    case cudaDevAttrMaxRegistersPerMultiprocessor: *value = 65536; break;
    case cudaDevAttrMaxBlocksPerMultiprocessor: *value = python.capability == 89 ? 24 : 32; break;
    case cudaDevAttrReservedSharedMemoryPerBlock: *value = 1024; break;
    case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: *value = 1024; break;
    case cudaDevAttrMaxBlockDimZ: *value = 64; break;
    case cudaDevAttrMaxGridDimX: *value = 0x7fffffff; break;
    case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *value = 65535; break;
    case cudaDevAttrL2CacheSize: *value = python.cache; break;
    case cudaDevAttrCooperativeLaunch: *value = 1; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMultiProcessorCount: *value = python.processors; break;
    case cudaDevAttrComputeCapabilityMajor: *value = python.capability / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = python.capability % 10; break;
    default: return answer(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
  memset(p, 0, sizeof *p);
  snprintf(p->name, sizeof p->name, "%s", python.name);
  p->major = python.capability / 10, p->minor = python.capability % 10, p->multiProcessorCount = python.processors;
  p->warpSize = 32, p->maxThreadsPerBlock = 1024, p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->maxThreadsPerMultiProcessor = python.capability == 89 ? 1536 : 2048;
  p->sharedMemPerBlock = DEFAULT_SHARED, p->sharedMemPerBlockOptin = python.most_shared;
  p->totalGlobalMem = python.memory, p->l2CacheSize = python.cache;
  p->maxBlocksPerMultiProcessor = python.capability == 89 ? 24 : 32, p->reservedSharedMemPerBlock = 1024;
  p->sharedMemPerMultiprocessor = python.most_shared + 1024;
  p->maxGridSize[0] = 0x7fffffff, p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024, p->maxThreadsDim[2] = 64;
  return cudaSuccess;
}

/* streams and events: all happens in order and at once, and there is no time to measure */
cudaError_t cudaStreamCreate(cudaStream_t *stream) { *stream = NULL; return cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) { *stream = NULL; return cudaSuccess; }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) { *stream = NULL; return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t stream) { return cudaDeviceSynchronize(); }
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return cudaDeviceSynchronize(); }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) { return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t *event) { *event = NULL; return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) { *event = NULL; return cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return cudaSuccess; }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t event) { return cudaDeviceSynchronize(); }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return cudaDeviceSynchronize(); }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) { return answer(cudaErrorNotSupported); }
