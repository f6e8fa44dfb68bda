// What the CUDA kernels are told: one struct by value, mirrored in sp4_lightning/backends/cuda/call.py.
#pragma once
#include "rules.cuh"

namespace sp4 {

const int CHUNK = 1 << 16;  // elements that one block reads
const int DIMS = 8;         // of a tensor that does not fill its memory
const int GRADS = 384;      // tensors of one launch: with the rest, below the 4 KB that every driver takes

// One tensor.
struct Row {
    int64_t size;
    void *param, *exp_avg, *exp_avg_sq;  // null: there is none
    int32_t type[4];                     // of param, grad, exp_avg, exp_avg_sq
    int32_t layout;                      // in `layouts`, where elements are not in one order; -1: they are
    int32_t group;
};

// Where the k-th element of a tensor is, counted in row-major order, for each quantity.
struct Layout {
    int64_t dims, size[DIMS], stride[4][DIMS];
};

struct Chunk {
    int64_t tensor, start;
};

// What one step's kernels tell each other; looked and learned are zero between two launches.
struct Found {
    uint32_t looked, learned;  // blocks that have finished
    int32_t bad;               // a protected gradient is not finite
    int32_t any_over;          // something is to be mended
    int32_t skip;              // and the phase lets that skip the update
    int32_t executed;
    float found_inf;  // what the optimizer is told
};

struct Scratch {
    double *largest, *limit;    // [4, T]
    uint64_t *most, *mended;    // [4, T], bits of magnitudes as float64
    int32_t *over;              // [T], bits by quantity: to be mended
    int32_t *broken, *present;  // [T]
    uint32_t *bins;             // [T, BINS]
    uint32_t *largest_bound;    // [4, groups], bits of float32
    int32_t *observed;          // [groups]
    Found *found;
};

struct Call {
    int64_t tensors, chunks, groups, columns;
    const Row *rows;
    const Layout *layouts;
    const Chunk *chunk;
    State state;
    Hyper hyper;
    Learned learned;
    Scratch scratch;
    const bool *protects;  // [4, T]
    const bool *started;   // [2, T]
    const double *eps;     // [T]
    const int64_t *phase;
    int64_t *tally;        // [3 + groups]
    float *table;          // [4, columns]
    const int64_t *column; // [groups]
    const float *vetoed;   // null: no GradScaler
    const double *lr_each; // null: `lr` for all
    double lr;
    int64_t learns, ratio_moves, moments_known;
};

// The gradients of some tensors, which move from step to step.
struct Grads {
    int64_t first_tensor, first_chunk;
    void *grad[GRADS];
    uint32_t edited[GRADS / 32];  // bits: the parameter was written by somebody else
};

enum Phase { OBSERVE, EXACT, LEARNED };

}  // namespace sp4
