"""The texts by which failures are told apart, as the programs that write them write them."""

from __future__ import annotations

import pytest

from yolo_airflow_provider.contract import FailureClass
from yolo_airflow_provider.symptoms import classify_text
from yolo_airflow_provider.worker import failures

NVML_ASSERTION = (
    "RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at"
    ' "../c10/cuda/CUDACachingAllocator.cpp":1090, please report a bug to PyTorch.'
)
KILLED_LOADER = "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed. "


@pytest.mark.parametrize(
    "text",
    [
        NVML_ASSERTION,
        "NVML_SUCCESS == DriverAPI::get()->nvmlInit_v2_() INTERNAL ASSERT FAILED at CUDACachingAllocator.cpp",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has 4.75 GiB",
        "torch.cuda.OutOfMemoryError: Allocation on device 0 would exceed allowed memory.",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
        "RuntimeError: GET was unable to find an engine to execute this computation",
    ],
)
def test_b1_out_of_memory_of_a_slice_by_whatever_name(text: str) -> None:
    assert classify_text(text) is FailureClass.GPU_OOM
    assert failures.classify(RuntimeError(text)) is FailureClass.GPU_OOM


def test_b1_a_log_that_ends_with_the_assertion() -> None:
    log = "\n".join(["epoch 1/3: box 1.2", "Traceback (most recent call last):", NVML_ASSERTION, "(core dumped)"])
    assert classify_text(log) is FailureClass.GPU_OOM


@pytest.mark.parametrize(
    "text",
    [
        "Failed to initialize NVML: Unknown Error",
        "Unable to determine the device handle for GPU 0000:81:00.0: GPU is lost. Reboot the system to recover it",
        "NVRM: Xid (PCI:0000:81:00): 79, GPU has fallen off the bus.",
        "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
        "RuntimeError: CUDA error: unspecified launch failure",
    ],
)
def test_b8_a_lost_device_is_no_matter_of_memory(text: str) -> None:
    assert classify_text(text) is FailureClass.GPU_LOST


def test_b8_what_fails_because_the_device_went_away_is_not_blamed_on_memory() -> None:
    log = "Failed to initialize NVML: Unknown Error\nRuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"
    assert classify_text(log) is FailureClass.GPU_LOST


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error. It is possible that dataloader's"
        " workers are out of shared memory. Please try to raise your shared memory limit.",
        "Bus error (core dumped)",
        "RuntimeError: unable to open shared memory object </torch_29919_1396182366> in read-write mode",
    ],
)
def test_c2_a_full_dev_shm(text: str) -> None:
    assert classify_text(text) is FailureClass.SHM


def test_kpo_16_a_loader_process_that_the_kernel_killed_is_host_memory() -> None:
    assert classify_text(KILLED_LOADER) is FailureClass.HOST_OOM
    assert failures.classify(RuntimeError(KILLED_LOADER)) is FailureClass.HOST_OOM


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "[enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to"
            " allocate 8192 bytes. Error code 12 (Cannot allocate memory)",
            FailureClass.HOST_OOM,
        ),
        ("OSError: [Errno 28] No space left on device", FailureClass.DISK_FULL),
        ("OSError: [Errno 122] Disk quota exceeded", FailureClass.DISK_FULL),
        (
            "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598",
            FailureClass.DISK_FULL,
        ),
        ("RuntimeError: PytorchStreamWriter failed writing file data/0: file write failed", FailureClass.DISK_FULL),
        ("RuntimeError: [enforce fail at inline_container.cc:145] . PytorchStreamReader failed", None),
        ("KeyError: 'names'", None),
        ("a process was killed by signal: Killed", None),
        ("", None),
    ],
)
def test_other_texts(text: str, found: FailureClass | None) -> None:
    assert classify_text(text) is found
