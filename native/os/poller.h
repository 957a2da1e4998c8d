// Sleep until a watched descriptor has something new or another thread calls wake(). Edge-triggered.
#pragma once
#include <vector>

#include "os/descriptor.h"

namespace farandole {

class Poller {
 public:
  Poller();
  void watch(int fd);
  // Returns after an event, a wake() or the timeout (-1: none). Any thread, one at a time.
  void wait(int timeout_ms);
  void close();
  void wake();  // any thread, also from a signal handler

 private:
  Descriptor epoll_, event_;
};

}  // namespace farandole
