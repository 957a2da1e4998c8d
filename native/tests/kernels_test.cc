// The reductions of every instruction set this processor has, against slow and plain ones: all dtypes, ops, factors, numbers of inputs and
// outputs, lengths around the block and vector sizes, in place and not.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/kernels.h"
#include "kernels/table.h"
#include "tests/check.h"

using namespace farandole;

namespace {

struct Level {
  const char* name;
  kernels::Table table;
};

std::vector<Level> levels() {
  std::vector<Level> all{{"baseline", {}}};
  kernels::fill_baseline(all.back().table);
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("x86-64-v3")) {
    all.push_back({"x86-64-v3", {}});
    kernels::fill_v3(all.back().table);
  }
#endif
  return all;
}

// The 16-bit floats, by definition rather than by bit tricks. exponent_bits 5: float16, 8: bfloat16.
double decode(uint16_t bits, int exponent_bits) {
  int fraction_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1), fraction = bits & ((1 << fraction_bits) - 1);
  double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return fraction ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
}

uint16_t encode(double v, int exponent_bits) {
  int fraction_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
  auto infinity = static_cast<unsigned>(((1 << exponent_bits) - 1) << fraction_bits);
  unsigned sign = std::signbit(v) ? 0x8000 : 0;
  if (std::isnan(v)) return static_cast<uint16_t>(infinity | 1);
  if (v == 0) return static_cast<uint16_t>(sign);
  if (std::isinf(v)) return static_cast<uint16_t>(sign | infinity);
  int exponent = std::max(std::ilogb(v), 1 - bias);
  // nearbyint rounds to nearest, ties to even; a carry into the next exponent comes out right.
  auto units = static_cast<unsigned>(std::nearbyint(std::ldexp(std::fabs(v), fraction_bits - exponent)));
  unsigned whole = (static_cast<unsigned>(exponent + bias - 1) << fraction_bits) + units;
  return static_cast<uint16_t>(sign | std::min(whole, infinity));
}

template <int exponent_bits>
struct Small {
  uint16_t bits;
};

template <class T> struct Accumulator { using type = T; };
template <int e> struct Accumulator<Small<e>> { using type = float; };

template <class T> auto widen(T v) { return v; }
template <int e> float widen(Small<e> v) { return static_cast<float>(decode(v.bits, e)); }

template <class T, class A> T narrow(A v) { return v; }
template <class T>
  requires std::is_same_v<T, Small<5>>
T narrow(float v) { return {encode(v, 5)}; }
template <class T>
  requires std::is_same_v<T, Small<8>>
T narrow(float v) { return {encode(v, 8)}; }

template <class A>
A combine(ReduceOp op, A a, A b) {
  if constexpr (std::is_integral_v<A>) {
    using U = std::make_unsigned_t<A>;
    if (op == ReduceOp::sum) return static_cast<A>(static_cast<U>(uint64_t(a) + uint64_t(b)));
    if (op == ReduceOp::product) return static_cast<A>(static_cast<U>(uint64_t(a) * uint64_t(b)));
  } else {
    if (op == ReduceOp::sum) return a + b;
    if (op == ReduceOp::product) return a * b;
    if (a != a || b != b) return std::numeric_limits<A>::quiet_NaN();
  }
  return op == ReduceOp::min ? std::min(b, a) : std::max(b, a);
}

