#if defined(__x86_64__)
#define FILL fill_v4
#include "kernels/reduce_impl.inc"
#endif
