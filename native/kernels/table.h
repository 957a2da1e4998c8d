// One compiled copy of the reductions per instruction set.
#pragma once
#include "base/dtype.h"
#include "base/request.h"

namespace farandole::kernels {

using ReduceFunction = void (*)(const void* const* in, int inputs, void* const* out, int outputs, size_t count, double pre, double post);

struct Table {
  ReduceFunction function[dtype_count][op_count];  // null where the dtype has no such op
};

void fill_baseline(Table& table);
#if defined(__x86_64__)
void fill_v3(Table& table);  // AVX2, F16C
void fill_v4(Table& table);  // AVX-512
#endif

}  // namespace farandole::kernels