template <class T>
T want(ReduceOp op, const std::vector<T>& values, double pre, double post) {
  if constexpr (std::is_integral_v<T>) {
    if (pre != 1 || post != 1) {
      double total = static_cast<double>(values[0]) * pre;
      for (size_t j = 1; j < values.size(); ++j) total = combine(op, total, static_cast<double>(values[j]) * pre);
      total = std::trunc(total * post);
      if (total <= static_cast<double>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
      if (total >= static_cast<double>(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
      return static_cast<T>(total);
    }
  }
  using A = typename Accumulator<T>::type;
  A total = static_cast<A>(widen(values[0]) * static_cast<A>(pre));
  for (size_t j = 1; j < values.size(); ++j) total = combine(op, total, static_cast<A>(widen(values[j]) * static_cast<A>(pre)));
  return narrow<T>(static_cast<A>(total * static_cast<A>(post)));
}

template <class T>
bool same(T a, T b) {
  auto x = widen(a), y = widen(b);
  return std::memcmp(&a, &b, sizeof a) == 0 || (x != x && y != y) || (x == 0 && y == 0);  // any NaN, and either zero
}

std::mt19937_64 random_bits(7);  // the same numbers in every run

// Every bit pattern for the narrow types; ordinary numbers mixed with special ones for the wide.
template <class T>
T some_value() {
  uint64_t bits = random_bits();
  if constexpr (std::is_floating_point_v<T>) {
    constexpr T special[] = {0, -T{0}, std::numeric_limits<T>::infinity(), -std::numeric_limits<T>::infinity(), std::numeric_limits<T>::quiet_NaN(),
                             std::numeric_limits<T>::denorm_min(), std::numeric_limits<T>::max()};
    if (bits % 16 == 0) return special[(bits >> 8) % std::size(special)];
    return static_cast<T>(static_cast<double>(static_cast<int64_t>(bits)) * 0x1p-50);
  } else {
    T v;
    std::memcpy(&v, &bits, sizeof v);
    return v;
  }
}

constexpr size_t lengths[] = {0, 1, 7, 33, 1024, 2051};

// place: 0 outputs apart from the inputs, 1 output k is input k, 2 output k is another input. With guards behind every output.
template <class T>
void check_one(const Level& level, Dtype dtype, ReduceOp op, int inputs, int outputs, size_t n, double pre, double post, int place) {
  auto at = [](auto i) { return static_cast<size_t>(i); };
  std::vector<std::vector<T>> in(at(inputs)), apart(at(outputs));
  for (auto& v : in)
    for (size_t i = 0; i < n + 1; ++i) v.push_back(some_value<T>());
  for (auto& v : apart)
    for (size_t i = 0; i < n + 1; ++i) v.push_back(some_value<T>());
  std::vector<T> wanted;
  for (size_t i = 0; i < n; ++i) {
    std::vector<T> values;
    for (auto& v : in) values.push_back(v[i]);
    wanted.push_back(want(op, values, pre, post));
  }
  std::vector<const void*> from;
  std::vector<T*> to;
  std::vector<void*> raw;
  std::vector<T> guards;
  for (auto& v : in) from.push_back(v.data());
  for (int k = 0; k < outputs; ++k) {
    bool in_place = place != 0 && k < inputs;
    to.push_back(in_place ? in[at(place == 1 ? k : inputs - 1 - k)].data() : apart[at(k)].data());
    raw.push_back(to.back());
    guards.push_back(to.back()[n]);
  }
  level.table.function[at(dtype)][at(op)](from.data(), inputs, raw.data(), outputs, n, pre, post);
  for (int k = 0; k < outputs; ++k) {
    CHECK(std::memcmp(&to[at(k)][n], &guards[at(k)], sizeof(T)) == 0);
    CHECK(n == 0 || std::memcmp(to[at(k)], to[0], n * sizeof(T)) == 0);  // all outputs alike to the bit
    for (size_t i = 0; i < n; ++i) {
      if (same(to[at(k)][i], wanted[i])) continue;
      std::fprintf(stderr, "%s %s %s, %d inputs, %d outputs, element %zu of %zu, pre %g, post %g, place %d\n", level.name, info(dtype).name, name_of(op),
                   inputs, outputs, i, n, pre, post, place);
      CHECK(same(to[at(k)][i], wanted[i]));
    }
  }
}

template <class T>
void check_dtype(const Level& level, Dtype dtype) {
  constexpr std::pair<double, double> factors[] = {{1, 1}, {1, 0.25}, {0.3, 1}, {3, 1.0 / 3}};
  for (ReduceOp op : {ReduceOp::sum, ReduceOp::product, ReduceOp::min, ReduceOp::max}) {
    CHECK(!kernels::why_not(dtype, op));
    for (int inputs : {1, 2, 3, 4, 6})
      for (int outputs : {1, 2, 4})
        for (auto [pre, post] : factors)
          for (size_t n : lengths)
            check_one<T>(level, dtype, op, inputs, outputs, n, pre, post, static_cast<int>(n + static_cast<size_t>(inputs)) % 3);
  }
}

// Every 16-bit pattern comes back as it was (a NaN as some NaN), and every float32 is rounded to nearest, ties to even.
template <int e>
void check_conversions(const Level& level, Dtype dtype) {
  auto sum = level.table.function[static_cast<size_t>(dtype)][static_cast<size_t>(ReduceOp::sum)];
  std::vector<Small<e>> all(1 << 16), out(all.size());
  for (size_t i = 0; i < all.size(); ++i) all[i].bits = static_cast<uint16_t>(i);
  auto run = [&](std::vector<const void*> in, double post) {
    void* to = out.data();
    sum(in.data(), static_cast<int>(in.size()), &to, 1, all.size(), 1, post);
  };
  run({all.data()}, 1);
  for (size_t i = 0; i < all.size(); ++i) {
    float v = widen(all[i]);
    CHECK(v != v ? widen(out[i]) != widen(out[i]) : out[i].bits == all[i].bits);
  }
  // Halves of odd numbers are ties; the other factors leave arbitrary rests, subnormal ones and overflows among them.
  for (double post : {0.5, 0.75, 1.0 / 3, 1.9, 0x1p-9 * 1.1}) {
    run({all.data()}, post);
    for (size_t i = 0; i < all.size(); ++i) CHECK(same(out[i], narrow<Small<e>>(widen(all[i]) * static_cast<float>(post))));
    std::vector<Small<e>> zeros(all.size(), Small<e>{0});
    std::vector<Small<e>> before = out;
    run({all.data(), zeros.data()}, post);  // the path for two inputs
    for (size_t i = 0; i < all.size(); ++i) CHECK(same(out[i], before[i]));
  }
}

void check_bool(const Level& level) {
  for (int inputs = 1; inputs <= 5; ++inputs)
    for (ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::product, ReduceOp::min}) {
      constexpr size_t n = 1100;
      std::vector<std::vector<uint8_t>> in(static_cast<size_t>(inputs));
      std::vector<const void*> from;
      for (auto& v : in) {
        for (size_t i = 0; i < n; ++i) v.push_back(random_bits() % 2 ? 0 : static_cast<uint8_t>(random_bits()));  // any non-zero byte is true
        from.push_back(v.data());
      }
      std::vector<uint8_t> x(n), y(n);
      void* to[] = {x.data(), y.data()};
      level.table.function[static_cast<size_t>(Dtype::boolean)][static_cast<size_t>(op)](from.data(), inputs, to, 2, n, 0.5, 0.25);
      bool any = op == ReduceOp::sum || op == ReduceOp::max;
      for (size_t i = 0; i < n; ++i) {
        int trues = 0;
        for (auto& v : in) trues += v[i] != 0;
        CHECK(x[i] == (any ? trues > 0 : trues == inputs) && y[i] == x[i]);
      }
    }
}

template <class R>
void check_complex(const Level& level, Dtype dtype) {
  constexpr R inf = std::numeric_limits<R>::infinity();
  CHECK(kernels::why_not(dtype, ReduceOp::min) && kernels::why_not(dtype, ReduceOp::max));
  for (int inputs = 1; inputs <= 4; ++inputs)
    for (double factor : {1.0, 0.5}) {
      constexpr size_t n = 1030;
      std::vector<std::vector<R>> in(static_cast<size_t>(inputs));
      std::vector<const void*> from;
      for (auto& v : in) {
        for (size_t i = 0; i < 2 * n; ++i) v.push_back(static_cast<R>(static_cast<int>(random_bits() % 9) - 4));
        from.push_back(v.data());
      }
      std::vector<R> sum(2 * n), product(2 * n);
      void *to_sum = sum.data(), *to_product = product.data();
      auto& row = level.table.function[static_cast<size_t>(dtype)];
      row[static_cast<size_t>(ReduceOp::sum)](from.data(), inputs, &to_sum, 1, n, factor, 2);
      row[static_cast<size_t>(ReduceOp::product)](from.data(), inputs, &to_product, 1, n, factor, 2);
      for (size_t i = 0; i < 2 * n; i += 2) {
        R f = static_cast<R>(factor), re = in[0][i] * f, im = in[0][i + 1] * f, s = re, t = im;
        for (size_t j = 1; j < in.size(); ++j) {
          R a = in[j][i] * f, b = in[j][i + 1] * f, old = re;
          re = re * a - im * b;
          im = old * b + im * a;
          s += a;
          t += b;
        }
        CHECK(sum[i] == 2 * s && sum[i + 1] == 2 * t && product[i] == 2 * re && product[i + 1] == 2 * im);
      }
    }
  // A real factor scales each part by itself: no NaN out of infinity times the zero that the factor does not have.
  R value[] = {inf, 1}, half[2];
  const void* from = value;
  void* to = half;
  level.table.function[static_cast<size_t>(dtype)][static_cast<size_t>(ReduceOp::sum)](&from, 1, &to, 1, 1, 1, 0.5);
  CHECK(half[0] == inf && half[1] == R{0.5});
}

void check_level(const Level& level) {
  check_dtype<int8_t>(level, Dtype::int8);
  check_dtype<int16_t>(level, Dtype::int16);
  check_dtype<int32_t>(level, Dtype::int32);
  check_dtype<int64_t>(level, Dtype::int64);
  check_dtype<uint8_t>(level, Dtype::uint8);
  check_dtype<uint16_t>(level, Dtype::uint16);
  check_dtype<uint32_t>(level, Dtype::uint32);
  check_dtype<uint64_t>(level, Dtype::uint64);
  check_dtype<float>(level, Dtype::float32);
  check_dtype<double>(level, Dtype::float64);
  check_dtype<Small<5>>(level, Dtype::float16);
  check_dtype<Small<8>>(level, Dtype::bfloat16);
  check_conversions<5>(level, Dtype::float16);
  check_conversions<8>(level, Dtype::bfloat16);
  check_bool(level);
  check_complex<float>(level, Dtype::complex64);
  check_complex<double>(level, Dtype::complex128);
}

}  // namespace

int main() {
  std::string checked;
  for (const Level& level : levels()) {
    check_level(level);
    checked += std::string(checked.empty() ? "" : ", ") + level.name;
  }
  CHECK(kernels::why_not(Dtype::float8_e4m3, ReduceOp::sum) && !kernels::why_not(Dtype::float32, ReduceOp::average));
  std::printf("checked: %s; in use: %s\n", checked.c_str(), kernels::instruction_set());
}
