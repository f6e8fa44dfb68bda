// Mending one element; the definition is sp4_lightning/backends/mending.py with derived.cap_pair, consistency.repair
// and budget.element_limit. Real is float, or double where a float64 takes part; every operation rounds as torch's do.
#pragma once
#include "storage.cuh"

namespace sp4 {

template <class Real> SP4_FUNCTION bool finite(Real value) { return fabs(value) < (Real)infinity(); }

// A NaN in `value` stays; `most` is never NaN.
template <class Real> SP4_FUNCTION Real clamped(Real value, Real most) {
    return value > most ? most : value < -most ? -most : value;
}

// What one tensor's elements are held to.
struct Most {
    double param, grad, exp_avg, exp_avg_sq;  // limits
    double ratio;  // c with its slack; infinity: the pair need not be consistent
    double eps;
    double budget;  // over filled, so that exp_avg_sq times it is the square of an element's limit
};

// exp_avg and exp_avg_sq, in this order: dead elements, exp_avg_sq with its pair, ratio, exp_avg.
template <class Real>
SP4_FUNCTION void mend_moments(const Most &most, bool has_m, int m_type, Real &m, bool has_v, int v_type, Real &v) {
    if ((has_m && !finite(m)) || (has_v && !(finite(v) && v >= 0))) m = v = 0;
    if (has_v) {
        const Real limit = rounded(v_type, (Real)most.exp_avg_sq);
        if (v > limit) {
            const Real shrink = rounded(v_type, sqrt(rounded(v_type, limit / v)));
            m = rounded(m_type, m * rounded(m_type, shrink));
            v = limit;
        }
        if (most.ratio < infinity()) {
            const Real eps = rounded(v_type, rounded(v_type, sqrt(v)) + (Real)most.eps);
            m = clamped(m, rounded(v_type, eps * (Real)most.ratio));
        }
    }
    m = rounded(m_type, clamped(m, (Real)most.exp_avg));
}

template <class Real> SP4_FUNCTION Real mended_param(const Most &most, int type, Real param) {
    return rounded(type, clamped(finite(param) ? param : (Real)0, (Real)most.param));
}

// `v` is exp_avg_sq as the update will find it; 0, or nothing that a square can be: the bound alone holds.
template <class Real> SP4_FUNCTION Real mended_grad(const Most &most, int type, Real grad, Real v) {
    Real limit = (Real)most.grad;
    if (v > 0) {
        const Real own = sqrt(v * (Real)most.budget);
        limit = own < limit ? own : limit;
    }
    return rounded(type, clamped(grad, limit));
}

}  // namespace sp4
