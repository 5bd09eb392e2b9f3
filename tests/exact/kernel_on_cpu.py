"""The mask kernel compiled as C++ for the CPU: a block's threads are threads, and its barriers are barriers."""

import ctypes
import subprocess
from pathlib import Path

import torch

from particleaugment.executors.fused import kernel_source, mask_parameters
from particleaugment.executors.steps import Steps

THREADS = 4
_SHARED = "extern __shared__ short tables[];"
_BEFORE = f"""
#include <math.h>
#include <algorithm>
#include <barrier>
#include <thread>
#include <vector>
using std::max; using std::min;
#define __device__
#define __global__
#define __shared__ static
#define __launch_bounds__(...)
struct Index {{ int x; }};
static Index blockDim = {{{THREADS}}};
static thread_local Index threadIdx, blockIdx;
static std::barrier<> everyone({THREADS});
static void __syncthreads() {{ everyone.arrive_and_wait(); }}
static short tables[1 << 20];
"""
_AFTER = f"""
extern "C" void run(const MaskParams* p, int batch) {{
  std::vector<std::thread> threads;
  for (int t = 0; t < {THREADS}; t++)
    threads.emplace_back([=] {{
      threadIdx.x = t;
      for (int b = 0; b < batch; b++) {{ blockIdx.x = b; move_masks(*p); __syncthreads(); }}
    }});
  for (auto& thread : threads) thread.join();
}}
"""


class KernelOnCpu:
    """Compiles the kernel into a folder and runs it on CPU tensors."""

    def __init__(self, compiler: str, folder: Path):
        source = kernel_source("mask_kernel.cu")
        assert source.count(_SHARED) == 1
        path = folder / "mask_kernel.cpp"
        path.write_text(_BEFORE + source.replace(_SHARED, "") + _AFTER)
        library = folder / "mask_kernel.so"
        options = ["-std=c++20", "-O2", "-ffp-contract=off", "-fPIC", "-shared", "-pthread", "-Wall", "-Werror"]
        subprocess.run([compiler, *options, str(path), "-o", str(library)], check=True)
        self._run = ctypes.CDLL(str(library)).run

    def __call__(self, masks: torch.Tensor, steps: Steps, fill: int, with_tables: bool = True) -> torch.Tensor:
        """Move masks ``[B, M, H, W]``, as ``fused.run_masks`` does on a GPU."""
        out = torch.empty_like(masks)
        parameters, kept = mask_parameters(masks, out, steps, fill)
        parameters.has_tables = int(with_tables)
        self._run(ctypes.byref(parameters), len(masks))
        del kept
        return out
