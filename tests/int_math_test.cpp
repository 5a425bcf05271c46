// Checks core/int_math.h against the machine's own division; prints nothing and returns 0 when all is well.
#include "core/int_math.h"

#include <cstdio>
#include <initializer_list>
#include <random>

int main() {
  constexpr uint32_t kEnd = 1u << 31;  // FastDiv's invariant: dividend and divisor are below it
  std::mt19937 random(1);
  long checks = 0;
  const auto check = [&](uint32_t n, uint32_t d) {
    const tx::QuotRem got = tx::FastDiv(d).divmod(n);
    ++checks;
    if (got.quot == n / d && got.rem == n % d) return true;
    std::printf("%u / %u gave %u remainder %u\n", n, d, got.quot, got.rem);
    return false;
  };
  const auto check_around = [&](uint32_t d) {
    if (d == 0 || d >= kEnd) return true;
    for (uint32_t multiple : {0u, 1u, 2u, 3u, (kEnd - 1) / d, (kEnd - 1) / d / 2}) {
      const uint64_t base = uint64_t{multiple} * d;
      for (int64_t n = static_cast<int64_t>(base) - 2; n <= static_cast<int64_t>(base) + 2; ++n) {
        if (n >= 0 && n < kEnd && !check(static_cast<uint32_t>(n), d)) return false;
      }
    }
    return check(kEnd - 1, d) && check(random() % kEnd, d);
  };
  for (uint32_t d = 1; d < 5000; ++d) {
    if (!check_around(d)) return 1;
  }
  for (int bit = 0; bit < 31; ++bit) {
    for (int64_t near = -3; near <= 3; ++near) {
      if (!check_around(static_cast<uint32_t>((int64_t{1} << bit) + near))) return 1;
    }
  }
  for (int i = 0; i < 200000; ++i) {
    const uint32_t d = random() >> (random() % 31);
    if (!check_around(d)) return 1;
  }
  if (checks < 1000000) return 2;
  return tx::ceil_div(7, 3) == 3 && tx::ceil_div(6, 3) == 2 && tx::round_up(13, 8) == 16 ? 0 : 3;
}
