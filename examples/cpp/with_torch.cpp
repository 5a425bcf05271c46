// Calls the ops on LibTorch tensors, with a gradient, and runs a package that AOTInductor compiled from a
// model that uses them. Exits with status 1 if a value is wrong.
//
//   with_torch [model.pt2]     of x -> transpose(x @ w), x (batch, 6), w (6, 5) of ones
#include <ATen/ATen.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch_transpose/ops.h>

#include <cstdio>

int main(int argc, char** argv) {
  const at::Tensor x = at::randn({300, 200}).set_requires_grad(true);
  const at::Tensor y = tx::transpose(x);
  y.mul(2).sum().backward();
  bool right = at::equal(y, x.t()) && y.is_contiguous() && at::equal(x.grad(), at::full_like(x, 2));
  std::printf("transpose and its gradient: %s\n", right ? "right" : "WRONG");

  const at::Tensor batch = at::randn({4, 32, 48, 3});
  at::Tensor out = at::empty({4, 3, 32, 48});
  tx::permute_into(batch, out, {0, 3, 1, 2});
  right = right && at::equal(out, batch.permute({0, 3, 1, 2})) &&
          at::equal(tx::permute(batch, {0, 3, 1, 2}), out);
  std::printf("permute and permute_into: %s\n", right ? "right" : "WRONG");

  if (argc > 1) {  // transpose(x @ w) with w all ones: every row of the result is the row sums of x
    torch::inductor::AOTIModelPackageLoader model(argv[1]);
    const at::Tensor rows = at::randn({9, 6});
    const at::Tensor result = model.run({rows}).at(0);
    right = right && at::allclose(result, rows.sum(1).expand({5, 9}), 1e-4, 1e-5);
    std::printf("package: %s\n", right ? "right" : "WRONG");
  }
  return right ? 0 : 1;
}
