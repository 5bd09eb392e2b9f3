"""Compile CUDA C++ at run time and launch it, with NVIDIA's documented C interfaces and nothing else.

NVRTC comes with every CUDA build of torch; no compiler, header or toolkit is needed on the user's machine. Compiled
kernels are kept on disk, by a hash of everything that they depend on.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import site
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from particleaugment.util.cache import cache_folder, write_cache
from particleaugment.util.reading import read_file

__all__ = ["Kernel", "KernelError"]

_MAX_DYNAMIC_SHARED_SIZE = 8


class KernelError(RuntimeError):
    """The kernel cannot be compiled or launched here."""


class Kernel:
    """One ``__global__`` function, compiled for a device.

    Args:
        source: CUDA C++ text.
        name: The function, declared ``extern "C"``.
        options: Compiler options beside the architecture.
        device: The device it will run on.
    """

    def __init__(self, source: str, name: str, options: Sequence[str], device: torch.device):
        self._driver = _driver()
        torch.zeros(1, device=device)  # makes the device's context current on this thread
        binary = _compiled(source, options, device)
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        with torch.cuda.device(device):
            _check_driver(self._driver.cuModuleLoadData(ctypes.byref(module), binary))
            _check_driver(self._driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
        self._function = function
        self._shared_bytes = 0

    def allow_shared_memory(self, size: int) -> None:
        """Raise the limit of dynamic shared memory per block."""
        if size > self._shared_bytes:
            _check_driver(self._driver.cuFuncSetAttribute(self._function, _MAX_DYNAMIC_SHARED_SIZE, size))
            self._shared_bytes = size

    def launch(self, blocks: int, threads: int, shared_bytes: int, parameters: ctypes.Structure) -> None:
        """Launch on torch's current stream with one structure as the only parameter."""
        arguments = (ctypes.c_void_p * 1)(ctypes.cast(ctypes.byref(parameters), ctypes.c_void_p))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        _check_driver(
            self._driver.cuLaunchKernel(
                self._function, blocks, 1, 1, threads, 1, 1, shared_bytes, stream, arguments, None
            )
        )


@cache
def _driver() -> Any:
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        return ctypes.CDLL(name)
    except OSError:
        raise KernelError(f"the CUDA driver library {name} is missing") from None


@cache
def _nvrtc() -> Any:
    names = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]
    major = (torch.version.cuda or "").split(".")[0]
    names.sort(key=lambda name: not name.endswith(f".{major}"))
    folders = {Path(folder) / "nvidia" for folder in [*site.getsitepackages(), *sys.path] if folder}
    found = [str(path) for folder in folders if folder.is_dir() for path in folder.glob("*/lib/libnvrtc.so*")]
    packaged = [path for name in names for path in found if Path(path).name == name]
    for candidate in [*packaged, *names]:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(candidate)
    raise KernelError("NVRTC, the run-time compiler that comes with torch's CUDA builds, is missing")


def _check_driver(code: int) -> None:
    if code:
        message = ctypes.c_char_p()
        _driver().cuGetErrorString(code, ctypes.byref(message))
        raise KernelError(f"the CUDA driver says: {(message.value or b'unknown error').decode()} ({code})")


def _compiled(source: str, options: Sequence[str], device: torch.device) -> bytes:
    major, minor = torch.cuda.get_device_capability(device)
    nvrtc = _nvrtc()
    version = (ctypes.c_int(), ctypes.c_int())
    nvrtc.nvrtcVersion(ctypes.byref(version[0]), ctypes.byref(version[1]))
    all_options = [f"--gpu-architecture=sm_{major}{minor}", *options]
    identity = "\n".join([source, *all_options, f"{version[0].value}.{version[1].value}"])
    path = cache_folder() / "kernels" / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.cubin"
    with contextlib.suppress(OSError):
        return read_file(path)
    binary = _compile(nvrtc, source, all_options)
    write_cache(path, binary)
    return binary


def _compile(nvrtc: Any, source: str, options: Sequence[str]) -> bytes:
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"particleaugment.cu", 0, None, None)
    encoded = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    code = nvrtc.nvrtcCompileProgram(program, len(options), encoded)
    if code:
        size = ctypes.c_size_t()
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        raise KernelError(f"NVRTC cannot compile the kernel (error {code}): {log.value.decode(errors='replace')}")
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    binary = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, binary)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return binary.raw
