#include "transport/tcp.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <system_error>

#include "base/status.h"

namespace farandole {
namespace {

class TcpLink : public Link {
 public:
  TcpLink(int peer, int control_fd, int data_fd) : Link(peer), sockets_{Descriptor(control_fd), Descriptor(data_fd)} {
    for (auto& s : sockets_) {
      int one = 1;
      setsockopt(s.get(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
      fcntl(s.get(), F_SETFL, fcntl(s.get(), F_GETFL) | O_NONBLOCK);
    }
  }

  size_t try_send(Stream stream, const void* bytes, size_t size) override {
    if (size == 0) return 0;
    if (!lost_.empty()) throw_lost();
    ssize_t n = ::send(fd(stream), bytes, size, MSG_NOSIGNAL);
    if (n >= 0) return static_cast<size_t>(n);
    if (again()) return 0;
    note(errno);
    throw_lost();
  }

  size_t try_recv(Stream stream, void* bytes, size_t size) override {
    if (size == 0) return 0;
    ssize_t n = ::recv(fd(stream), bytes, size, 0);
    if (n > 0) return static_cast<size_t>(n);
    if (n < 0 && again()) return 0;
    note(n == 0 ? 0 : errno);
    throw_lost();
  }

  const char* transport() const override { return "tcp"; }
  std::vector<int> descriptors() const override { return {sockets_[0].get(), sockets_[1].get()}; }

  void woken() override {
    // An end-of-file is noted only when all control bytes before it have been read, so that a last word arrives.
    char byte;
    ssize_t n = ::recv(fd(Stream::control), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n == 0) note(0);
    if (n < 0 && !again()) note(errno);
  }

  std::string lost() const override { return lost_; }

 private:
  int fd(Stream s) const { return sockets_[static_cast<size_t>(s)].get(); }
  static bool again() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }
  void note(int error) {
    if (lost_.empty())
      lost_ = error == 0 ? "its process ended or closed the connection" : std::system_category().message(error);
  }
  [[noreturn]] void throw_lost() const { throw LinkLost(peer, lost_); }

  std::array<Descriptor, 2> sockets_;
  std::string lost_;
};

}  // namespace

std::unique_ptr<Link> make_tcp_link(int peer, int control_fd, int data_fd) {
  return std::make_unique<TcpLink>(peer, control_fd, data_fd);
}

}  // namespace farandole
