// Warp-wide operations, some under divergence. One row an operation: out[row * threads + thread].
#include <cstdint>

extern "C" __global__ void warp_shuffles(const int* x, int* out) {
    int t = threadIdx.x, threads = blockDim.x, row = 0, v = x[t];
    const unsigned all = 0xffffffffu;
    auto put = [&](int r) { out[row++ * threads + t] = r; };
    put(__shfl_sync(all, v, 5));
    put(__shfl_sync(all, v, t * 7));
    put(__shfl_sync(all, v, t + 1, 8));
    put(__shfl_up_sync(all, v, 3));
    put(__shfl_up_sync(all, v, 3, 16));
    put(__shfl_down_sync(all, v, 5));
    put(__shfl_down_sync(all, v, 5, 8));
    put(__shfl_xor_sync(all, v, 9));
    put(__shfl_xor_sync(all, v, 6, 4));
    int sum = v;
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(all, sum, step);
    put(sum);
    unsigned ok;
    int r;
    asm("{ .reg .pred p; shfl.sync.down.b32 %0|p, %2, 7, 0x1f, -1; selp.b32 %1, 1, 0, p; }" : "=r"(r), "=r"(ok) : "r"(v));
    put(r);
    put(ok);
    double d = __shfl_down_sync(all, (double)v * 0.5, 2);
    put((int)(d * 2));
}

extern "C" __global__ void warp_votes(const int* x, int* out) {
    int t = threadIdx.x, threads = blockDim.x, row = 0, v = x[t];
    const unsigned all = 0xffffffffu;
    auto put = [&](int r) { out[row++ * threads + t] = r; };
    put(__ballot_sync(all, v & 1));
    put(__any_sync(all, v > 90));
    put(__all_sync(all, v < 99));
    put(__match_any_sync(all, v & 3));
    int same;
    put(__match_all_sync(all, v >> 31, &same));
    put(same);
    put(__reduce_add_sync(all, v));
    put(__reduce_min_sync(all, v));
    put(__reduce_max_sync(all, v));
    put(__reduce_and_sync(all, (unsigned)v));
    put(__reduce_or_sync(all, (unsigned)v));
    put(__reduce_xor_sync(all, (unsigned)v));
    int part = 0;
    if (v & 1) {
        unsigned mask = __activemask();
        part = __popc(mask & ((1u << (t & 31)) - 1));
        part += 100 * __shfl_sync(mask, v, __ffs(mask) - 1);
    } else if (v & 2) {
        part = -(int)__reduce_add_sync(__activemask(), 1u);
    }
    __syncwarp();
    put(part);
    unsigned lanemask, lane;
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(lanemask));
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    put(lanemask);
    put(lane);
    asm("mov.u32 %0, %%lanemask_ge;" : "=r"(lanemask));
    put(lanemask);
    put(__any_sync(all, v == x[t]) ? 1 : 0);
}

extern "C" __global__ void warp_divergence(const unsigned* x, unsigned* out) {
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned v = x[t] & 0xffff, steps = 0;
    while (v > 1) {
        v = v & 1 ? 3 * v + 1 : v / 2;
        if (++steps > 500) break;
        if (steps % 3 == 0 && (v & 6) == 6) continue;
        steps += (v & 15) == 15;
    }
    switch (x[t] % 9) {
        case 0: steps ^= 0x10; break;
        case 1: steps += 77; break;
        case 2: steps *= 3; break;
        case 3: steps = ~steps;
        case 4: steps -= 5; break;
        case 5: steps = __popc(steps) + 1000; break;
        case 6: steps <<= 2; break;
        case 7: steps = steps * steps + t; break;
        default: steps = 1; break;
    }
    out[t] = steps;
}
