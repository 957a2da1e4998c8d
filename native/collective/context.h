// What every algorithm is given: who takes part, over which links, until when.
#pragma once
#include <cstdint>
#include <vector>

#include "base/request.h"
#include "transport/mesh.h"

namespace farandole {

struct Context {
  Mesh& mesh;
  const std::vector<int>& members;  // global ranks, ascending
  int me;                           // my index in members
  uint64_t sequence;                // the agreed number of this plan, the same on all members, increasing
  Clock::time_point deadline;
  const char* name;                 // for error messages

  int size() const { return static_cast<int>(members.size()); }
  Link& link(int index) const { return mesh.link(members[static_cast<size_t>(index)]); }
};

struct Reduction {
  Dtype dtype;
  ReduceOp op;       // never average: the plan made it a factor
  double pre = 1, post = 1;
};

// Where each of several consecutive parts begins.
template <class T>
std::vector<T*> consecutive(T* base, const std::vector<size_t>& bytes) {
  std::vector<T*> at;
  for (size_t n : bytes) {
    at.push_back(base);
    base += n;
  }
  return at;
}

}  // namespace farandole
