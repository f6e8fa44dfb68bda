// The engine and the oracle on a CPU, called through ctypes (sp4_lightning/backends/cpp.py).
//
// sp4_screen reads every tensor once before the update and says whether anything has to be mended, which Python then
// does. sp4_learn advances the bounds behind the update.
#include <vector>

#include "histogram.cuh"
#include "rules.cuh"
#include "storage.cuh"

using namespace sp4;

namespace {

const int64_t CHUNK = 4096;  // elements that stay in the first-level cache between two looks at them

struct Tensor {
    const void *data;  // null: there is none
    int64_t type;
};

struct Group {
    int64_t first, last;  // its members' range in `members`
    int64_t column;       // in the table
};

// Mirrors Call in sp4_lightning/backends/cpp.py, field by field; all are 8 bytes wide.
struct Call {
    int64_t tensors;
    const int64_t *sizes;
    const Tensor *found;  // [4, T]
    State state;
    Hyper hyper;
    Learned learned;
    // Results of sp4_screen.
    double *largest;  // [4, T]
    double *limit;    // [4, T]
    char *within;     // [4, T]
    char *consistent;
    int64_t learns;  // count histograms, and observe them
    int64_t *bins;   // [T, BINS]
    // Arguments of sp4_learn.
    const double *acting;
    const char *usable;     // null: all
    const char *protects_grad;
    const double *lr_each;  // null: `lr` for all
    double lr;
    int64_t ratio_moves, counts_met;
    // The table.
    int64_t groups, columns;
    const Group *group;
    const int64_t *members;
    float *table;  // [4, columns]
};

// A type's bits, and how to widen it. Integer order of magnitudes is their order as floats, with infinity above all
// numbers and NaN above infinity, so an integer maximum needs no branch and loses no NaN.
template <int type> struct Format;

template <> struct Format<FLOAT32> {
    typedef int32_t Bits;
    typedef float Real;
    static const Bits magnitude = 0x7fffffff, infinite = 0x7f800000;
    static float real(Bits bits) { return float_of((uint32_t)bits); }
};

template <> struct Format<FLOAT64> {
    typedef int64_t Bits;
    typedef double Real;
    static const Bits magnitude = 0x7fffffffffffffff, infinite = 0x7ff0000000000000;
    static double real(Bits bits) { return double_of((uint64_t)bits); }
};

template <> struct Format<BFLOAT16> {
    typedef int16_t Bits;
    typedef float Real;
    static const Bits magnitude = 0x7fff, infinite = 0x7f80;
    static float real(Bits bits) { return from_bfloat16((uint16_t)bits); }
};

template <> struct Format<FLOAT16> {
    typedef int16_t Bits;
    typedef float Real;
    static const Bits magnitude = 0x7fff, infinite = 0x7c00;
    static float real(Bits bits) { return from_float16((uint16_t)bits); }
};

// exp_avg_sq keeps its sign, so that a negative one does not count as large; NaN of either sign does.
template <int type, bool keeps_sign>
void raise(typename Format<type>::Bits &most, const void *data, int64_t from, int64_t to) {
    typedef Format<type> F;
    const typename F::Bits *x = (const typename F::Bits *)data;
    typename F::Bits found = most;
    for (int64_t k = from; k < to; ++k) {
        const typename F::Bits magnitude = x[k] & F::magnitude;
        const typename F::Bits value = keeps_sign && magnitude <= F::infinite ? x[k] : magnitude;
        found = value > found ? value : found;
    }
    most = found;
}

template <int type> void count(const void *data, int64_t from, int64_t to, int64_t *bins) {
    typedef Format<type> F;
    const typename F::Bits *x = (const typename F::Bits *)data;
    for (int64_t k = from; k < to; ++k) {
        const uint32_t bits = counted_bits(F::real(x[k] & F::magnitude));
        if (bits) ++bins[bin_of(bits)];
    }
}

template <int type> double largest(int quantity, const void *data, int64_t n, int64_t *bins) {
    typedef Format<type> F;
    typename F::Bits most = 0;
    for (int64_t from = 0; from < n; from += CHUNK) {
        const int64_t to = from + CHUNK < n ? from + CHUNK : n;
        if (quantity == EXP_AVG_SQ) raise<type, true>(most, data, from, to);
        else raise<type, false>(most, data, from, to);
        if (bins) count<type>(data, from, to, bins);
    }
    return F::real(most);
}

double largest(int quantity, const Tensor &t, int64_t n, int64_t *bins) {
    if (!t.data) return 0;
    switch (t.type) {
        case FLOAT32: return largest<FLOAT32>(quantity, t.data, n, bins);
        case FLOAT64: return largest<FLOAT64>(quantity, t.data, n, bins);
        case BFLOAT16: return largest<BFLOAT16>(quantity, t.data, n, bins);
        default: return largest<FLOAT16>(quantity, t.data, n, bins);
    }
}

// exp_avg² / c² <= exp_avg_sq everywhere; false where either is NaN or exp_avg_sq is negative.
template <int type> bool consistent(const void *exp_avg, const void *exp_avg_sq, int64_t n, double inverse) {
    typedef Format<type> F;
    typedef typename F::Bits Bits;
    typedef typename F::Real Real;
    const Bits *m = (const Bits *)exp_avg, *v = (const Bits *)exp_avg_sq;
    const Real inverse_here = (Real)inverse;
    Bits broken = 0;
    for (int64_t k = 0; k < n; ++k) {
        const Real a = F::real(m[k]), b = F::real(v[k]);
        broken |= !(a * a * inverse_here - b <= 0);
    }
    return !broken;
}

template <int type> bool non_negative(const void *data, int64_t n) {
    typedef Format<type> F;
    const typename F::Bits *v = (const typename F::Bits *)data;
    typename F::Bits broken = 0;
    for (int64_t k = 0; k < n; ++k) broken |= !(F::real(v[k]) >= 0);
    return !broken;
}

template <int type> bool pair_holds(const void *exp_avg, const void *exp_avg_sq, int64_t n, double inverse) {
    return exp_avg ? consistent<type>(exp_avg, exp_avg_sq, n, inverse) : non_negative<type>(exp_avg_sq, n);
}

// An exp_avg without an exp_avg_sq has nothing to be consistent with. Python sees to it that both have one type.
bool pair_holds(const Tensor &m, const Tensor &v, int64_t n, double inverse) {
    if (!v.data) return true;
    switch (v.type) {
        case FLOAT32: return pair_holds<FLOAT32>(m.data, v.data, n, inverse);
        case FLOAT64: return pair_holds<FLOAT64>(m.data, v.data, n, inverse);
        case BFLOAT16: return pair_holds<BFLOAT16>(m.data, v.data, n, inverse);
        default: return pair_holds<FLOAT16>(m.data, v.data, n, inverse);
    }
}

double quantile(const int64_t *bins, double q, double maximum) {
    int64_t total = 0;
    for (int b = 0; b < FINITE_BINS; ++b) total += bins[b];
    if (total < FEW) return total > 0 ? maximum : 0;
    const double rank = rank_of(q, total);
    int64_t below = 0;
    int bin = 0;
    while (bin < FINITE_BINS - 1 && (double)(below + bins[bin]) < rank) below += bins[bin++];
    return inside(bin, (rank - (double)below) / (double)(bins[bin] > 1 ? bins[bin] : 1), maximum);
}

// The k-th largest of one tensor's window, by keeping the k largest in order; most entries fail one comparison.
double kth_largest(const double *recent, int64_t window, int64_t stride, int64_t k) {
    std::vector<double> top(k, -infinity());
    for (int64_t w = 0; w < window; ++w) {
        const double value = recent[w * stride];
        if (!(value > top.back())) continue;
        int64_t at = k - 1;
        for (; at > 0 && top[at - 1] < value; --at) top[at] = top[at - 1];
        top[at] = value;
    }
    return top.back();
}

void observe(const Call &c, int64_t i) {
    const double q = quantile(c.bins + i * BINS, c.learned.quantile, c.largest[GRAD * c.tensors + i]);
    const bool valid = q > 0 && (!c.usable || c.usable[i]);
    if (valid) {
        c.state.recent[slot(c.state, c.learned, i) * c.tensors + i] = log(q);
        move_level(
            c.learned, c.state, i, kth_largest(c.state.recent + i, c.learned.window, c.tensors, c.learned.rank));
    }
    c.state.bound[GRAD * c.tensors + i] = c.protects_grad[i] ? learned_bound(c.learned, c.state, i) : infinity();
}

// A tensor that has never had a gradient has no bound and needs none, so it does not hold its group's at +inf.
void publish(const Call &c) {
    for (int64_t g = 0; g < c.groups; ++g)
        for (int quantity = 0; quantity < 4; ++quantity) {
            double most = 0;
            for (int64_t k = c.group[g].first; k < c.group[g].last; ++k) {
                const int64_t i = c.members[k];
                if (quantity == GRAD && c.state.seen[i] == 0) continue;
                most = larger(most, c.state.bound[quantity * c.tensors + i]);
            }
            c.table[quantity * c.columns + c.group[g].column] = (float)(most > 0 ? most : infinity());
        }
}

}  // namespace

