// A byte ring with one writer and one reader, in memory both can see. Positions only grow; 64 bits never wrap.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

namespace farandole {

struct RingHead {
  alignas(64) std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> read;
};

class Ring {
 public:
  Ring() = default;
  // `bytes` is a power of two; memory starts zeroed.
  Ring(RingHead* head, char* memory, size_t bytes) : head_(head), memory_(memory), bytes_(bytes) {}
  static constexpr size_t footprint(size_t bytes) { return sizeof(RingHead) + bytes; }

  size_t try_write(const void* from, size_t size) {
    uint64_t at = head_->written.load(std::memory_order_relaxed);
    size = std::min<size_t>(size, bytes_ - (at - head_->read.load(std::memory_order_acquire)));
    size_t start = at & (bytes_ - 1), first = std::min(size, bytes_ - start);
    std::memcpy(memory_ + start, from, first);
    std::memcpy(memory_, static_cast<const char*>(from) + first, size - first);
    if (size) head_->written.store(at + size, std::memory_order_release);
    return size;
  }

  size_t try_read(void* to, size_t size) {
    uint64_t at = head_->read.load(std::memory_order_relaxed);
    size = std::min<size_t>(size, head_->written.load(std::memory_order_acquire) - at);
    size_t start = at & (bytes_ - 1), first = std::min(size, bytes_ - start);
    std::memcpy(to, memory_ + start, first);
    std::memcpy(static_cast<char*>(to) + first, memory_, size - first);
    if (size) head_->read.store(at + size, std::memory_order_release);
    return size;
  }

 private:
  RingHead* head_ = nullptr;
  char* memory_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace farandole
