// Block-wide use of shared memory and barriers.
#include <cstdint>

extern "C" __global__ void block_sum(const float* x, float* out, int n) {
    extern __shared__ float partial[];
    float sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
    partial[threadIdx.x] = sum;
    __syncthreads();
    for (int step = blockDim.x / 2; step; step /= 2) {
        if (threadIdx.x < step) partial[threadIdx.x] += partial[threadIdx.x + step];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = partial[0];
}

extern "C" __global__ void matmul_tiled(const float* a, const float* b, float* d, int m, int n, int k) {
    __shared__ float as[16][17];
    __shared__ float bs[16][16];
    int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    for (int at = 0; at < k; at += 16) {
        as[threadIdx.y][threadIdx.x] = row < m && at + threadIdx.x < k ? a[row * k + at + threadIdx.x] : 0.f;
        bs[threadIdx.y][threadIdx.x] = column < n && at + threadIdx.y < k ? b[(at + threadIdx.y) * n + column] : 0.f;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 16; ++i) sum += as[threadIdx.y][i] * bs[i][threadIdx.x];
        __syncthreads();
    }
    if (row < m && column < n) d[row * n + column] = sum;
}

extern "C" __global__ void block_votes(const int* x, int* out) {
    __shared__ int seen[4];
    int t = threadIdx.x;
    if (t < 4) seen[t] = 0;
    int count = __syncthreads_count(x[t] > 0);
    int any = __syncthreads_or(x[t] > 98);
    int every = __syncthreads_and(x[t] > -1000);
    atomicAdd(&seen[t & 3], x[t]);
    __syncthreads();
    out[t] = count * 1000 + any * 100 + every * 10 + (seen[t & 3] & 7);
}

// Two warps hand 64 words to the other two through named barriers, twice.
extern "C" __global__ void named_barriers(const int* x, int* out) {
    __shared__ int box[64];
    int t = threadIdx.x;
    for (int round = 0; round < 2; ++round) {
        if (t < 64) {
            if (round) asm volatile("barrier.cta.sync 2, 128;" ::: "memory");
            box[t] = x[round * 64 + t] * 3;
            asm volatile("bar.arrive 1, 128;" ::: "memory");
        } else {
            asm volatile("bar.sync 1, 128;" ::: "memory");
            out[round * 64 + t - 64] = box[127 - t];
            if (!round) asm volatile("barrier.cta.arrive 2, 128;" ::: "memory");
        }
    }
}

// Bytes, half words and vectors in shared and local memory; a module constant and a module variable.
__constant__ int weights[8] = {1, -2, 3, -5, 7, -11, 13, -17};
__device__ unsigned turns = 7;

extern "C" __global__ void mixed_widths(const uint8_t* x, uint32_t* out) {
    __shared__ __align__(16) uint8_t bytes[256];
    int t = threadIdx.x;
    bytes[t] = x[t];
    bytes[t + 128] = x[t + 128];
    __syncthreads();
    uint32_t r = bytes[255 - t] + ((const int16_t*)bytes)[t] * 3u;
    uint4 v = ((const uint4*)bytes)[t & 15];
    r += v.x ^ v.y ^ v.z ^ v.w;
    uint64_t w = ((const uint64_t*)bytes)[t & 31];
    r += (uint32_t)(w >> 13) + (int8_t)bytes[t];
    int local[8];
    for (int i = 0; i < 8; ++i) local[(i + t) & 7] = weights[i] + t;
    r += local[t & 7] * 1000 + local[(t >> 3) & 7] * turns;
    out[t] = r;
}
