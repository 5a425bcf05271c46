// Permutes plain memory with the CPU kernels alone, and checks every element. Exits with status 1 if one is
// wrong.
#include <torch_transpose/kernels.h>

#include <cstdint>
#include <cstdio>
#include <numeric>
#include <stdexcept>
#include <vector>

int main() {
  // An image, height x width x colour, to one plane a colour.
  constexpr int64_t kHeight = 270, kWidth = 401, kColours = 3;
  std::vector<uint16_t> image(kHeight * kWidth * kColours), planes(image.size());
  std::iota(image.begin(), image.end(), uint16_t{0});
  tx::permute_cpu({.element_bytes = 2, .sizes = {kHeight, kWidth, kColours}, .dims = {2, 0, 1}}, image.data(),
                  planes.data());
  int64_t wrong = 0;
  for (int64_t y = 0; y < kHeight; ++y) {
    for (int64_t x = 0; x < kWidth; ++x) {
      for (int64_t c = 0; c < kColours; ++c) {
        wrong += planes[(c * kHeight + y) * kWidth + x] != image[(y * kWidth + x) * kColours + c];
      }
    }
  }
  std::printf("image to planes: %lld of %zu elements wrong\n", static_cast<long long>(wrong), planes.size());

  // The left half of a matrix into the columns of a wider one, on one thread.
  constexpr int64_t kRows = 64, kCols = 96, kPitch = 200;
  std::vector<double> matrix(kRows * kCols), wide(kCols / 2 * kPitch, -1.0);
  std::iota(matrix.begin(), matrix.end(), 0.0);
  tx::permute_cpu({.element_bytes = 8,
                   .sizes = {kRows, kCols / 2},
                   .dims = {1, 0},
                   .in_strides = {kCols, 1},
                   .out_strides = {kPitch, 1}},
                  matrix.data(), wide.data() + 7, /*threads=*/1);
  for (int64_t r = 0; r < kCols / 2; ++r) {
    for (int64_t c = 0; c < kPitch; ++c) {
      const bool inside = c >= 7 && c < 7 + kRows;
      wrong += wide[r * kPitch + c] != (inside ? matrix[(c - 7) * kCols + r] : -1.0);
    }
  }
  std::printf("half a matrix: %lld elements wrong in all\n", static_cast<long long>(wrong));

  try {  // What breaks a rule is refused with nothing written.
    tx::permute_cpu({.element_bytes = 8, .sizes = {8, 8}, .dims = {1, 0}}, matrix.data(), matrix.data());
    ++wrong;
  } catch (const std::invalid_argument& error) {
    std::printf("in place: %s\n", error.what());
  }
  return wrong == 0 ? 0 : 1;
}
