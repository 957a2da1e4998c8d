// The memory of one rank that its peers on the same host can see: a flag word, progress counters, rings, staging slots, and the
// registered memory users allocate. One sparse memfd per rank, mapped by all local peers, gone with the last of them:
// nothing in /dev/shm, untouched pages cost nothing.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "os/shared_memory.h"
#include "transport/ring.h"

namespace farandole {

// Progress of one rank as its peers see it; one writer, its own cache lines.
struct alignas(64) Progress {
  std::atomic<uint64_t> ready;      // see collective/shared_memory.cc for what is counted
  alignas(64) std::atomic<uint64_t> done;
  alignas(64) std::atomic<uint32_t> sleeping;
  // Where the buffers of the running plan are: offsets into this rank's arena, or -1 for ordinary memory.
  alignas(64) int64_t input_offset, output_offset;
};

class Arena {
 public:
  static constexpr size_t control_ring_bytes = 64 << 10, data_ring_bytes = 1 << 20, slot_bytes = 4 << 20;

  // A memfd for a world of `size` ranks with room for `bytes` of registered memory.
  static int create(int size, size_t bytes);
  // Maps this rank's arena. fd < 0: private memory, for worlds whose peers cannot map it.
  Arena(int fd, int rank, int size, size_t bytes);

  void map_peer(int peer, int fd);
  bool mapped(int peer) const { return maps_[static_cast<size_t>(peer)] != nullptr; }

  Progress& progress(int r) const;               // of this rank or a mapped peer
  char* slots(int r) const;                      // slot_bytes of staging memory
  Ring ring(int reader, int writer, int stream) const;  // in the reader's arena
  char* at(int r, int64_t offset) const;         // a peer's registered memory as mapped here
  int64_t offset_of(const void* p, size_t bytes) const;  // in this rank's registered memory, else -1
  // This rank's flag as something that a peer in this process may hold on to.
  std::shared_ptr<std::atomic<uint32_t>> shared_sleeping() const { return {maps_[static_cast<size_t>(rank_)], &progress(rank_).sleeping}; }
  bool sleeping() const { return progress(rank_).sleeping.load() != 0; }

  // Registered memory, page-aligned, zeroed. Throws Failure when the arena is full. Freed with the returned pointer, which
  // also keeps the mapping alive after the world has ended. Any thread.
  std::shared_ptr<char> allocate(size_t bytes);

 private:
  struct Heap;  // first fit over page-aligned extents
  int rank_, size_;
  size_t registered_at_;
  std::vector<std::shared_ptr<SharedMemory>> maps_;  // by rank
  std::shared_ptr<Heap> heap_;
};

}  // namespace farandole
