#include "transport/arena.h"

#include <algorithm>
#include <cstring>

#include "base/status.h"

namespace farandole {
namespace {

constexpr size_t page = 4096;
size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// Layout of every arena, the same on all ranks: progress, staging slots, one pair of rings per possible writer, registered memory.
constexpr size_t slots_at = page;
constexpr size_t rings_at = slots_at + Arena::slot_bytes;
constexpr size_t rings_bytes = page * 2 + Arena::control_ring_bytes + Arena::data_ring_bytes;
size_t registered_at(int size) { return rings_at + static_cast<size_t>(size) * rings_bytes; }

static_assert(sizeof(Progress) <= page && sizeof(RingHead) <= page);

}  // namespace

struct Arena::Heap {
  std::shared_ptr<SharedMemory> memory;
  size_t start;
  std::mutex mutex;
  std::map<size_t, size_t> free;  // offset -> bytes, neighbours merged

  Heap(std::shared_ptr<SharedMemory> m, size_t at) : memory(std::move(m)), start(at) {
    if (memory->size() > at) free[at] = memory->size() - at;
  }

  size_t take(size_t bytes) {
    std::lock_guard lock(mutex);
    for (auto [at, room] : free) {
      if (room < bytes) continue;
      free.erase(at);
      if (room > bytes) free[at + bytes] = room - bytes;
      return at;
    }
    throw Failure({Code::invalid,
                   "the arena has no room for " + std::to_string(bytes) +
                       " bytes of registered memory; raise FARANDOLE_ARENA_BYTES or free some",
                   {}});
  }

  void give(size_t at, size_t bytes) {
    memory->give_back(at, bytes);
    std::lock_guard lock(mutex);
    auto next = free.lower_bound(at);
    if (next != free.end() && at + bytes == next->first) {
      bytes += next->second;
      next = free.erase(next);
    }
    if (next != free.begin()) {
      auto before = std::prev(next);
      if (before->first + before->second == at) {
        before->second += bytes;
        return;
      }
    }
    free[at] = bytes;
  }
};

int Arena::create(int size, size_t bytes) { return SharedMemory::create(farandole::registered_at(size) + round_up(bytes, page)); }

Arena::Arena(int fd, int rank, int size, size_t bytes)
    : rank_(rank), size_(size), registered_at_(farandole::registered_at(size)), maps_(static_cast<size_t>(size)) {
  auto mine = fd >= 0 ? std::make_shared<SharedMemory>(fd)
                      : std::make_shared<SharedMemory>(registered_at_ + round_up(bytes, page));
  maps_[static_cast<size_t>(rank)] = mine;
  heap_ = std::make_shared<Heap>(mine, registered_at_);
}

void Arena::map_peer(int peer, int fd) {
  auto map = std::make_shared<SharedMemory>(fd);
  if (map->size() < registered_at_)
    throw Failure({Code::internal, "rank " + std::to_string(peer) + " sent an arena of the wrong size; do all ranks run the same version?", {peer}});
  maps_[static_cast<size_t>(peer)] = std::move(map);
}

Progress& Arena::progress(int r) const { return *reinterpret_cast<Progress*>(maps_[static_cast<size_t>(r)]->data()); }
char* Arena::slots(int r) const { return maps_[static_cast<size_t>(r)]->data() + slots_at; }

Ring Arena::ring(int reader, int writer, int stream) const {
  char* base = maps_[static_cast<size_t>(reader)]->data() + rings_at + static_cast<size_t>(writer) * rings_bytes;
  if (stream == 0) return Ring(reinterpret_cast<RingHead*>(base), base + page, control_ring_bytes);
  base += page + control_ring_bytes;
  return Ring(reinterpret_cast<RingHead*>(base), base + page, data_ring_bytes);
}

char* Arena::at(int r, int64_t offset) const { return maps_[static_cast<size_t>(r)]->data() + offset; }

int64_t Arena::offset_of(const void* p, size_t bytes) const {
  const SharedMemory& m = *maps_[static_cast<size_t>(rank_)];
  auto at = reinterpret_cast<uintptr_t>(p), begin = reinterpret_cast<uintptr_t>(m.data());
  if (at < begin + registered_at_ || at + bytes > begin + m.size()) return -1;
  return static_cast<int64_t>(at - begin);
}

std::shared_ptr<char> Arena::allocate(size_t bytes) {
  size_t room = round_up(std::max<size_t>(bytes, 1), page);
  size_t at = heap_->take(room);
  return std::shared_ptr<char>(heap_->memory->data() + at, [heap = heap_, at, room](char*) { heap->give(at, room); });
}

}  // namespace farandole
