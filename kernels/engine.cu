// The engine and the oracle on a GPU: three launches around one update, each for all tensors of an optimizer.
//
//   sp4_look   reads param, grad, exp_avg, exp_avg_sq once: maxima, histogram of grad; decides skip and what to mend
//   sp4_mend   mends the tensors beyond their bounds, element by element; has nothing to do on a clean step
//   sp4_learn  behind the update: statistic, tracker, derived bounds, table, counters
//
// Nothing waits for the host, and nothing is allocated. The definitions are in sp4_lightning/backends.
#include "blocks.cuh"
#include "call.cuh"
#include "mending.cuh"

using namespace sp4;

namespace {

const int THREADS = 512, MENDING_THREADS = 256;

// Magnitudes as integers: the order of floats, infinity above all numbers, NaN above infinity.
template <class Real> struct Bits;
template <> struct Bits<float> {
    typedef uint32_t type;
    static const type magnitude = 0x7fffffff, infinite = 0x7f800000;
    static __device__ double real(type bits) { return float_of(bits); }
};
template <> struct Bits<double> {
    typedef uint64_t type;
    static const type magnitude = 0x7fffffffffffffff, infinite = 0x7ff0000000000000;
    static __device__ double real(type bits) { return double_of(bits); }
};

// One tensor as one block sees it.
struct View {
    Row row;
    const Layout *layout;
    void *grad;
    int64_t start, stop;  // of the chunk

    __device__ View(const Call &c, const Grads &g) {
        const Chunk chunk = c.chunk[g.first_chunk + blockIdx.x];
        row = c.rows[chunk.tensor];
        layout = row.layout < 0 ? nullptr : c.layouts + row.layout;
        grad = g.grad[chunk.tensor - g.first_tensor];
        start = chunk.start;
        stop = row.size < start + CHUNK ? row.size : start + CHUNK;
    }

    __device__ void *data(int quantity) const {
        return quantity == PARAM ? row.param : quantity == GRAD ? grad : quantity == EXP_AVG ? row.exp_avg : row.exp_avg_sq;
    }

    __device__ bool wide() const {
        bool any = false;
        for (int q = 0; q < 4; ++q) any |= data(q) && row.type[q] == FLOAT64;
        return any;
    }

    // The k-th element's place.
    __device__ int64_t at(int quantity, int64_t k) const {
        if (!layout) return k;
        int64_t place = 0;
        for (int64_t d = layout->dims - 1; d >= 0; --d) {
            place += k % layout->size[d] * layout->stride[quantity][d];
            k /= layout->size[d];
        }
        return place;
    }

