"""Write torch's own samples (OpInfo) of two attention functions to the file that is named as the argument.

A process of its own, because importing them changes settings of the whole process: hypothesis then tries a tenth of
the examples, and torch's flags can no longer be set.
"""

import sys

import torch
from torch.testing._internal.common_methods_invocations import op_db

OPERATORS = ("scaled_dot_product_attention", "multi_head_attention_forward")
DTYPES = (torch.float32, torch.float64)


def samples(operator, dtype):
    """List positional and keyword arguments of each sample."""
    torch.manual_seed(0)
    (info,) = (info for info in op_db if info.name == f"nn.functional.{operator}")
    return [([sample.input, *sample.args], sample.kwargs) for sample in info.sample_inputs("cpu", dtype)]


if __name__ == "__main__":
    torch.save({(operator, dtype): samples(operator, dtype) for operator in OPERATORS for dtype in DTYPES}, sys.argv[1])
