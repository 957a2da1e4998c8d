// The contract of a transport: two ordered byte streams between this rank and one peer.
// All calls come from the one thread that drives the engine at that moment; none blocks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace farandole {

enum class Stream : uint8_t { control, data };

class Link {
 public:
  explicit Link(int peer) : peer(peer) {}
  virtual ~Link() = default;
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Bytes taken (given), 0 when the stream is full (empty) for now. Throws LinkLost once the peer is gone
  // and, for try_recv, everything it had sent is read.
  virtual size_t try_send(Stream stream, const void* bytes, size_t size) = 0;
  virtual size_t try_recv(Stream stream, void* bytes, size_t size) = 0;

  // Wakes the peer if it sleeps, after common memory changed that it may wait for. Nothing to do where none is shared.
  virtual void notify() {}

  virtual const char* transport() const = 0;       // "shm", "tcp", "loopback"
  virtual std::vector<int> descriptors() const = 0;  // what a sleeping thread watches
  // A watched descriptor woke the thread: read away doorbells, note a closed connection.
  virtual void woken() = 0;
  // Why the peer is gone, empty while it is there.
  virtual std::string lost() const = 0;

  const int peer;
};

}  // namespace farandole
