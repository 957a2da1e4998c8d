#include "backend/host.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <numeric>

#include "collective/peer_to_peer.h"
#include "collective/shared_memory.h"

namespace farandole {
namespace {

std::shared_ptr<char> owned_memory(size_t bytes) {
  constexpr size_t line = 64;
  auto* p = static_cast<char*>(std::aligned_alloc(line, (std::max<size_t>(bytes, 1) + line - 1) / line * line));
  if (!p) throw Failure({Code::internal, "no memory for a result of " + std::to_string(bytes) + " bytes", {}});
  return std::shared_ptr<char>(p, std::free);
}

// An allgather's or alltoall's output, known only now that all rows are.
void give_output(Operation& o, const std::vector<int64_t>& rows) {
  int64_t total = std::accumulate(rows.begin(), rows.end(), int64_t{0});
  Handle& h = *o.handle;
  h.shape = o.request.shape;
  h.shape[0] = total;
  h.received_splits = rows;
  h.output_bytes = static_cast<size_t>(total * o.request.row_elements()) * info(o.request.dtype).bytes;
  h.output = owned_memory(h.output_bytes);
}

std::vector<size_t> bytes_of(const std::vector<int64_t>& rows, const Request& r) {
  std::vector<size_t> v;
  for (int64_t n : rows) v.push_back(static_cast<size_t>(n * r.row_elements()) * info(r.dtype).bytes);
  return v;
}

}  // namespace

Choice HostBackend::choose(const std::vector<int>& members) const {
  auto mapped = std::count_if(members.begin(), members.end(), [&](int r) { return mesh_.arena().mapped(r); });
  return select_algorithm(static_cast<int>(members.size()), static_cast<int>(mapped));
}

void HostBackend::run(const Plan& plan, const std::vector<int>& members, const std::vector<Operation*>& operations, Clock::time_point deadline) {
  if (plan.small) {
    for (size_t i = 0; i < operations.size(); ++i) {
      Operation& o = *operations[i];
      const std::string& result = plan.entries[i].result;
      if (plan.kind == Kind::allgather) give_output(o, plan.entries[i].rows);
      void* to = plan.kind == Kind::allgather ? o.handle->output.get() : o.output;
      if (!result.empty()) std::memcpy(to, result.data(), result.size());
    }
    return;
  }
  int me = static_cast<int>(std::find(members.begin(), members.end(), mesh_.rank) - members.begin());
  Context c{mesh_, members, me, plan.sequence, deadline, operations[0]->request.name.c_str()};
  bool shared = choose(members).algorithm == Algorithm::shared_memory;
  if (operations.size() > 1) run_fused(plan, c, shared, operations);
  else run_single(plan, c, shared, plan.entries[0], *operations[0]);
}

void HostBackend::run_fused(const Plan& plan, const Context& c, bool shared, const std::vector<Operation*>& operations) {
  size_t bytes = 0;
  for (Operation* o : operations) bytes += o->request.bytes();
  if (bytes > fusion_bytes_) {
    fusion_.reset();
    fusion_ = mesh_.arena().allocate(bytes);
    fusion_bytes_ = bytes;
  }
  char* at = fusion_.get();
  for (Operation* o : operations) {
    std::memcpy(at, o->input, o->request.bytes());
    at += o->request.bytes();
  }
  Reduction r{plan.dtype, plan.op, plan.prescale, plan.postscale};
  auto reduce = shared ? shared_memory::allreduce : peer_to_peer::allreduce;
  reduce(c, fusion_.get(), fusion_.get(), bytes / info(plan.dtype).bytes, r);
  at = fusion_.get();
  for (Operation* o : operations) {
    std::memcpy(o->output, at, o->request.bytes());
    at += o->request.bytes();
  }
}

void HostBackend::run_single(const Plan& plan, const Context& c, bool shared, const Entry& entry, Operation& o) {
  const Request& request = o.request;
  Reduction r{plan.dtype, plan.op, plan.prescale, plan.postscale};
  size_t bytes = request.bytes();
  switch (plan.kind) {
    case Kind::allreduce:
      if (!bytes) break;
      if (plan.op == ReduceOp::adasum) peer_to_peer::adasum(c, o.input, o.output, static_cast<size_t>(request.elements()), r);
      else (shared ? shared_memory::allreduce : peer_to_peer::allreduce)(c, o.input, o.output, static_cast<size_t>(request.elements()), r);
      break;
    case Kind::reducescatter: {
      std::vector<size_t> counts;
      for (int i = 0; i < c.size(); ++i)
        counts.push_back(static_cast<size_t>(share_of_rows(request.shape[0], c.size(), i) * request.row_elements()));
      if (bytes) (shared ? shared_memory::reducescatter : peer_to_peer::reducescatter)(c, o.input, o.output, counts, r);
      break;
    }
    case Kind::broadcast: {
      int root = static_cast<int>(std::find(c.members.begin(), c.members.end(), plan.root) - c.members.begin());
      if (bytes) (shared ? shared_memory::broadcast : peer_to_peer::broadcast)(c, o.input, o.output, bytes, root);
      break;
    }
    case Kind::allgather: {
      give_output(o, entry.rows);
      if (o.handle->output_bytes)
        (shared ? shared_memory::allgather : peer_to_peer::allgather)(c, o.input, o.handle->output.get(), bytes_of(entry.rows, request));
      break;
    }
    case Kind::alltoall: {
      give_output(o, entry.rows);
      (shared ? shared_memory::alltoall : peer_to_peer::alltoall)(c, o.input, o.handle->output.get(), bytes_of(request.splits, request),
                                                                  bytes_of(entry.rows, request));
      break;
    }
    case Kind::barrier:      // to have agreed is the barrier
    case Kind::process_set:  // the engine adds it
    case Kind::join:
      break;
  }
}

}  // namespace farandole
