#if defined(__x86_64__)
#define FILL fill_v3
#include "kernels/reduce_impl.inc"
#endif
