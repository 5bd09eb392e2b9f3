"""Compiles the CPU kernels into their cache, so that the processes of the suite do not each do it."""

import torch

import particleaugment as pa


def compile_kernels():
    images = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    augment = pa.Augment("rand-m9-n3-inc1")
    augment(images, ids=torch.arange(2))
    for dtype in (torch.uint8, torch.int64):
        augment(images, ids=torch.arange(2), masks=images[:, 0].to(dtype))


if __name__ == "__main__":
    compile_kernels()
