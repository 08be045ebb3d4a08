// A device function that is not inlined, called by all threads, then by some of them.
extern "C" __device__ __noinline__ int mix(int a, int b) {
    for (int i = 0; i < (b & 3); ++i) a = a * 31 + b;
    return a ^ b;
}

extern "C" __global__ void calls(const int* x, int* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int v = mix(x[i], i);
    if (v & 1) v = mix(v, x[i] + 1);
    out[i] = v;
}
