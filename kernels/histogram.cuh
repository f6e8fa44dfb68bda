// Histograms of magnitudes whose bins are the float's own bits; the definition is sp4_lightning/histogram.py.
#pragma once
#include "portable.cuh"

namespace sp4 {

const int BINS = 1024;
const int FINITE_BINS = 1020;  // exponent 255, infinities and NaN, begins here
const int BIN_SHIFT = 21;      // keeps the exponent and the two top bits of the mantissa
const int FEW = 32;            // fewer values than this give their maximum

// The bin of a magnitude (sign bit clear). Zero would share a bin with denormals, so callers count it nowhere.
SP4_FUNCTION int bin_of(uint32_t magnitude_bits) { return magnitude_bits >> BIN_SHIFT; }

// A magnitude's float32 bits as it is counted; 0 is counted nowhere. A float64 beyond float32 saturates, unless it is
// infinite.
SP4_FUNCTION uint32_t counted_bits(float magnitude) { return bits_of(magnitude); }
SP4_FUNCTION uint32_t counted_bits(double magnitude) {
    const double largest = 3.4028234663852886e38;
    return bits_of((float)(magnitude > largest && magnitude < infinity() ? largest : magnitude));
}

// The lower edge of a bin; that of bin FINITE_BINS is 2^128.
SP4_FUNCTION double edge(int bin) {
    return bin < FINITE_BINS ? (double)float_of((uint32_t)bin << BIN_SHIFT) : 340282366920938463463374607431768211456.0;
}

// The rank, from 1, of a quantile among `total` values.
SP4_FUNCTION double rank_of(double q, int64_t total) { return larger(1.0, ceil(q * (double)total)); }

// The value `share` of the way through a bin, at most the exact maximum.
SP4_FUNCTION double inside(int bin, double share, double maximum) {
    const double low = edge(bin);
    return smaller(low + (edge(bin + 1) - low) * share, maximum);
}

}  // namespace sp4
