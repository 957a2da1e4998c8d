// What one rank asks for. The same struct from submission to execution; the first part also travels to the coordinator.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace farandole {

enum class Kind : uint8_t { allreduce, allgather, broadcast, reducescatter, alltoall, barrier, process_set, join };
enum class ReduceOp : uint8_t { average, sum, adasum, min, max, product };  // Horovod's numbers

inline constexpr const char* kind_names[] = {"allreduce", "allgather", "broadcast", "reducescatter",
                                             "alltoall",  "barrier",   "process_set", "join"};
inline constexpr const char* op_names[] = {"average", "sum", "adasum", "min", "max", "product"};
inline constexpr const char* join_name = "join";  // every join has this name: a rank joins a set once
inline constexpr size_t kind_count = 8, op_count = 6;

inline const char* name_of(Kind k) { return kind_names[static_cast<size_t>(k)]; }
inline const char* name_of(ReduceOp o) { return op_names[static_cast<size_t>(o)]; }

struct Request {
  std::string name;
  uint32_t process_set = 0;
  Kind kind = Kind::allreduce;
  ReduceOp op = ReduceOp::sum;
  Dtype dtype = Dtype::float32;
  int32_t root = 0;                // global rank
  double prescale = 1, postscale = 1;
  std::vector<int64_t> shape;      // process_set: the ranks of the new set
  std::vector<int64_t> splits;     // alltoall: rows for each member
  std::string refusal;             // non-empty: this rank refuses, with the reason

  int64_t elements() const {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
  }
  size_t bytes() const {  // of this rank's input
    if (kind == Kind::barrier || kind == Kind::process_set || kind == Kind::join) return 0;
    return static_cast<size_t>(elements()) * info(dtype).bytes;
  }
  // Elements in one row, i.e. in one step along the first dimension.
  int64_t row_elements() const {
    int64_t n = 1;
    for (size_t i = 1; i < shape.size(); ++i) n *= shape[i];
    return n;
  }
};

// Rows of `rows` that member `index` of `members` owns after a reducescatter: the first ones get one more.
inline int64_t share_of_rows(int64_t rows, int members, int index) {
  return rows / members + (index < rows % members ? 1 : 0);
}

}  // namespace farandole
