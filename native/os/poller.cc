#include "os/poller.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>

namespace farandole {
namespace {

void add(int epoll, int fd, uint32_t events) {
  epoll_event e{.events = events | EPOLLET, .data = {.fd = fd}};
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e) < 0) throw std::system_error(errno, std::generic_category(), "epoll_ctl");
}

}  // namespace

Poller::Poller() : epoll_(epoll_create1(EPOLL_CLOEXEC)), event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!epoll_ || !event_) throw std::system_error(errno, std::generic_category(), "epoll or eventfd");
  add(epoll_.get(), event_.get(), EPOLLIN);
}

void Poller::watch(int fd) { add(epoll_.get(), fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP); }

void Poller::wait(int timeout_ms) {
  epoll_event events[16];
  int n = epoll_wait(epoll_.get(), events, 16, timeout_ms);
  for (int i = 0; i < n; ++i) {
    uint64_t count;
    if (events[i].data.fd == event_.get()) {
      while (::read(event_.get(), &count, sizeof count) < 0 && errno == EINTR) {
      }
    }
  }
}

void Poller::close() {
  epoll_ = Descriptor();
  event_ = Descriptor();
}

void Poller::wake() {
  uint64_t one = 1;
  while (::write(event_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
}

}  // namespace farandole
