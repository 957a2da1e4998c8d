// Memory that several processes map: a sparse memfd. Pages appear when touched and can be given back.
#pragma once
#include <cstddef>

namespace farandole {

class SharedMemory {
 public:
  static int create(size_t bytes);          // a memfd of that size, no page used yet
  explicit SharedMemory(int fd);            // maps all of it; the descriptor may be closed afterwards
  explicit SharedMemory(size_t bytes);      // private to this process, as sparse
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  char* data() const { return data_; }
  size_t size() const { return size_; }
  void give_back(size_t offset, size_t bytes);  // the pages read as zero from now on

 private:
  char* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace farandole
