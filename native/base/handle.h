// A waitable result. Completed once by whoever drives the engine; read by any thread.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"

namespace farandole {

class Handle {
 public:
  bool done() const { return done_.load(std::memory_order_acquire); }

  void complete(Status s) {
    {
      std::lock_guard lock(mutex_);
      if (done()) return;
      status = std::move(s);
      done_.store(true, std::memory_order_release);
    }
    changed_.notify_all();
  }

  bool wait_for(std::chrono::microseconds time) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, time, [this] { return done(); });
  }

  // Read after done() only.
  Status status;
  std::shared_ptr<char> output;         // allgather, alltoall: memory the core owns
  size_t output_bytes = 0;
  std::vector<int64_t> shape;           // of output; process_set: the new id
  std::vector<int64_t> received_splits;  // rows from each member

 private:
  std::atomic<bool> done_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
};

}  // namespace farandole
