#include "kernels/kernels.h"

#include "kernels/table.h"

namespace farandole::kernels {
namespace {

struct Chosen {
  Table table{};
  const char* name = "baseline";

  Chosen() {
    fill_baseline(table);
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("x86-64-v3")) {
      fill_v3(table);
      name = "x86-64-v3";
    }
#endif
  }
};

const Chosen& chosen() {
  static const Chosen c;  // the processor does not change
  return c;
}

ReduceFunction find(Dtype dtype, ReduceOp op) { return chosen().table.function[static_cast<size_t>(dtype)][static_cast<size_t>(op)]; }

}  // namespace

void reduce(Dtype dtype, ReduceOp op, const void* const* in, int inputs, void* const* out, int outputs, size_t count, double pre, double post) {
  find(dtype, op)(in, inputs, out, outputs, count, pre, post);
}

void dots(Dtype dtype, const void* a, const void* b, size_t count, double result[3]) {
  chosen().table.dots[static_cast<size_t>(dtype)](a, b, count, result);
}

void blend(Dtype dtype, const void* a, const void* b, void* out, size_t count, double of_a, double of_b) {
  chosen().table.blend[static_cast<size_t>(dtype)](a, b, out, count, of_a, of_b);
}

const char* why_not(Dtype dtype, ReduceOp op) {
  if (op == ReduceOp::adasum) return chosen().table.dots[static_cast<size_t>(dtype)] ? nullptr : "Adasum needs a float dtype";
  if (op == ReduceOp::average) op = ReduceOp::sum;
  if (find(dtype, op)) return nullptr;
  return info(dtype).reducible ? "complex numbers have no order, so no min or max" : "this dtype can be moved but not reduced";
}

const char* instruction_set() { return chosen().name; }

}  // namespace farandole::kernels
