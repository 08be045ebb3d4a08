// mbarriers, bulk copies with and without tensor maps, cp.async: written by hand, as a CUDA user writes them.
#include <cuda.h>
#include <cstdint>

__device__ static uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ static void mbarrier_init(uint64_t* bar, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(count) : "memory");
}

__device__ static void mbarrier_expect(uint64_t* bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes) : "memory");
}

__device__ static void mbarrier_wait(uint64_t* bar, uint32_t parity) {
    asm volatile(
        "{\n\t.reg .pred p;\n\tWAIT:\n\tmbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%0], %1;\n\t@!p bra WAIT;\n\t}" ::"r"(shared_address(bar)),
        "r"(parity)
        : "memory");
}

// Copies a matrix box by box: box (columns, rows) = (64, 32) halves, 128-byte swizzle or none as the maps say.
extern "C" __global__ void __launch_bounds__(128) tensor_copy(const __grid_constant__ CUtensorMap from, const __grid_constant__ CUtensorMap to, int boxes) {
    __shared__ __align__(1024) uint8_t box[2][64 * 32 * 2];
    __shared__ uint64_t full[2];
    if (threadIdx.x == 0) {
        mbarrier_init(&full[0], 1);
        mbarrier_init(&full[1], 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 0; i < boxes; ++i) {
            int stage = i & 1;
            if (i >= 2) asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
            mbarrier_expect(&full[stage], 64 * 32 * 2);
            asm volatile("cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(box[stage])),
                         "l"(&from), "r"(i * 64), "r"((int)blockIdx.x * 32), "r"(shared_address(&full[stage]))
                         : "memory");
            mbarrier_wait(&full[stage], i / 2 & 1);
            asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&to), "r"(i * 64), "r"((int)blockIdx.x * 32),
                         "r"(shared_address(box[stage]))
                         : "memory");
            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        }
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}

// Adds with cp.reduce.async.bulk.tensor what a plain bulk copy loaded and the threads doubled.
extern "C" __global__ void __launch_bounds__(128) bulk_double(const float* x, float* y, float* total) {
    __shared__ __align__(128) float box[256];
    __shared__ uint64_t full;
    const float* from = x + blockIdx.x * 256;
    if (threadIdx.x == 0) {
        mbarrier_init(&full, 1);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        mbarrier_expect(&full, 1024);
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(box)), "l"(from), "r"(1024),
                     "r"(shared_address(&full))
                     : "memory");
    }
    __syncthreads();
    mbarrier_wait(&full, 0);
    box[threadIdx.x] *= 2;
    box[threadIdx.x + 128] *= 2;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(y + blockIdx.x * 256), "r"(shared_address(box)), "r"(1024) : "memory");
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(total), "r"(shared_address(box)), "r"(1024) : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}

// A ring of two stages with mbarrier state tokens, test_wait, arrive counts and drops; no bulk copy.
extern "C" __global__ void __launch_bounds__(128) token_ring(const int* x, int* out, int rounds) {
    __shared__ uint64_t bar;
    __shared__ int box[128];
    int t = threadIdx.x, sum = 0;
    if (t == 0) mbarrier_init(&bar, 128);
    __syncthreads();
    for (int round = 0; round < rounds; ++round) {
        box[t] = x[round * 128 + t];
        uint64_t token;
        asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(token) : "r"(shared_address(&bar)) : "memory");
        uint32_t done = 0;
        while (!done)
            asm volatile("{ .reg .pred p; mbarrier.test_wait.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(shared_address(&bar)), "l"(token) : "memory");
        sum += box[(t + 33) & 127] * (round + 1);
        asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(token) : "r"(shared_address(&bar)) : "memory");
        done = 0;
        while (!done)
            asm volatile("{ .reg .pred p; mbarrier.try_wait.shared::cta.b64 p, [%1], %2, 100; selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(shared_address(&bar)), "l"(token) : "memory");
    }
    uint64_t last = 0;
    if (t >= 64) asm volatile("mbarrier.arrive_drop.shared::cta.b64 %0, [%1];" : "=l"(last) : "r"(shared_address(&bar)) : "memory");
    else if (t < 32) asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1], 2;" : "=l"(last) : "r"(shared_address(&bar)) : "memory");
    uint32_t pending = 0;
    if (t == 0) {
        asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(pending) : "l"(last));
        mbarrier_wait(&bar, 0);
    }
    __syncthreads();  // the warp that does not arrive here may still test the phase before
    if (t == 0) asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(shared_address(&bar)) : "memory");
    out[t] = sum + (pending > 128);
}

// Non-bulk asynchronous copies, by group and by mbarrier.
extern "C" __global__ void __launch_bounds__(64) async_copies(const int* x, int* out) {
    __shared__ __align__(16) int box[3][256];
    __shared__ uint64_t bar;
    int t = threadIdx.x;
    if (t == 0) mbarrier_init(&bar, 64);
    __syncthreads();
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(&box[0][t * 4])), "l"(x + t * 4) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(&box[1][t * 2])), "l"(x + 256 + t * 2), "r"(t & 1 ? 4 : 8) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(&box[2][t])), "l"(x + 512 + t) : "memory");
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&bar)) : "memory");
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    mbarrier_wait(&bar, 0);
    __syncthreads();
    out[t] = box[0][255 - t * 3] + 7 * box[1][t ^ 5] + 11 * box[2][63 - t];
}
