// What g++ and NVRTC must agree on, so that both compile the same arithmetic.
#pragma once

#ifdef __CUDACC_RTC__
// NVRTC has the mathematical functions built in and no standard headers.
typedef int int32_t;
typedef unsigned int uint32_t;
typedef unsigned short uint16_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#else
#include <cmath>
#include <cstdint>
#include <cstring>
using std::exp;
using std::fabs;
using std::isfinite;
using std::log;
using std::sqrt;
#endif

#ifdef __CUDACC__
#define SP4_FUNCTION __host__ __device__ inline
#else
#define SP4_FUNCTION inline
#endif

namespace sp4 {

// Rows of every [4, T] array, in the order of QUANTITIES.
enum Quantity { PARAM, GRAD, EXP_AVG, EXP_AVG_SQ };

// What a tensor is stored in, in the order of TYPES in sp4_lightning/backends/pointers.py.
enum Type { FLOAT32, FLOAT64, BFLOAT16, FLOAT16 };

SP4_FUNCTION uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

SP4_FUNCTION float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

SP4_FUNCTION uint64_t bits_of(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

SP4_FUNCTION double double_of(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

SP4_FUNCTION double infinity() { return double_of(0x7ff0000000000000); }

// Not fmin and fmax: those drop a NaN, and it matters which operand wins.
SP4_FUNCTION double smaller(double a, double b) { return b < a ? b : a; }
SP4_FUNCTION double larger(double a, double b) { return b > a ? b : a; }

}  // namespace sp4