extern "C" {

int64_t sp4_call_size() { return sizeof(Call); }

// Reads everything; returns 1 if every tensor has a gradient and all values are within their bounds.
int64_t sp4_screen(const Call *call) {
    const Call &c = *call;
    const int64_t T = c.tensors;
    bool clean = true;
    if (c.learns) memset(c.bins, 0, T * BINS * sizeof *c.bins);
    for (int64_t i = 0; i < T; ++i) {
        const int64_t n = c.sizes[i];
        for (int quantity = 0; quantity < 4; ++quantity) {
            const int64_t at = quantity * T + i;
            int64_t *bins = quantity == GRAD && c.learns ? c.bins + i * BINS : nullptr;
            c.largest[at] = largest(quantity, c.found[at], n, bins);
            c.limit[at] = limit(c.hyper, c.state, T, quantity, i);
            // Strictly below, so that an infinite element is found under a bound of +inf too.
            c.within[at] = c.largest[at] < c.limit[at];
            clean &= c.within[at];
        }
        c.consistent[i] = pair_holds(
            c.found[EXP_AVG * T + i], c.found[EXP_AVG_SQ * T + i], n, 1 / ratio_limit_sq(c.hyper, c.state, i));
        clean &= c.consistent[i] && c.found[GRAD * T + i].data;
    }
    return clean;
}

// Advances every bound by one update; a tensor without a usable gradient keeps its bounds.
void sp4_learn(const Call *call) {
    const Call &c = *call;
    const int64_t T = c.tensors;
    for (int64_t i = 0; i < T; ++i) {
        if (!c.usable || c.usable[i]) {
            const double raw = c.largest[GRAD * T + i], lr = c.lr_each ? c.lr_each[i] : c.lr;
            if (c.counts_met && isfinite(c.state.bound[GRAD * T + i])) c.state.counted[i] += c.sizes[i];
            c.state.peak[i] = larger(c.state.peak[i], raw);
            save_up(c.hyper, c.learned, c.state, T, i, raw >= c.limit[GRAD * T + i]);
            learn_derived(c.hyper, c.state, T, i, c.acting[i], c.largest[PARAM * T + i], lr, c.ratio_moves);
        }
        if (c.learns) observe(c, i);
    }
    if (c.learns) publish(c);
}

}
