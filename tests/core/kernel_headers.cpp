// The headers of the CUDA kernels as a host compiles them, for test_kernel_headers.py.
#include <cstddef>

#include "call.cuh"
#include "mending.cuh"

using namespace sp4;

template <class Real>
static void mend(const Most &most, int64_t n, const int64_t *type, const int64_t *has, void *p, void *g, void *m, void *v) {
    for (int64_t k = 0; k < n; ++k) {
        Real param = load<Real>(type[0], p, k), grad = load<Real>(type[1], g, k);
        Real first = has[0] ? load<Real>(type[2], m, k) : 0, second = has[1] ? load<Real>(type[3], v, k) : 0;
        mend_moments(most, has[0], type[2], first, has[1], type[3], second);
        store(type[0], p, k, mended_param(most, type[0], param));
        store(type[1], g, k, mended_grad(most, type[1], grad, second));
        if (has[0]) store(type[2], m, k, first);
        if (has[1]) store(type[3], v, k, second);
    }
}

extern "C" {

void mend_all(const Most *most, int64_t wide, int64_t n, const int64_t *type, const int64_t *has, void *p, void *g, void *m, void *v) {
    if (wide) mend<double>(*most, n, type, has, p, g, m, v);
    else mend<float>(*most, n, type, has, p, g, m, v);
}

void round_all(int64_t type, int64_t n, float *values) {
    for (int64_t k = 0; k < n; ++k) values[k] = rounded((int)type, values[k]);
}

int64_t size_of(int64_t which) {
    const int64_t sizes[] = {sizeof(Row), sizeof(Layout), sizeof(Chunk), sizeof(Found), sizeof(Call), sizeof(Grads)};
    return sizes[which];
}

int64_t place_of(int64_t which) {
    const int64_t places[] = {offsetof(Call, state), offsetof(Call, learned), offsetof(Call, scratch), offsetof(Call, lr),
                              offsetof(Grads, grad), offsetof(Grads, edited), offsetof(Found, found_inf)};
    return places[which];
}

}
