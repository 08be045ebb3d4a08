// Atomic operations on global and shared memory; every result is independent of the order of the threads.
#include <cuda_fp16.h>
#include <cstdint>

extern "C" __global__ void atomics_int(const int* x, int* o, unsigned* u, unsigned long long* w, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int v = x[i];
    atomicAdd(&o[0], v);
    atomicSub(&o[1], v);
    atomicMin(&o[2], v);
    atomicMax(&o[3], v);
    atomicAnd(&o[4], v);
    atomicOr(&o[5], v);
    atomicXor(&o[6], v);
    atomicMin(&u[0], (unsigned)v);
    atomicMax(&u[1], (unsigned)v);
    atomicInc(&u[2], 9);
    atomicDec(&u[3], 9);
    atomicAdd(&u[4 + (v & 3)], 1);
    atomicAdd(&w[0], (unsigned long long)v * 1000000007ull);
    atomicMax(&w[1], (unsigned long long)v << 33);
    atomicXor(&w[2], (unsigned long long)v << 20 | i);
    unsigned ticket = atomicAdd(&u[8], 1);
    atomicAdd(&u[9], ticket);
    unsigned long long old = w[3], seen;
    do {
        seen = old;
        old = atomicCAS(&w[3], seen, seen * 1 + v);
    } while (old != seen);
    atomicExch(&u[10 + i], v ^ 0x5a5a);
}

extern "C" __global__ void atomics_float(const float* x, float* f, double* d, __half2* h, float* shared_total) {
    __shared__ float total;
    __shared__ int lowest;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (threadIdx.x == 0) { total = 0; lowest = 1 << 30; }
    __syncthreads();
    float v = x[i];
    atomicAdd(f, v);
    atomicAdd(d, (double)v * 0.25);
    atomicAdd(h, __floats2half2_rn((float)(i & 1), 2.f));
    atomicAdd(&total, v);
    atomicMin(&lowest, (int)v);
    __syncthreads();
    if (threadIdx.x == 0) { shared_total[2 * blockIdx.x] = total; shared_total[2 * blockIdx.x + 1] = lowest; }
}

// The last block to finish adds up what the others left: a release/acquire chain through a global counter.
extern "C" __global__ void last_block_sums(const int* x, int* partial, unsigned* done, int* out) {
    __shared__ bool last;
    __shared__ int sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    atomicAdd(&sum, x[blockIdx.x * blockDim.x + threadIdx.x]);
    __syncthreads();
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = sum;
        __threadfence();
        last = atomicAdd(done, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        int all = 0;
        for (int b = 0; b < gridDim.x; ++b) all += *(volatile int*)&partial[b];
        *out = all;
    }
}

// Block b waits for block b - 1: a spin on global memory.
extern "C" __global__ void chained_blocks(unsigned* flag, int* out) {
    if (threadIdx.x == 0) {
        unsigned seen;
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
        } while (seen != blockIdx.x);
        *out = *out * 3 + blockIdx.x;
        asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(blockIdx.x + 1) : "memory");
    }
}
