// The torch-free interface: every misuse that its header names is refused with rule, value and remedy.
#include <torch_transpose/kernels.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "refusals.h"

namespace {

void refuses(const char* text, const tx::Permutation& p, const void* in, void* out, int threads = 0) {
  expect_refusal(text, [&] { tx::permute_cpu(p, in, out, threads); });
}

}  // namespace

int main() {
  const int64_t huge = int64_t{1} << 62;
  std::vector<float> in(64, 1.0f), out(64, 2.0f);
  float *a = in.data(), *b = out.data();
  refuses("element_bytes must be 1, 2, 4, 8 or 16, got 3", {3, {2, 2}, {1, 0}, {}, {}}, a, b);
  refuses("at most 64 dims, got 65", {4, std::vector<int64_t>(65, 1), {}, {}, {}}, a, b);
  refuses("dims must name each of the 2 dims once, got 1", {4, {2, 2}, {1}, {}, {}}, a, b);
  refuses("dims must lie in 0..2-1, got 2", {4, {2, 2}, {0, 2}, {}, {}}, a, b);
  refuses("dims must lie in 0..2-1, got -1", {4, {2, 2}, {0, -1}, {}, {}}, a, b);
  refuses("dims must not repeat, got 1 twice", {4, {2, 2}, {1, 1}, {}, {}}, a, b);
  refuses("sizes must not be negative, got -2", {4, {2, -2}, {1, 0}, {}, {}}, a, b);
  refuses("fewer than 2^63 bytes", {4, {huge, 2}, {1, 0}, {}, {}}, a, b);
  refuses("fewer than 2^63 bytes", {4, {2, 2}, {1, 0}, {huge, 1}, {}}, a, b);
  refuses("must not be negative, got -1 for dim 1", {4, {2, 2}, {1, 0}, {2, -1}, {}}, a, b);
  refuses("must be empty or have 2 entries, got 1 and 2", {4, {2, 2}, {1, 0}, {2}, {}}, a, b);
  refuses("must not be null", {4, {2, 2}, {1, 0}, {}, {}}, nullptr, b);
  refuses("out must not overlap itself", {4, {2, 2}, {1, 0}, {}, {0, 1}}, a, b);
  refuses("out must not overlap in", {4, {2, 2}, {1, 0}, {}, {}}, a, a + 3);
  refuses("threads must not be negative, got -1", {4, {2, 2}, {1, 0}, {}, {}}, a, b, -1);
  for (const float value : out) failures += value != 2.0f;  // nothing was written
  try {
    tx::permute_cuda({4, {2, 2}, {1, 0}, {}, {}}, a, b, nullptr);
    ++failures;
  } catch (const std::runtime_error& error) {
    failures += std::strstr(error.what(), "built without CUDA") == nullptr;
  }
  tx::permute_cpu({4, {0, 5}, {1, 0}, {}, {}}, nullptr, nullptr);
  tx::permute_cpu({4, {}, {}, {}, {}}, a, b);  // a single element
  failures += b[0] != 1.0f || b[1] != 2.0f;
  std::puts(failures == 0 ? "all right" : "FAILED");
  return failures == 0 ? 0 : 1;
}
