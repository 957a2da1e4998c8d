// One compiled copy of the reductions per instruction set.
#pragma once
#include "base/dtype.h"
#include "base/request.h"

namespace farandole::kernels {

using ReduceFunction = void (*)(const void* const* in, int inputs, void* const* out, int outputs, size_t count, double pre, double post);

using DotsFunction = void (*)(const void* a, const void* b, size_t count, double dots[3]);
using BlendFunction = void (*)(const void* a, const void* b, void* out, size_t count, double of_a, double of_b);

struct Table {
  DotsFunction dots[dtype_count];    // null where the dtype is no float
  BlendFunction blend[dtype_count];
  ReduceFunction function[dtype_count][op_count];  // null where the dtype has no such op
};

void fill_baseline(Table& table);
#if defined(__x86_64__)
void fill_v3(Table& table);  // AVX2, F16C
#endif

}  // namespace farandole::kernels
