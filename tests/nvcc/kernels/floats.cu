// Conversions and arithmetic. One row an operation: out[row * n + i].
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cstdint>

extern "C" __global__ void float_bits(const float* x, const float* y, uint32_t* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float a = x[i], b = y[i];
    int row = 0;
    auto put = [&](float v) { out[row++ * n + i] = __float_as_uint(v); };
    put(__fadd_rn(a, b));
    put(__fsub_rn(a, b));
    put(__fmul_rn(a, b));
    put(__fmaf_rn(a, b, a));
    put(__fdiv_rn(a, b));
    put(__fsqrt_rn(fabsf(a)));
    put(__frcp_rn(a));
    put(fminf(a, b));
    put(fmaxf(a, b));
    put(-a);
    put(fabsf(a));
    put(floorf(a));
    put(ceilf(a));
    put(truncf(a));
    put(rintf(a));
    put(copysignf(a, b));
    put(__saturatef(a));
    put(fminf(fmaxf(a, b), 1.f));
    float r;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); put(r);
    asm("add.ftz.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); put(r);
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(*(uint32_t*)&r) : "f"(a)); put(r);
    put(__uint_as_float((a < b) | (a == b) << 1 | (a != b) << 2 | !(a < b) << 3 | isnan(a) << 4 | isinf(b) << 5));
}

extern "C" __global__ void float_directed(const float* x, const float* y, uint32_t* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float a = x[i], b = y[i];
    int row = 0;
    auto put = [&](float v) { out[row++ * n + i] = __float_as_uint(v); };
    put(__fadd_rz(a, b));
    put(__fadd_ru(a, b));
    put(__fadd_rd(a, b));
    put(__fmul_rz(a, b));
}

extern "C" __global__ void float_conversions(const float* x, const int* k, uint32_t* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float a = x[i];
    int row = 0;
    auto put = [&](uint32_t v) { out[row++ * n + i] = v; };
    put(__half_as_ushort(__float2half_rn(a)));
    put(__half_as_ushort(__float2half_rz(a)));
    put(__bfloat16_as_ushort(__float2bfloat16_rn(a)));
    put(__bfloat16_as_ushort(__float2bfloat16_rz(a)));
    __half2 h = __floats2half2_rn(a, -a);
    put(*(uint32_t*)&h);
    __nv_bfloat162 b = __floats2bfloat162_rn(a, 2 * a);
    put(*(uint32_t*)&b);
    put(__float_as_uint(__half2float(__float2half_rn(a))));
    put(__float_as_uint(__bfloat162float(__float2bfloat16_rn(a))));
    put((uint32_t)__float2int_rn(a));
    put((uint32_t)__float2int_rz(a));
    put((uint32_t)__float2int_rd(a));
    put((uint32_t)__float2int_ru(a));
    put(__float2uint_rz(a));
    put(__float_as_uint(__int2float_rn(k[i])));
    put(__float_as_uint(__uint2float_rn((unsigned)k[i])));
    put(__float_as_uint(__ll2float_rn((long long)k[i] * 65537)));
    put((uint32_t)((unsigned long long)__float2ll_rz(a) >> 8));
    put((uint32_t)__half2short_rz(__float2half_rn(a)));
    put(__half_as_ushort(__int2half_rn(k[i])));
    double d = (double)a * 3.0 + k[i];
    put(__float_as_uint(__double2float_rn(d)));
    put((uint32_t)__double2int_rz(d));
    put((uint32_t)((unsigned long long)__double_as_longlong(d) >> 20));
    put(__nv_cvt_float_to_fp8(a, __NV_SATFINITE, __NV_E4M3));
    put(__nv_cvt_float_to_fp8(a, __NV_SATFINITE, __NV_E5M2));
    uint32_t r;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(a), "f"(a * 3.f)); put(r);
    asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(a), "f"(-a)); put(r);
}

extern "C" __global__ void half_bits(const __half2* x, const __half2* y, uint32_t* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __half2 a = x[i], b = y[i];
    int row = 0;
    auto put = [&](__half2 v) { out[row++ * n + i] = *(uint32_t*)&v; };
    put(__hadd2_rn(a, b));
    put(__hsub2_rn(a, b));
    put(__hmul2_rn(a, b));
    put(__hfma2(a, b, a));
    put(__hmin2(a, b));
    put(__hmax2(a, b));
    put(__hneg2(a));
    put(__habs2(a));
    put(__hgt2(a, b));
    put(__halves2half2(__hadd_rn(__low2half(a), __high2half(b)), __hmul_rn(__low2half(b), __high2half(a))));
    put(__hlt(__low2half(a), __low2half(b)) ? a : b);
    put(__hfma2_relu(a, b, a));
}

extern "C" __global__ void bfloat_bits(const __nv_bfloat162* x, const __nv_bfloat162* y, uint32_t* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __nv_bfloat162 a = x[i], b = y[i];
    int row = 0;
    auto put = [&](__nv_bfloat162 v) { out[row++ * n + i] = *(uint32_t*)&v; };
    put(__hadd2_rn(a, b));
    put(__hsub2_rn(a, b));
    put(__hmul2_rn(a, b));
    put(__hfma2(a, b, a));
    put(__hmin2(a, b));
    put(__hmax2(a, b));
    put(__hneg2(a));
    put(__habs2(a));
}

extern "C" __global__ void double_bits(const double* x, const double* y, uint64_t* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double a = x[i], b = y[i];
    int row = 0;
    auto put = [&](double v) { out[row++ * n + i] = __double_as_longlong(v); };
    put(a + b);
    put(a * b);
    put(__fma_rn(a, b, a));
    put(__ddiv_rn(a, b));
    put(__dsqrt_rn(fabs(a)));
    put(fmin(a, b));
    put(fmax(a, b));
    put(floor(a));
    put((double)(long long)a);
    put(a < b ? a : -b);
}

// Approximations: compared within a bound, not bit for bit.
extern "C" __global__ void float_approximate(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float a = x[i];
    int row = 0;
    auto put = [&](float v) { out[row++ * n + i] = v; };
    put(__expf(a));
    put(__logf(a));
    put(__sinf(a));
    put(__cosf(a));
    put(rsqrtf(a));
    put(__fdividef(1.f, a));
    put(exp2f(a));
    put(log2f(a));
    float r;
    asm("tanh.approx.f32 %0, %1;" : "=f"(r) : "f"(a)); put(r);
    asm("sqrt.approx.f32 %0, %1;" : "=f"(r) : "f"(a)); put(r);
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a)); put(r);
    put(expf(a));
    put(logf(a));
    put(sinf(a));
    put(powf(a, 1.5f));
    put(tanhf(a));
    put(erff(a));
}
