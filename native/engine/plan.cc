#include "engine/plan.h"

#include <algorithm>
#include <cstring>

#include "base/wire.h"
#include "kernels/kernels.h"

namespace farandole {
namespace {

// The outputs of a small message, computed here once for all members: bit-identical by construction.
// Empty when a payload is missing, i.e. some member's input was too large to ride along.
std::optional<std::string> small_result(const Agreement& a, const Plan& plan, const std::vector<int>& ranks) {
  const Request& r = a.members[0].request;
  switch (plan.kind) {
    case Kind::allreduce: {
      if (plan.op == ReduceOp::adasum) return std::nullopt;
      std::vector<const void*> in;
      for (const Announcement& m : a.members) {
        if (m.payload.size() != r.bytes() || m.payload.empty()) return std::nullopt;
        in.push_back(m.payload.data());
      }
      std::string out(r.bytes(), '\0');
      void* to = out.data();
      kernels::reduce(plan.dtype, plan.op, in.data(), static_cast<int>(in.size()), &to, 1, static_cast<size_t>(r.elements()), plan.prescale, plan.postscale);
      return out;
    }
    case Kind::broadcast: {
      auto root = std::find(ranks.begin(), ranks.end(), r.root);
      const std::string& payload = a.members[static_cast<size_t>(root - ranks.begin())].payload;
      if (payload.empty()) return std::nullopt;
      return payload;
    }
    case Kind::allgather: {
      std::string out;
      for (const Announcement& m : a.members) {
        if (m.payload.size() != m.request.bytes()) return std::nullopt;
        out += m.payload;
      }
      return out;
    }
    default:
      return std::nullopt;
  }
}

Plan plan_for(const Agreement& a, const std::vector<int>& ranks) {
  Plan p;
  p.process_set = a.process_set;
  p.status = a.status;
  if (!a.status.ok()) return p;
  const Request& r = a.members[0].request;
  p.kind = r.kind;
  p.dtype = r.dtype;
  p.root = r.root;
  p.op = r.op;
  p.prescale = r.prescale;
  p.postscale = r.postscale;
  if (r.op == ReduceOp::average) {  // the one place that knows what Average means
    p.op = ReduceOp::sum;
    p.postscale /= static_cast<double>(ranks.size());
  }
  return p;
}

bool fusable(const Plan& p, const Request& r) { return p.status.ok() && !p.small && p.kind == Kind::allreduce && p.op != ReduceOp::adasum && r.bytes() <= fuse_below_bytes; }

bool same_arithmetic(const Plan& a, const Plan& b) {
  return a.process_set == b.process_set && a.dtype == b.dtype && a.op == b.op && a.prescale == b.prescale && a.postscale == b.postscale;
}

}  // namespace

bool carries_payload(const Request& r, int rank, size_t small_bytes) {
  if (!r.refusal.empty() || r.bytes() > small_bytes) return false;
  return r.kind == Kind::allreduce || r.kind == Kind::allgather || (r.kind == Kind::broadcast && r.root == rank);
}

std::vector<Decision> make_plans(std::vector<Agreement> agreements, const ProcessSets& sets, const PlanLimits& limits, uint64_t& next_sequence) {
  std::vector<Decision> decisions;
  std::vector<size_t> open_bytes;  // of the last decision when it can still take fused entries, by decision
  for (Agreement& a : agreements) {
    const std::vector<int>& ranks = sets.at(a.process_set);
    Decision d{plan_for(a, ranks), {}, ""};
    Entry entry;
    entry.name = a.name;
    size_t bytes = 0;
    if (a.status.ok()) {
      const Request& r = a.members[0].request;
      bytes = r.bytes();
      entry.elements = r.elements();
      if (r.kind == Kind::join) entry.rows = {r.root};
      if (r.kind == Kind::allgather)
        for (const Announcement& m : a.members) entry.rows.push_back(m.request.shape[0]);
      if (r.kind == Kind::alltoall) {
        d.per_member.resize(ranks.size());
        for (size_t to = 0; to < ranks.size(); ++to) {
          Entry e;
          e.name = a.name;
          for (const Announcement& m : a.members) e.rows.push_back(m.request.splits[to]);
          d.per_member[to].push_back(std::move(e));
        }
      }
      if (auto result = small_result(a, d.plan, ranks)) {
        d.plan.small = true;
        entry.result = std::move(*result);
        d.reason = "small: the inputs came with the announcements";
      } else if (fusable(d.plan, r)) {
        auto open = std::find_if(decisions.begin(), decisions.end(), [&](const Decision& o) {
          size_t i = static_cast<size_t>(&o - decisions.data());
          return open_bytes[i] > 0 && same_arithmetic(o.plan, d.plan) && open_bytes[i] + bytes <= limits.fusion_bytes;
        });
        if (open != decisions.end()) {
          open->plan.entries.push_back(std::move(entry));
          size_t& total = open_bytes[static_cast<size_t>(open - decisions.begin())];
          total += bytes;
          open->reason = "fused: " + std::to_string(open->plan.entries.size()) + " allreduces ready at once, " + std::to_string(total) + " bytes";
          continue;
        }
      }
    }
    if (d.reason.empty()) d.reason = a.status.ok() ? "alone: too large to fuse, or nothing like it was ready" : "failed: " + a.status.message;
    bool open = a.status.ok() && fusable(d.plan, a.members[0].request) && bytes < limits.fusion_bytes;
    d.plan.sequence = next_sequence++;
    d.plan.entries.push_back(std::move(entry));
    decisions.push_back(std::move(d));
    open_bytes.push_back(open ? bytes : 0);
  }
  return decisions;
}

std::string encode(const Plan& p, const std::vector<Entry>& entries) {
  Writer w;
  w.put(p.sequence);
  w.put(p.process_set);
  w.put(p.kind);
  w.put(p.op);
  w.put(p.dtype);
  w.put(p.root);
  w.put(p.prescale);
  w.put(p.postscale);
  w.put(p.small);
  w.put(p.status.code);
  w.put_text(p.status.message);
  w.put_list({p.status.ranks.begin(), p.status.ranks.end()});
  w.put(static_cast<uint32_t>(entries.size()));
  for (const Entry& e : entries) {
    w.put_text(e.name);
    w.put_list(e.rows);
    w.put(e.elements);
    w.put_text(e.result);
  }
  return w.take();
}

Plan decode_plan(std::string_view bytes) {
  Reader r(bytes);
  Plan p;
  p.sequence = r.get<uint64_t>();
  p.process_set = r.get<uint32_t>();
  p.kind = r.get<Kind>();
  p.op = r.get<ReduceOp>();
  p.dtype = r.get<Dtype>();
  p.root = r.get<int32_t>();
  p.prescale = r.get<double>();
  p.postscale = r.get<double>();
  p.small = r.get<bool>();
  p.status.code = r.get<Code>();
  p.status.message = r.get_text();
  for (int64_t rank : r.get_list()) p.status.ranks.push_back(static_cast<int>(rank));
  uint32_t n = r.get<uint32_t>();
  for (uint32_t i = 0; i < n; ++i) {
    Entry e;
    e.name = r.get_text();
    e.rows = r.get_list();
    e.elements = r.get<int64_t>();
    e.result = r.get_text();
    p.entries.push_back(std::move(e));
  }
  return p;
}

}  // namespace farandole