    template <class Real> __device__ Real get(int quantity, int64_t k) const {
        return data(quantity) ? load<Real>(row.type[quantity], data(quantity), at(quantity, k)) : (Real)0;
    }
};

// What a thread has seen of each quantity.
template <class Real> struct Seen {
    typename Bits<Real>::type most[4];
    bool broken;

    __device__ Seen() : most{0, 0, 0, 0}, broken(false) {}

    __device__ void take(const Real *x, Real ratio_inverse, bool has_v) {
        for (int q = 0; q < 4; ++q) {
            const typename Bits<Real>::type bits = bits_of(x[q]), magnitude = bits & Bits<Real>::magnitude;
            // exp_avg_sq keeps its sign: a negative one is broken, not large.
            if (magnitude > most[q] && (q != EXP_AVG_SQ || bits == magnitude || magnitude > Bits<Real>::infinite))
                most[q] = magnitude;
        }
        broken |= has_v && !(x[EXP_AVG] * x[EXP_AVG] * ratio_inverse - x[EXP_AVG_SQ] <= 0);
    }

    // Adds what a block has seen to what other blocks have.
    __device__ void give(uint64_t *all, int32_t *is_broken, int64_t i, int64_t T) {
        __shared__ typename Bits<Real>::type shared[THREADS / 32];
        for (int q = 0; q < 4; ++q) {
            const typename Bits<Real>::type block = block_max(most[q], shared);
            if (threadIdx.x == 0 && block) atomicMax(&all[q * T + i], bits_of(Bits<Real>::real(block)));
        }
        if (is_broken && __syncthreads_or(broken) && threadIdx.x == 0) is_broken[i] = 1;
    }
};

template <class Real> __device__ void count(uint32_t *bins, Real value) {
    const uint32_t bits = counted_bits(fabs(value));
    if (bits) atomicAdd(&bins[bin_of(bits)], 1u);
}

// Four neighbours at once.
__device__ void load4(int type, const void *data, int64_t k, float *x) {
    if (type == FLOAT32) {
        const float4 four = *(const float4 *)((const float *)data + k);
        x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
        return;
    }
    const ushort4 four = *(const ushort4 *)((const uint16_t *)data + k);
    const uint16_t bits[4] = {four.x, four.y, four.z, four.w};
    for (int j = 0; j < 4; ++j) x[j] = type == BFLOAT16 ? from_bfloat16(bits[j]) : from_float16(bits[j]);
}

template <class Real> __device__ void look(const Call &c, const View &view, Real inverse, uint32_t *bins, Seen<Real> &seen) {
    const bool has_v = view.row.exp_avg_sq, counts = c.learns && view.grad;
    for (int64_t k = view.start + threadIdx.x; k < view.stop; k += blockDim.x) {
        Real x[4];
        for (int q = 0; q < 4; ++q) x[q] = view.get<Real>(q, k);
        seen.take(x, inverse, has_v);
        if (counts) count(bins, x[GRAD]);
    }
}

// All are float32 or narrower, in one order, and aligned to four elements.
__device__ void look_by_four(const Call &c, const View &view, float inverse, uint32_t *bins, Seen<float> &seen) {
    const bool has_v = view.row.exp_avg_sq, counts = c.learns && view.grad;
    const int64_t whole = view.start + (view.stop - view.start) / 4 * 4;
    for (int64_t k = view.start + 4 * threadIdx.x; k < whole; k += 4 * blockDim.x) {
        float x[4][4] = {};
        for (int q = 0; q < 4; ++q)
            if (view.data(q)) load4(view.row.type[q], view.data(q), k, x[q]);
        for (int j = 0; j < 4; ++j) {
            const float each[4] = {x[PARAM][j], x[GRAD][j], x[EXP_AVG][j], x[EXP_AVG_SQ][j]};
            seen.take(each, inverse, has_v);
            if (counts) count(bins, each[GRAD]);
        }
    }
    View rest = view;
    rest.start = whole;
    look<float>(c, rest, inverse, bins, seen);
}

__device__ bool by_four(const View &view) {
    bool fits = !view.layout;
    for (int q = 0; q < 4; ++q)
        fits &= (uint64_t)view.data(q) % (view.row.type[q] == FLOAT32 ? 16 : 8) == 0;
    return fits;
}

// The skip, and what is to be mended: one block, when all have looked.
__device__ void decide(const Call &c) {
    const int64_t T = c.tensors;
    const Scratch &s = c.scratch;
    int bad = 0, any_over = 0;
    for (int64_t i = threadIdx.x; i < T; i += blockDim.x) {
        const int32_t present = __ldcg(&s.present[i]);
        if (present & 2) c.state.bound[PARAM * T + i] = infinity();
        bool within[4];
        for (int q = 0; q < 4; ++q) {
            const int64_t at = q * T + i;
            s.largest[at] = double_of(__ldcg(&s.most[at]));
            s.most[at] = 0;
            s.limit[at] = limit(c.hyper, c.state, T, q, i);
            // Strictly below, so that an infinite element is found under a bound of +inf too.
            within[q] = s.largest[at] < s.limit[at];
        }
        const bool usable = present & 1 && finite(s.largest[GRAD * T + i]);
        const bool pair = within[EXP_AVG] && within[EXP_AVG_SQ] && !__ldcg(&s.broken[i]);
        s.broken[i] = 0;
        s.present[i] = usable;
        bad |= c.protects[GRAD * T + i] && !finite(s.largest[GRAD * T + i]);
        s.over[i] = (!within[PARAM] && c.protects[PARAM * T + i]) << PARAM |
                    (!within[GRAD] && usable && c.protects[GRAD * T + i]) << GRAD |
                    (!pair && c.protects[EXP_AVG * T + i]) << EXP_AVG;
        any_over |= s.over[i];
    }
    bad = __syncthreads_or(bad);
    any_over = __syncthreads_or(any_over);
    if (threadIdx.x == 0) {
        Found &found = *s.found;
        const float vetoed = c.vetoed ? *c.vetoed : 0;
        found.bad = bad;
        found.any_over = any_over;
        found.skip = bad && *c.phase > OBSERVE;
        found.executed = !found.skip && !(vetoed > 0);
        found.found_inf = found.skip ? 1 : vetoed;
    }
}

// What of a tensor is to be mended; a skipped step's gradients are left as they are, for no update sees them.
__device__ int32_t to_mend(const Scratch &s, int64_t i) {
    return s.found->bad ? s.over[i] & ~(1 << GRAD) : s.over[i];
}

template <class Real> __device__ void mend(const Call &c, const View &view, int64_t i, int32_t over) {
    const int64_t T = c.tensors, phase = *c.phase;
    const Scratch &s = c.scratch;
    const Row &row = view.row;
    const Most most = {s.limit[PARAM * T + i], s.limit[GRAD * T + i], s.limit[EXP_AVG * T + i],
                       s.limit[EXP_AVG_SQ * T + i], sqrt(ratio_limit_sq(c.hyper, c.state, i)), c.eps[i], c.state.budget[i] / c.state.filled[i]};
    uint64_t repaired = 0, clamps = 0;
    Seen<Real> seen;
    for (int64_t k = view.start + threadIdx.x; k < view.stop; k += blockDim.x) {
        Real x[4], was[4];
        for (int q = 0; q < 4; ++q) was[q] = x[q] = view.get<Real>(q, k);
        if (over & 1 << EXP_AVG) {
            const bool has_m = row.exp_avg, has_v = row.exp_avg_sq;
            mend_moments(most, has_m, row.type[EXP_AVG], x[EXP_AVG], has_v, row.type[EXP_AVG_SQ], x[EXP_AVG_SQ]);
        }
        if (over & 1 << PARAM) x[PARAM] = mended_param(most, row.type[PARAM], x[PARAM]);
        const Real v = phase > OBSERVE ? x[EXP_AVG_SQ] : was[EXP_AVG_SQ];
        if (over & 1 << GRAD) x[GRAD] = mended_grad(most, row.type[GRAD], x[GRAD], v);
        for (int q = 0; q < 4; ++q) {
            const bool mends = over >> (q == EXP_AVG_SQ ? EXP_AVG : q) & 1;
            if (!mends || !view.data(q) || x[q] == was[q]) continue;
            (q == GRAD ? clamps : repaired) += 1;
            if (phase > (q == GRAD ? EXACT : OBSERVE)) store(row.type[q], view.data(q), view.at(q, k), x[q]);
            else x[q] = was[q];
        }
        seen.take(x, (Real)0, false);
    }
    seen.give(s.mended, nullptr, i, T);
    if (repaired) atomicAdd((uint64_t *)&c.state.repaired[i], repaired);
    if (clamps && phase != EXACT) atomicAdd((uint64_t *)&c.state.clamped[i], clamps);
}

// One tensor's scalars behind the update; one thread.
__device__ void learn_scalars(const Call &c, int64_t i, bool update) {
    const int64_t T = c.tensors;
    const Scratch &s = c.scratch;
    const State &state = c.state;
    double acting[4];
    const bool was_mended = to_mend(s, i);
    for (int q = 0; q < 4; ++q) {
        acting[q] = was_mended ? double_of(s.mended[q * T + i]) : s.largest[q * T + i];
        s.mended[q * T + i] = 0;
    }
    for (int q = EXP_AVG; !c.moments_known && q <= EXP_AVG_SQ; ++q) {
        // Bounds that have no history start from the optimizer's state as it is now.
        double &bound = state.bound[q * T + i];
        if (!finite(bound) && c.started[(q - EXP_AVG) * T + i]) bound = finite(acting[q]) ? acting[q] : infinity();
    }
    if (!update) return;
    const double raw = s.largest[GRAD * T + i];
    if (*c.phase != EXACT && finite(state.bound[GRAD * T + i])) state.counted[i] += c.rows[i].size;
    state.peak[i] = larger(state.peak[i], raw);
    save_up(c.hyper, c.learned, state, T, i, raw >= s.limit[GRAD * T + i]);
    learn_derived(c.hyper, state, T, i, acting[GRAD], acting[PARAM], c.lr_each ? c.lr_each[i] : c.lr, c.ratio_moves);
}

// The learned bound of one tensor; all threads of a block.
__device__ void observe(const Call &c, int64_t i, bool update) {
    const int64_t T = c.tensors;
    uint32_t *bins = c.scratch.bins + i * BINS;
    const double q = block_quantile(bins, c.learned.quantile, c.scratch.largest[GRAD * T + i]);
    for (int b = threadIdx.x; b < BINS; b += blockDim.x) bins[b] = 0;
    if (update && q > 0) {
        if (threadIdx.x == 0) c.state.recent[slot(c.state, c.learned, i) * T + i] = log(q);
        __syncthreads();
        const double target = block_kth_largest(c.state.recent + i, c.learned.window, T, c.learned.rank);
        if (threadIdx.x == 0) move_level(c.learned, c.state, i, target);
    }
    if (threadIdx.x == 0)
        c.state.bound[GRAD * T + i] = c.protects[GRAD * T + i] ? learned_bound(c.learned, c.state, i) : infinity();
}

__device__ void publish(const Call &c, int64_t i, bool update) {
    const int64_t group = c.rows[i].group;
    if (update) c.scratch.observed[group] = 1;
    if (!c.learns) return;
    for (int q = 0; q < 4; ++q) {
        // A tensor that has never had a gradient has no bound and needs none.
        if (q == GRAD && c.state.seen[i] == 0) continue;
        atomicMax(&c.scratch.largest_bound[q * c.groups + group], bits_of((float)c.state.bound[q * c.tensors + i]));
    }
}

// Table and counters: one block, when all tensors have learned.
__device__ void finish(const Call &c) {
    const Found &found = *c.scratch.found;
    for (int64_t g = threadIdx.x; g < c.groups; g += blockDim.x) {
        c.tally[3 + g] += __ldcg(&c.scratch.observed[g]);
        c.scratch.observed[g] = 0;
        for (int q = 0; c.learns && q < 4; ++q) {
            uint32_t &bits = c.scratch.largest_bound[q * c.groups + g];
            const uint32_t most = __ldcg(&bits);
            c.table[q * c.columns + c.column[g]] = most ? float_of(most) : (float)infinity();
            bits = 0;
        }
    }
    if (threadIdx.x == 0) {
        c.tally[0] += found.executed;
        c.tally[1] += found.skip;
        c.tally[2] = found.skip ? c.tally[2] + 1 : 0;
    }
}

}  // namespace

