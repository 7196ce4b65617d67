"""What documents write, word for word: tests run it as it is."""

GENERATORS = '''
import torch

def gen_orthogonal(shape, dtype, device, input_idx=0):
    """Orthogonal vectors maximize cross product magnitude."""
    t = torch.zeros(shape, dtype=dtype, device=device)
    t[:, input_idx % 3] = torch.arange(shape[0], dtype=dtype, device=device) + 1
    return t

def gen_parallel_scaled(shape, dtype, device, input_idx=0):
    """Parallel vectors (cross = 0) with different scales."""
    return torch.arange(shape.numel(), dtype=dtype, device=device).reshape(shape) * (1 + input_idx)
'''
