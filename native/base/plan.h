// What all members of a process set run as one operation.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/request.h"
#include "base/status.h"

namespace farandole {

// One request inside a plan, as one member sees it.
struct Entry {
  std::string name;
  // allgather: rows of each member; alltoall: rows this member gets from each; process_set: its id; join: who came last.
  std::vector<int64_t> rows;
  int64_t elements = 0;       // allreduce: so that a joined rank can take part without having asked
  std::string result;         // a small message's output, when the plan is `small`
};

// sequence is unique and increasing in the world and epoch.
struct Plan {
  uint64_t sequence = 0;
  uint32_t process_set = 0;
  Kind kind = Kind::allreduce;
  ReduceOp op = ReduceOp::sum;       // average has become a factor in postscale
  Dtype dtype = Dtype::float32;
  int32_t root = 0;
  double prescale = 1, postscale = 1;
  bool small = false;                // the result is already in the entries: nothing moves any more
  Status status;                     // not ok: the entries end with it
  std::vector<Entry> entries;
};

}  // namespace farandole
