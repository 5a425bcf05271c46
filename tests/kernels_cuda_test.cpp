// The torch-free interface on a GPU: every element and every byte around the output, of each kernel at any
// alignment, on a stream of its own; misuse is refused with nothing written.
#include <cuda_runtime_api.h>
#include <torch_transpose/kernels.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "refusals.h"

namespace {

using Ints = std::vector<int64_t>;
using Bytes = std::vector<uint8_t>;

constexpr int64_t kGuard = 64;  // bytes before and after an output that nothing may touch
constexpr uint8_t kPoison = 0xA5;

void check(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

struct Memory {
  uint8_t* data = nullptr;
  explicit Memory(const Bytes& bytes) {
    check(cudaMalloc(reinterpret_cast<void**>(&data), bytes.size()));
    check(cudaMemcpy(data, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
  }
  ~Memory() { cudaFree(data); }
  Memory(const Memory&) = delete;
};

Ints contiguous(const Ints& sizes) {
  Ints strides(sizes.size());
  int64_t step = 1;
  for (size_t d = sizes.size(); d-- > 0; step *= sizes[d]) strides[d] = step;
  return strides;
}

int64_t reach(const Ints& sizes, const Ints& strides) {
  int64_t elements = 1;
  for (size_t d = 0; d < sizes.size(); ++d) elements += (sizes[d] - 1) * strides[d];
  return elements;
}

// The same on the host, one element after the other.
void permute(const tx::Permutation& p, const Ints& in_strides, const Ints& out_strides, const uint8_t* in,
             uint8_t* out) {
  Ints index(p.sizes.size());
  for (;;) {
    int64_t from = 0, to = 0;
    for (size_t k = 0; k < index.size(); ++k) {
      from += index[k] * in_strides[p.dims[k]];
      to += index[k] * out_strides[k];
    }
    std::memcpy(out + to * p.element_bytes, in + from * p.element_bytes, p.element_bytes);
    size_t k = index.size();
    while (k > 0 && ++index[k - 1] == p.sizes[p.dims[k - 1]]) index[--k] = 0;
    if (k == 0) return;
  }
}

// One permutation, with the input `in_shift` and the output `out_shift` bytes off 16-byte alignment.
void runs(const tx::Permutation& p, int64_t in_shift, int64_t out_shift, cudaStream_t stream) {
  Ints out_sizes;
  for (const int64_t d : p.dims) out_sizes.push_back(p.sizes[d]);
  const Ints in_strides = p.in_strides.empty() ? contiguous(p.sizes) : p.in_strides;
  const Ints out_strides = p.out_strides.empty() ? contiguous(out_sizes) : p.out_strides;
  Bytes in(in_shift + reach(p.sizes, in_strides) * p.element_bytes);
  std::mt19937 random(7);
  for (uint8_t& byte : in) byte = static_cast<uint8_t>(random());
  Bytes expected(kGuard + out_shift + reach(out_sizes, out_strides) * p.element_bytes + kGuard, kPoison);
  const Memory from(in), to(expected);
  check(cudaDeviceSynchronize());  // the stream does not wait for the copies
  tx::permute_cuda(p, from.data + in_shift, to.data + kGuard + out_shift, stream);
  check(cudaStreamSynchronize(stream));
  Bytes got(expected.size());
  check(cudaMemcpy(got.data(), to.data, got.size(), cudaMemcpyDeviceToHost));
  permute(p, in_strides, out_strides, in.data() + in_shift, expected.data() + kGuard + out_shift);
  if (got == expected) return;
  size_t at = 0;
  while (got[at] == expected[at]) ++at;
  std::printf("%d-byte elements, rank %zu, shifts %d and %d: byte %d of the output is wrong\n",
              static_cast<int>(p.element_bytes), p.sizes.size(), static_cast<int>(in_shift),
              static_cast<int>(out_shift), static_cast<int>(at) - static_cast<int>(kGuard + out_shift));
  ++failures;
}

void refuses(const char* text, const tx::Permutation& p, const void* in, void* out) {
  expect_refusal(text, [&] { tx::permute_cuda(p, in, out, nullptr); });
}

}  // namespace

int main() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  const std::vector<std::pair<Ints, Ints>> permutations = {
      {{4099}, {0}},                          // copy
      {{31, 40, 512}, {1, 0, 2}},             // rows
      {{256, 384}, {1, 0}},                   // tile_small
      {{257, 391}, {1, 0}},                   // the same, element by element
      {{4096, 4112}, {1, 0}},                 // tile, below 8 bytes
      {{2049, 2303}, {1, 0}},                 // tile_unaligned, below 8 bytes
      {{23, 31, 17, 41}, {3, 2, 1, 0}},       // the same, two dims for its rows and two for its columns
      {{9, 17, 5, 31, 63}, {4, 2, 0, 3, 1}},  // the same, fitted to few columns, below 4 bytes
      {{60, 33, 132}, {0, 2, 1}},             // tile_span, below 16 bytes
      {{60, 3, 11, 131}, {1, 3, 0, 2}},       // the same, two dims for its rows
      {{60, 512, 77}, {0, 2, 1}},             // tile_gather, below 8 bytes
      {{5, 3000}, {1, 0}},                    // narrow, below 16 bytes
      {{3, 700, 12}, {0, 2, 1}},              // the same, split
      {{9, 33, 31}, {0, 2, 1}},               // periodic
      {{7, 5, 11, 13}, {3, 1, 0, 2}},         // staged
  };
  for (const int64_t bytes : {1, 2, 4, 8, 16}) {
    for (const auto& [sizes, dims] : permutations) {
      for (const auto& [in_shift, out_shift] : {std::pair{0, 0}, {16, 0}, {0, 4}, {3, 5}, {8, 8}}) {
        runs({bytes, sizes, dims, {}, {}}, in_shift, out_shift, stream);
      }
    }
    runs({bytes, {40, 50}, {1, 0}, {200, 3}, {97, 2}}, 0, 0, stream);  // steps on both sides
    runs({bytes, {40, 50}, {1, 0}, {0, 1}, {}}, 0, 0, stream);         // an expanded input
  }
  runs({4, {}, {}, {}, {}}, 0, 0, stream);
  tx::permute_cuda({4, {0, 5}, {1, 0}, {}, {}}, nullptr, nullptr, stream);

  const Memory in(Bytes(256, 1)), out(Bytes(256, 2));
  const int64_t huge = int64_t{1} << 62;
  refuses("element_bytes must be 1, 2, 4, 8 or 16, got 3", {3, {2, 2}, {1, 0}, {}, {}}, in.data, out.data);
  refuses("dims must not repeat, got 1 twice", {4, {2, 2}, {1, 1}, {}, {}}, in.data, out.data);
  refuses("fewer than 2^63 bytes", {4, {huge, 2}, {1, 0}, {}, {}}, in.data, out.data);
  refuses("must not be negative, got -1 for dim 1", {4, {2, 2}, {1, 0}, {2, -1}, {}}, in.data, out.data);
  refuses("must not be null", {4, {2, 2}, {1, 0}, {}, {}}, nullptr, out.data);
  refuses("out must not overlap itself", {4, {2, 2}, {1, 0}, {}, {0, 1}}, in.data, out.data);
  refuses("out must not overlap in", {4, {2, 2}, {1, 0}, {}, {}}, in.data, in.data + 12);
  check(cudaDeviceSynchronize());
  Bytes kept(256);
  check(cudaMemcpy(kept.data(), out.data, kept.size(), cudaMemcpyDeviceToHost));
  failures += kept != Bytes(256, 2);
  check(cudaStreamDestroy(stream));
  std::puts(failures == 0 ? "all right" : "FAILED");
  return failures == 0 ? 0 : 1;
}
