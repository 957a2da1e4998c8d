// Arithmetic on memory: one dtype x op table. Pure functions, no allocation, safe from any thread.
#pragma once
#include <cstddef>

#include "base/dtype.h"
#include "base/request.h"

namespace farandole::kernels {

// out[k][i] = post * (op over j of pre * in[j][i]) for every k, in the fixed order j = 0, 1, ..., so that all
// outputs are bit-identical. op is sum, min, max or product (who decides Average is the plan, as a factor).
// float16 and bfloat16 are combined in float32 and rounded once; integers with a factor != 1 go through double
// and truncate toward zero; bool: sum and max are OR, product and min are AND, factors are ignored.
// Any in[j] may be equal to any out[k] (exactly the same address), never partly overlap. count elements each.
void reduce(Dtype dtype, ReduceOp op, const void* const* in, int inputs, void* const* out, int outputs,
            size_t count, double pre, double post);

// Why an allreduce cannot combine this dtype with this op, in words; nullptr when it can.
const char* why_not(Dtype dtype, ReduceOp op);

// For Adasum, float dtypes only. dots: a.a, b.b and a.b, in float64. blend: out[i] = of_a * a[i] + of_b * b[i]; out may be a or b.
void dots(Dtype dtype, const void* a, const void* b, size_t count, double result[3]);
void blend(Dtype dtype, const void* a, const void* b, void* out, size_t count, double of_a, double of_b);

// Name of the instruction set the table uses on this machine ("x86-64-v3" or "baseline").
const char* instruction_set();

}  // namespace farandole::kernels
