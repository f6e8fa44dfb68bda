// Reading and writing elements of any storage type. float holds the three narrow types exactly, double all four.
#pragma once
#include "portable.cuh"

namespace sp4 {

SP4_FUNCTION float from_bfloat16(uint16_t bits) { return float_of((uint32_t)bits << 16); }

SP4_FUNCTION float from_float16(uint16_t bits) {
    const uint32_t shifted = (uint32_t)(bits & 0x7fff) << 13, sign = (uint32_t)(bits & 0x8000) << 16;
    // Moving the exponent by a multiplication is exact and normalises denormals; infinity and NaN keep theirs.
    const float scaled = float_of(shifted) * float_of(0x77800000);  // 2^112
    return float_of(sign | ((bits & 0x7fff) >= 0x7c00 ? shifted | 0x7f800000 : bits_of(scaled)));
}

// To nearest, ties to even, as torch rounds.
SP4_FUNCTION uint16_t to_bfloat16(float value) {
    const uint32_t bits = bits_of(value);
    if (value != value) return 0x7fc0;
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

SP4_FUNCTION uint16_t to_float16(float value) {
    const uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffff;
    const uint16_t sign = (uint16_t)((bits >> 16) & 0x8000);
    if (magnitude > 0x7f800000) return sign | 0x7e00;
    if (magnitude >= 0x477ff000) return sign | 0x7c00;  // 65520 and beyond round to infinity
    // Adding half of the last place's unit and taking it away again rounds denormals as the hardware adds.
    if (magnitude < 0x38800000) return sign | (uint16_t)(bits_of(float_of(magnitude) + 0.5f) - 0x3f000000);
    return sign | (uint16_t)((magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13);
}

SP4_FUNCTION float rounded(int type, float value) {
    if (type == BFLOAT16) return from_bfloat16(to_bfloat16(value));
    if (type == FLOAT16) return from_float16(to_float16(value));
    return value;
}

SP4_FUNCTION double rounded(int type, double value) {
    return type == FLOAT64 ? value : (double)rounded(type, (float)value);
}

template <class Real> SP4_FUNCTION Real load(int type, const void *data, int64_t k) {
    if (type == FLOAT32) return (Real)((const float *)data)[k];
    if (type == FLOAT64) return (Real)((const double *)data)[k];
    const uint16_t bits = ((const uint16_t *)data)[k];
    return (Real)(type == BFLOAT16 ? from_bfloat16(bits) : from_float16(bits));
}

// The value must be one that the type holds, see rounded().
template <class Real> SP4_FUNCTION void store(int type, void *data, int64_t k, Real value) {
    if (type == FLOAT32) ((float *)data)[k] = (float)value;
    else if (type == FLOAT64) ((double *)data)[k] = (double)value;
    else ((uint16_t *)data)[k] = type == BFLOAT16 ? to_bfloat16((float)value) : to_float16((float)value);
}

}  // namespace sp4
