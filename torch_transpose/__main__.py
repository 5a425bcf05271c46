"""`python -m torch_transpose info`: what a bug report needs, and a check that the ops work on each device."""

import argparse
import platform
import sys

import torch

import torch_transpose as tx


def works_on(device: torch.device) -> bool:
    """Whether a transpose, its gradient and a permutation into an odd place give torch's bytes on `device`."""
    x = torch.arange(517 * 643, device=device, dtype=torch.float32).view(517, 643).requires_grad_()
    y = tx.transpose(x)
    y.backward(2 * y.detach())
    out = torch.zeros(643 * 517 + 1, device=device)[1:].view(643, 517)
    tx.permute(x.detach(), (1, 0), out=out)
    expected = x.detach().t()
    return bool(torch.equal(y, expected) and torch.equal(out, expected) and torch.equal(x.grad, 2 * x))  # type: ignore[arg-type]


def info() -> int:
    build = tx.build_info()
    for name, value in [
        ("torch_transpose", tx.__version__),
        ("torch", f"{torch.__version__} (CUDA {torch.version.cuda or 'none'}), built for {build['torch']}"),
        ("python", f"{platform.python_version()} on {platform.platform()}"),
        ("compiler", build["compiler"]),
        ("backends", ", ".join(build["backends"])),
        (
            "CUDA kernels",
            f"{build['cuda']}, for {' '.join('sm_' + a for a in build['arch_list'])}" if build["cuda"] else "none",
        ),
        ("CPU kernels", f"{build['cpu_isa']}, up to {torch.get_num_threads()} threads"),
    ]:
        print(f"{name:16} {value}")
    devices = [torch.device("cpu")]
    if "cuda" in build["backends"] and torch.cuda.is_available():
        devices += [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    right = True
    for device in devices:
        detail = ""
        if device.type == "cuda":
            major, minor = torch.cuda.get_device_capability(device)
            detail = f", {torch.cuda.get_device_name(device)}, sm_{major}{minor}"
        try:
            verdict = "right" if works_on(device) else "WRONG VALUES"
        except RuntimeError as error:
            verdict = f"FAILED: {error}"
        right = right and verdict == "right"
        print(f"{device!s:16} {verdict}{detail}")
    return 0 if right else 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m torch_transpose", description="Tools of torch_transpose.")
    commands = parser.add_subparsers(required=True)
    about = commands.add_parser("info", help="print the environment and the build, and check every device")
    about.set_defaults(run=info)
    return int(parser.parse_args().run())


if __name__ == "__main__":
    sys.exit(main())
