"""torch: what you would run, on CPU and GPU, with gradients. Never imports verify."""

from lib.fast.attention import attention

__all__ = ["attention"]
