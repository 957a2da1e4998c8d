// The element types the core can move, and those it can reduce. The one owner of "bfloat16 is two bytes".
#pragma once
#include <cstddef>
#include <cstdint>

namespace farandole {

enum class Dtype : uint8_t {
  boolean, int8, int16, int32, int64, uint8, uint16, uint32, uint64,
  float16, bfloat16, float32, float64, complex64, complex128, float8_e4m3, float8_e5m2,
};

struct DtypeInfo {
  const char* name;
  size_t bytes;
  bool reducible;  // false: moved as raw bytes only
  bool ordered;    // has min and max
};

inline constexpr DtypeInfo dtype_table[] = {
    {"bool", 1, true, true},      {"int8", 1, true, true},        {"int16", 2, true, true},
    {"int32", 4, true, true},     {"int64", 8, true, true},       {"uint8", 1, true, true},
    {"uint16", 2, true, true},    {"uint32", 4, true, true},      {"uint64", 8, true, true},
    {"float16", 2, true, true},   {"bfloat16", 2, true, true},    {"float32", 4, true, true},
    {"float64", 8, true, true},   {"complex64", 8, true, false},  {"complex128", 16, true, false},
    {"float8_e4m3", 1, false, false}, {"float8_e5m2", 1, false, false},
};
inline constexpr size_t dtype_count = sizeof(dtype_table) / sizeof(dtype_table[0]);

inline const DtypeInfo& info(Dtype d) { return dtype_table[static_cast<size_t>(d)]; }

}  // namespace farandole
