// Performs a whole plan on memory of this host, over this rank's links.
#pragma once
#include <memory>
#include <vector>

#include "base/handle.h"
#include "base/plan.h"
#include "collective/context.h"
#include "collective/select.h"
#include "transport/mesh.h"

namespace farandole {

// A request of this rank with the memory it is about and the handle to complete.
struct Operation {
  Request request;
  const void* input = nullptr;
  void* output = nullptr;
  std::shared_ptr<Handle> handle;
  std::shared_ptr<char> owned;  // the memory, where it is the engine's own
};

class HostBackend {
 public:
  explicit HostBackend(Mesh& mesh) : mesh_(mesh) {}

  // Moves the bytes and fills the handles' outputs; the engine completes them. operations: one per entry, in their order.
  // Throws Failure when a peer is lost or the deadline passes.
  void run(const Plan& plan, const std::vector<int>& members, const std::vector<Operation*>& operations, Clock::time_point deadline);

  // How a plan over these members would run, and why.
  Choice choose(const std::vector<int>& members) const;

 private:
  void run_fused(const Plan& plan, const Context& c, bool shared, const std::vector<Operation*>& operations);
  void run_single(const Plan& plan, const Context& c, bool shared, const Entry& entry, Operation& o);

  Mesh& mesh_;
  std::shared_ptr<char> fusion_;  // registered; kept, as large as the largest fused plan so far
  size_t fusion_bytes_ = 0;
};

}  // namespace farandole
