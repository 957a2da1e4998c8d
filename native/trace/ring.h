// The last operations of this rank: a ring of fixed-size events and a few counters. Formats nothing; written by whoever drives the engine.
#pragma once
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace farandole {

enum class Phase : uint8_t { submit, run, done, fail };
inline constexpr const char* phase_names[] = {"submit", "run", "done", "fail"};

struct Event {
  int64_t time_ns;        // steady clock
  uint64_t sequence;      // of the plan, 0 before there is one
  uint64_t bytes;
  Phase phase;
  uint8_t kind;
  std::array<char, 46> name;  // cut, zero-terminated
};

struct Counters {
  uint64_t operations = 0, plans = 0, fused = 0, small = 0, failed = 0, bytes = 0, run_ns = 0;
};

class Trace {
 public:
  explicit Trace(size_t events) : events_(events) {}

  void add(Phase phase, uint8_t kind, std::string_view name, uint64_t bytes, uint64_t sequence) {
    if (events_.empty()) return;
    Event& e = events_[next_++ % events_.size()];
    e = {std::chrono::steady_clock::now().time_since_epoch().count(), sequence, bytes, phase, kind, {}};
    std::memcpy(e.name.data(), name.data(), std::min(name.size(), e.name.size() - 1));
  }

  std::vector<Event> last() const {  // oldest first
    std::vector<Event> v;
    size_t n = std::min(next_, events_.size());
    for (size_t i = next_ - n; i < next_; ++i) v.push_back(events_[i % events_.size()]);
    return v;
  }

  Counters counters;

 private:
  std::vector<Event> events_;
  size_t next_ = 0;
};

}  // namespace farandole
