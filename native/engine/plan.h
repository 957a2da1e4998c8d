// From agreements to plans: what is run together, in which order, with which factors. Pure.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/plan.h"
#include "engine/negotiate.h"

namespace farandole {

// A plan with what differs between members: per_member[i][e] is entry e as member i sees it; empty when all see the same.
struct Decision {
  Plan plan;
  std::vector<std::vector<Entry>> per_member;
  std::string reason;
};

struct PlanLimits {
  size_t fusion_bytes;  // most bytes of allreduces run as one; 0: no fusion
};

// Largest tensor worth copying into the fusion buffer: above it the copy costs more than a separate operation.
inline constexpr size_t fuse_below_bytes = 1 << 20;

std::vector<Decision> make_plans(std::vector<Agreement> agreements, const ProcessSets& sets, const PlanLimits& limits, uint64_t& next_sequence);

// The largest input that rides in the announcement, and does this rank's request carry one?
bool carries_payload(const Request& r, int rank, size_t small_bytes);

std::string encode(const Plan& plan, const std::vector<Entry>& entries);
Plan decode_plan(std::string_view bytes);

}  // namespace farandole
