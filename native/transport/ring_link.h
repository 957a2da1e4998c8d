// Links over byte rings in common memory: shm (rings in the ranks' arenas) and loopback (rings in the heap, ranks are threads).
// A Unix socket pair carries the doorbell that wakes a sleeping peer, and its end-of-file tells that the peer is gone.
#pragma once
#include <array>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "os/descriptor.h"
#include "transport/arena.h"
#include "transport/link.h"

namespace farandole {

class RingLink : public Link {
 public:
  // in, out: by Stream. peer_sleeping: set by the peer before it sleeps. owner keeps the rings' memory alive.
  RingLink(int peer, const char* transport, Descriptor bell, std::array<Ring, 2> in, std::array<Ring, 2> out,
           std::atomic<uint32_t>* peer_sleeping, std::shared_ptr<void> owner);

  size_t try_send(Stream stream, const void* bytes, size_t size) override;
  size_t try_recv(Stream stream, void* bytes, size_t size) override;
  const char* transport() const override { return transport_; }
  std::vector<int> descriptors() const override { return {bell_.get()}; }
  void woken() override;
  std::string lost() const override { return lost_; }
  void notify() override;

 private:
  const char* transport_;
  Descriptor bell_;
  std::array<Ring, 2> in_, out_;
  std::atomic<uint32_t>* peer_sleeping_;
  std::shared_ptr<void> owner_;
  std::string lost_;
};

std::unique_ptr<Link> make_shm_link(int rank, int peer, int unix_fd, const Arena& arena);

// Where the threads of an in-process world find each other.
class LoopbackHub {
 public:
  explicit LoopbackHub(int size);
  // This rank's links; every rank calls it once. sleeping: this rank's flag, so that peers know when to ring.
  std::vector<std::unique_ptr<Link>> join(int rank, std::shared_ptr<std::atomic<uint32_t>> sleeping);
  const int size;

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<std::shared_ptr<std::atomic<uint32_t>>> sleeping_;  // by rank
  std::vector<Descriptor> bells_;                 // [a * size + b]: a's end of the pair with b
  std::vector<std::shared_ptr<char>> rings_;      // [reader * size + writer]: two rings
  int joined_ = 0;
};

}  // namespace farandole
