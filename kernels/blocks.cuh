// What the threads of a block find out together.
#pragma once
#include "histogram.cuh"

namespace sp4 {

// The largest value of a block, in its first thread; `shared` holds one value per warp.
template <class Bits> __device__ Bits block_max(Bits value, Bits *shared) {
    for (int step = 16; step; step /= 2) {
        const Bits other = __shfl_down_sync(0xffffffff, value, step);
        value = other > value ? other : value;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
    __syncthreads();
    for (int warp = 1; threadIdx.x == 0 && warp < blockDim.x / 32; ++warp)
        value = shared[warp] > value ? shared[warp] : value;
    return value;
}

// Whether this block is the last of `blocks` to come here; what the others' first threads wrote before is visible then.
__device__ inline bool comes_last(uint32_t *arrived, int64_t blocks) {
    __shared__ bool last;
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicAdd(arrived, 1u) == blocks - 1;
        if (last) {
            *arrived = 0;
            __threadfence();
        }
    }
    __syncthreads();
    return last;
}

// The quantile of a histogram, in every thread. blockDim.x is BINS / 4.
__device__ inline double block_quantile(const uint32_t *bins, double q, double maximum) {
    __shared__ int64_t ends[BINS / 4];
    __shared__ double found;
    const int first = 4 * threadIdx.x;
    int64_t own = 0;
    for (int b = first; b < first + 4 && b < FINITE_BINS; ++b) own += bins[b];
    ends[threadIdx.x] = own;
    __syncthreads();
    for (int step = 1; step < blockDim.x; step *= 2) {  // to running sums
        const int64_t before = threadIdx.x >= step ? ends[threadIdx.x - step] : 0;
        __syncthreads();
        ends[threadIdx.x] += before;
        __syncthreads();
    }
    const int64_t total = ends[blockDim.x - 1], end = ends[threadIdx.x];
    const double rank = rank_of(q, total);
    if (total >= FEW && (double)end >= rank && (double)(end - own) < rank) {
        int64_t below = end - own;
        int bin = first;
        while ((double)(below + bins[bin]) < rank) below += bins[bin++];
        found = inside(bin, (rank - (double)below) / (double)bins[bin], maximum);
    }
    __syncthreads();
    return total >= FEW ? found : total > 0 ? maximum : 0;
}

// Integers in the order of their float64s, all of them.
__device__ inline uint64_t ordered(double value) {
    const uint64_t bits = bits_of(value), sign = 1ull << 63;
    return bits & sign ? ~bits : bits | sign;
}

// The k-th largest of a column, in every thread: bit by bit, the largest number that k values reach.
__device__ inline double block_kth_largest(const double *column, int64_t length, int64_t stride, int64_t k) {
    const int OWN = 4;  // values in a thread's registers; what is beyond is read again for every bit
    __shared__ int reached[3];  // counted in turn, so that one barrier is enough
    uint64_t own[OWN];
    for (int j = 0; j < OWN; ++j) {
        const int64_t w = threadIdx.x + j * blockDim.x;
        own[j] = w < length ? ordered(column[w * stride]) : 0;  // below every number
    }
    if (threadIdx.x < 3) reached[threadIdx.x] = 0;
    __syncthreads();
    uint64_t found = 0;
    for (int bit = 63; bit >= 0; --bit) {
        const uint64_t candidate = found | 1ull << bit;
        int count = 0;
        for (int j = 0; j < OWN; ++j) count += own[j] >= candidate;
        for (int64_t w = threadIdx.x + OWN * blockDim.x; w < length; w += blockDim.x)
            count += ordered(column[w * stride]) >= candidate;
        count = __reduce_add_sync(0xffffffff, count);
        if (threadIdx.x % 32 == 0 && count) atomicAdd(&reached[bit % 3], count);
        __syncthreads();
        if (reached[bit % 3] >= k) found = candidate;
        // The next but one counts there; it was read before the barrier.
        if (threadIdx.x == 0) reached[(bit + 1) % 3] = 0;
    }
    const uint64_t sign = 1ull << 63;
    return double_of(found & sign ? found & ~sign : ~found);
}

}  // namespace sp4
