#define FILL fill_baseline
#include "kernels/reduce_impl.inc"
