#include "transport/mesh.h"

#include <algorithm>

#include "os/cpu.h"

namespace farandole {

Mesh::Mesh(int rank, int size, std::vector<std::string> hosts, std::unique_ptr<Arena> arena,
           std::vector<std::unique_ptr<Link>> links, int spin_us)
    : rank(rank), size(size), hosts_(std::move(hosts)), arena_(std::move(arena)), links_(static_cast<size_t>(size)) {
  for (auto& link : links) {
    for (int fd : link->descriptors()) {
      idle_.watch(fd);
      busy_.watch(fd);
    }
    auto peer = static_cast<size_t>(link->peer);
    links_[peer] = std::move(link);
  }
  long here = std::count(hosts_.begin(), hosts_.end(), hosts_[static_cast<size_t>(rank)]);
  crowded_ = here > usable_cores();
  // With a core for each rank a spinning peer answers in under a microsecond where a sleeping one needs 20-50, so spin about
  // as long as two such wake-ups cost. Without, yielding lets the rank we wait for run.
  spin_us_ = spin_us >= 0 ? spin_us : 100;
}

Link& Mesh::link(int peer) const {
  Link* link = links_[static_cast<size_t>(peer)].get();
  if (!link) throw Failure({Code::internal, "there is no link to rank " + std::to_string(peer), {peer}});
  return *link;
}

void Mesh::close() {
  for (auto& link : links_) link.reset();
  idle_.close();
  busy_.close();
}

void Mesh::announce_sleep() {
  arena_->progress(rank).sleeping.store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // pairs with RingLink::notify
}

void Mesh::announce_awake() { arena_->progress(rank).sleeping.store(0, std::memory_order_relaxed); }

void Mesh::serve_wakeups() {
  for (auto& link : links_)
    if (link) link->woken();
}

void Mesh::spin_once() {
  if (crowded_) sched_yield();
  else pause_cpu();
}

void Mesh::wait_slowly(const char* what, Clock::time_point deadline, const std::function<bool()>& attempt) {
  constexpr int sleep_ms = 100;
  auto spin_until = Clock::now() + std::chrono::microseconds(spin_us_);
  for (int i = 0;; ++i) {
    if (attempt()) return;
    if (i % 64 == 63) {
      service();
      if (Clock::now() > spin_until) break;
    }
    spin_once();
  }
  for (;;) {
    announce_sleep();
    service();
    if (attempt()) break;
    busy_.wait(sleep_ms);
    announce_awake();
    serve_wakeups();
    if (attempt()) break;
    if (Clock::now() > deadline)
      throw Failure({Code::stall, std::string(what) + ": peers did not answer before the stall limit", {}});
    if (give_up) throw Failure({Code::shutdown, describe(rank) + " was shut down in the middle of " + what, {rank}});
    if (interrupted()) throw Failure({Code::peer_lost, describe(rank) + " was interrupted by its user in the middle of " + what, {rank}});
    // Whoever woke us is probably still at it: look a little longer before the next sleep.
    for (int i = 0; i < 256; ++i) {
      if (attempt()) {
        return;
      }
      spin_once();
    }
  }
  announce_awake();
}

}  // namespace farandole
