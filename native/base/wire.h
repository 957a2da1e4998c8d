// Little-endian bytes in and out of control frames. Both ends are this library; sizes are still checked, never trusted.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/status.h"

namespace farandole {

class Writer {
 public:
  template <class T>
    requires std::is_trivially_copyable_v<T>
  void put(T v) {
    bytes_.append(reinterpret_cast<const char*>(&v), sizeof v);
  }
  void put_text(std::string_view s) {
    put(static_cast<uint32_t>(s.size()));
    bytes_.append(s);
  }
  void put_list(const std::vector<int64_t>& v) {
    put(static_cast<uint32_t>(v.size()));
    bytes_.append(reinterpret_cast<const char*>(v.data()), v.size() * sizeof(int64_t));
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  template <class T>
    requires std::is_trivially_copyable_v<T>
  T get() {
    T v;
    std::memcpy(&v, take(sizeof v).data(), sizeof v);
    return v;
  }
  std::string get_text() { return std::string(take(get<uint32_t>())); }
  std::string_view get_view() { return take(get<uint32_t>()); }
  std::vector<int64_t> get_list() {
    size_t n = get<uint32_t>();
    std::string_view raw = take(n * sizeof(int64_t));
    std::vector<int64_t> v(n);
    if (n) std::memcpy(v.data(), raw.data(), raw.size());
    return v;
  }
  bool empty() const { return rest_.empty(); }

 private:
  std::string_view take(size_t n) {
    if (n > rest_.size()) throw Failure({Code::internal, "a control frame is shorter than it says", {}});
    std::string_view v = rest_.substr(0, n);
    rest_.remove_prefix(n);
    return v;
  }
  std::string_view rest_;
};

}  // namespace farandole
