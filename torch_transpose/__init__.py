"""Materialised transposes and permutations for PyTorch, at the speed of a copy.

Importing this package registers ``torch.ops.tx.transpose``, ``transpose_into``, ``permute`` and ``permute_into``.
"""

from torch_transpose._dtensor import register_when_imported
from torch_transpose._functions import build_info, explain, permute, transpose

__all__ = ["build_info", "explain", "permute", "transpose"]
__version__ = "0.1.0"

register_when_imported()
