// All links of one rank, and the one way to wait on them: spin briefly, then sleep until a peer rings.
#pragma once
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "os/poller.h"
#include "transport/arena.h"
#include "transport/link.h"

namespace farandole {

using Clock = std::chrono::steady_clock;

class Mesh {
 public:
  Mesh(int rank, int size, std::vector<std::string> hosts, std::unique_ptr<Arena> arena,
       std::vector<std::unique_ptr<Link>> links, int spin_us);

  const int rank, size;
  Link& link(int peer) const;            // throws Failure for a peer without a link
  bool linked(int peer) const { return peer != rank && links_[peer] != nullptr; }
  const std::string& host(int r) const { return hosts_[r]; }
  std::string describe(int r) const { return "rank " + std::to_string(r) + " on " + hosts_[r]; }
  Arena& arena() const { return *arena_; }

  // Waits, while running a plan, until attempt() returns true. attempt moves what can be moved and must not block.
  // Between attempts the thread serves the control plane (`service`), spins, then sleeps. Throws Failure{stall} at the
  // deadline, with `what` in the message, and whatever attempt or service throw.
  template <class Attempt>
  void wait(const char* what, Clock::time_point deadline, Attempt&& attempt) {
    if (attempt()) return;
    wait_slowly(what, deadline, std::function<bool()>(std::ref(attempt)));
  }

  // Called in waits: the engine reads control frames here, so that negotiation goes on during a transfer.
  std::function<void()> service = [] {};
  std::function<bool()> interrupted = [] { return false; };  // asked about ten times a second while asleep

  std::atomic<bool> give_up{false};      // set by a thread that cannot wait for the running plan: it fails soon

  // The idle engine thread sleeps here, without holding the engine's lock, until a peer or a local caller rings.
  void sleep_idle(int timeout_ms) { idle_.wait(timeout_ms); }
  void wake() { idle_.wake(); }
  // Before sleeping: from now on peers ring. After that look once more for work, then sleep.
  void announce_sleep();
  void announce_awake();
  bool asleep() const { return arena_->sleeping(); }
  void serve_wakeups();                  // after any sleep: lets every link read its doorbells
  void close();  // links and pollers; peers see the end of the stream
  void spin_once();                      // pause, or yield when there are more ranks than cores
  int spin_us() const { return spin_us_; }

 private:
  void wait_slowly(const char* what, Clock::time_point deadline, const std::function<bool()>& attempt);
  std::vector<std::string> hosts_;
  std::unique_ptr<Arena> arena_;
  std::vector<std::unique_ptr<Link>> links_;  // by rank
  Poller idle_, busy_;  // edge-triggered, so a thread that sleeps inside a plan never steals the idle thread's event
  int spin_us_;
  bool crowded_;
};

}  // namespace farandole