extern "C" {

__global__ void __launch_bounds__(THREADS)
sp4_look(const __grid_constant__ Call c, const __grid_constant__ Grads g) {
    __shared__ uint32_t bins[BINS];
    const View view(c, g);
    const int64_t i = c.chunk[g.first_chunk + blockIdx.x].tensor;
    const bool counts = c.learns && view.grad;
    if (counts) {
        for (int b = threadIdx.x; b < BINS; b += blockDim.x) bins[b] = 0;
        __syncthreads();
    }
    const double inverse = 1 / ratio_limit_sq(c.hyper, c.state, i);
    if (view.wide()) {
        Seen<double> seen;
        look<double>(c, view, inverse, bins, seen);
        seen.give(c.scratch.most, c.scratch.broken, i, c.tensors);
    } else {
        Seen<float> seen;
        if (by_four(view)) look_by_four(c, view, (float)inverse, bins, seen);
        else look<float>(c, view, (float)inverse, bins, seen);
        seen.give(c.scratch.most, c.scratch.broken, i, c.tensors);
    }
    if (counts) {
        __syncthreads();
        for (int b = threadIdx.x; b < BINS; b += blockDim.x)
            if (bins[b]) atomicAdd(&c.scratch.bins[i * BINS + b], bins[b]);
    }
    if (threadIdx.x == 0 && view.start == 0) {
        const int64_t k = i - g.first_tensor;
        c.scratch.present[i] = (view.grad ? 1 : 0) | (g.edited[k / 32] >> k % 32 & 1) << 1;
    }
    if (comes_last(&c.scratch.found->looked, c.chunks)) decide(c);
}

__global__ void __launch_bounds__(MENDING_THREADS, 1)
sp4_mend(const __grid_constant__ Call c, const __grid_constant__ Grads g) {
    if (!c.scratch.found->any_over) return;
    const int64_t i = c.chunk[g.first_chunk + blockIdx.x].tensor;
    const int32_t over = to_mend(c.scratch, i);
    if (!over) return;
    const View view(c, g);
    if (view.wide()) mend<double>(c, view, i, over);
    else mend<float>(c, view, i, over);
}

__global__ void __launch_bounds__(BINS / 4, 1)
sp4_learn(const __grid_constant__ Call c) {
    const int64_t i = blockIdx.x;
    const bool update = c.scratch.found->executed && c.scratch.present[i];
    if (threadIdx.x == 0) learn_scalars(c, i, update);
    if (c.learns) observe(c, i, update);
    if (threadIdx.x == 0) publish(c, i, update);
    if (comes_last(&c.scratch.found->learned, c.tensors)) finish(c);
}

}
