// The rules for one tensor after an update. The definitions are sp4_lightning/tracker.py, derived.py, consistency.py
// and TorchBackend.learn; every name means what it means there, and every step is in float64.
#pragma once
#include "portable.cuh"

namespace sp4 {

const double SLACK = 1e-4;   // derived.SLACK
const double HUGE_GRAD = 1e150;  // backends/torch.py HUGE

// What is remembered, one column per tensor (sp4_lightning/state.py).
struct State {
    double *bound;  // [4, T]
    double *ratio_sq, *level, *peak;
    double *recent;  // [window, T]
    double *budget, *filled;
    int64_t *seen, *counted, *clamped, *repaired;
};

// What the optimizer does with a gradient (sp4_lightning/hyper.py).
struct Hyper {
    const double *decay, *weight;  // [2, T]
    const double *fill_decay;
    const double *slack;           // [4, T]
    const double *tiny, *ratio_decay, *ratio_gain, *ratio_slack_sq;
    const double *step_ratio, *step_const, *step_exp_avg, *step_grad;
    const double *l2, *weight_decay;  // null: nowhere
};

// How the gradient's bound is learned, in observations (sp4_lightning/settings.py).
struct Learned {
    double quantile, headroom;
    double log_rise, log_fall;  // of one observation
    double budget, refill;
    int64_t rank, arm_after, window;
};

// c² with its slack; infinity where the consistency rule is off.
SP4_FUNCTION double ratio_limit_sq(const Hyper &h, const State &s, int64_t i) {
    return h.ratio_gain[i] > 0 ? s.ratio_sq[i] * h.ratio_slack_sq[i] : infinity();
}

SP4_FUNCTION double limit(const Hyper &h, const State &s, int64_t T, int quantity, int64_t i) {
    return s.bound[quantity * T + i] * h.slack[quantity * T + i] + h.tiny[i];
}

// The bounds that follow from the optimizer's own recursion.
//   grad   largest |grad| that the update has seen
//   param  largest |param| before it
SP4_FUNCTION void learn_derived(
    const Hyper &h, const State &s, int64_t T, int64_t i, double grad, double param, double lr, bool ratio_moves) {
    if (h.l2) {
        grad += h.l2[i] * param;
        grad = grad < HUGE_GRAD ? grad : HUGE_GRAD;  // an observed NaN parameter makes a gradient of any size
    }
    double *m = s.bound + EXP_AVG * T + i, *v = s.bound + EXP_AVG_SQ * T + i;
    *m = h.decay[i] * *m + h.weight[i] * grad;
    *v = h.decay[T + i] * *v + h.weight[T + i] * grad * grad;
    if (ratio_moves) s.ratio_sq[i] = h.ratio_decay[i] * s.ratio_sq[i] + h.ratio_gain[i];
    double most = h.step_ratio[i] * sqrt(s.ratio_sq[i] * h.ratio_slack_sq[i]) + h.step_const[i];
    // Where there is no exp_avg its bound is +inf, which 0 does not cancel.
    if (h.step_exp_avg[i] > 0) most += h.step_exp_avg[i] * *m;
    most += h.step_grad[i] * grad;
    double start = param * h.slack[PARAM * T + i];
    if (h.weight_decay) start *= larger(1.0, fabs(1 - lr * h.weight_decay[i]));
    const double reached = start + lr * (1 + SLACK) * most;
    s.bound[PARAM * T + i] = reached >= 0 ? reached : infinity();
}

// What an element may have at the next update that is beyond its tensor's bound (sp4_lightning/budget.py).
SP4_FUNCTION void save_up(const Hyper &h, const Learned &l, const State &s, int64_t T, int64_t i, bool beyond) {
    s.budget[i] = smaller((beyond ? 0.0 : s.budget[i]) + l.refill, l.budget);
    s.filled[i] = h.fill_decay[i] * s.filled[i] + h.weight[T + i];
}

// The slot of the window that the next observation goes to.
SP4_FUNCTION int64_t slot(const State &s, const Learned &l, int64_t i) { return s.seen[i] % l.window; }

// The level after an observation that is in the window already; `target` is the rank-th largest there.
SP4_FUNCTION void move_level(const Learned &l, const State &s, int64_t i, double target) {
    const int64_t seen = ++s.seen[i];
    if (seen < l.arm_after) return;
    const double move = smaller(larger(target - s.level[i], -l.log_fall), l.log_rise);
    s.level[i] = seen == l.arm_after ? target : s.level[i] + move;
}

SP4_FUNCTION double learned_bound(const Learned &l, const State &s, int64_t i) {
    return s.seen[i] >= l.arm_after ? l.headroom * exp(s.level[i]) : infinity();
}

}  // namespace sp4
