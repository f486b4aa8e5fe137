# SPDX-License-Identifier: Apache-2.0
"""cuda-core and cuda-bindings: devices, streams, events, graphs and memory resources."""

import numpy as np
from cuda.bindings import driver, runtime
from cuda.core import Device, LegacyPinnedMemoryResource, system
from ranks import devices, expect, run

SIZE = 4096


def streams(rank):
    device = Device(0)
    device.set_current()
    expect("the number of the device", device.device_id, 0)
    expect("a compute capability", device.compute_capability.major > 0, True)
    first, second = device.create_stream(), device.create_stream()
    event = first.record()
    second.wait(event)
    second.sync()
    expect("the event is done", event.is_done, True)
    begin = device.create_event(options={"timing_enabled": True})
    end = device.create_event(options={"timing_enabled": True})
    first.record(begin)
    first.record(end)
    first.sync()
    expect("time does not go back", end - begin >= 0, True)


def copied(buffer, other, stream):
    values = np.arange(SIZE, dtype=np.uint8)
    driver.cuMemcpyHtoD(int(buffer.handle), values.ctypes.data, SIZE)
    buffer.copy_to(other, stream=stream)
    stream.sync()
    result = np.zeros(SIZE, np.uint8)
    driver.cuMemcpyDtoH(result.ctypes.data, int(other.handle), SIZE)
    expect("the copy", result, values)


def memory(rank):
    """Memory of the device's pool, which is cuda-core's default."""
    device = Device(0)
    device.set_current()
    stream = device.create_stream()
    buffer, other = (device.allocate(SIZE, stream=stream) for _ in range(2))
    copied(buffer, other, stream)
    other.close(stream)
    buffer.close(stream)
    pinned = LegacyPinnedMemoryResource().allocate(SIZE)
    expect("the host reaches pinned memory", pinned.is_host_accessible, True)
    pinned.close()


def static_runtime(rank):
    """cuda-bindings has CUDA's runtime linked into it, which calls the driver."""
    error, count = runtime.cudaGetDeviceCount()
    expect("cudaGetDeviceCount", (int(error), count), (0, devices()))
    error, pointer = runtime.cudaMalloc(SIZE)
    expect("cudaMalloc", int(error), 0)
    expect("cudaMemset", int(runtime.cudaMemset(pointer, 1, SIZE)[0]), 0)
    expect("cudaDeviceSynchronize", int(runtime.cudaDeviceSynchronize()[0]), 0)
    expect("cudaFree", int(runtime.cudaFree(pointer)[0]), 0)


def nvml(rank):
    expect("devices of libnvidia-ml.so.1", system.get_num_devices(), devices())
    expect("a name", system.Device(index=0).name != "", True)


run({"streams": streams, "memory": memory, "static_runtime": static_runtime, "nvml": nvml}, count=1)
