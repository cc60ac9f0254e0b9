# What NVIDIA's own binding (nvidia-ml-py) says of every GPU, as one line of JSON.
import json

import pynvml as n

n.nvmlInit()


def word(value):
    return value.decode() if isinstance(value, bytes) else str(value)


def of(handle):
    told = {"uuid": word(n.nvmlDeviceGetUUID(handle))}
    memory = n.nvmlDeviceGetMemoryInfo(handle, version=n.nvmlMemory_v2)
    told["memory.total"], told["memory.used"], told["memory.reserved"] = memory.total, memory.used, memory.reserved
    asked = {
        "name": lambda: word(n.nvmlDeviceGetName(handle)),
        "temperature": lambda: n.nvmlDeviceGetTemperature(handle, n.NVML_TEMPERATURE_GPU),
        "power.enforced": lambda: n.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
        "clock.memory": lambda: n.nvmlDeviceGetClockInfo(handle, n.NVML_CLOCK_MEM),
        "clock.sm.max": lambda: n.nvmlDeviceGetMaxClockInfo(handle, n.NVML_CLOCK_SM),
        "pcie.width": lambda: n.nvmlDeviceGetCurrPcieLinkWidth(handle),
        "pcie.width.max": lambda: n.nvmlDeviceGetMaxPcieLinkWidth(handle),
        "pcie.generation.max": lambda: n.nvmlDeviceGetMaxPcieLinkGeneration(handle),
        "pcie.replays": lambda: n.nvmlDeviceGetPcieReplayCounter(handle),
        "energy": lambda: n.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000,
        "ecc.corrected": lambda: n.nvmlDeviceGetTotalEccErrors(
            handle, n.NVML_MEMORY_ERROR_TYPE_CORRECTED, n.NVML_VOLATILE_ECC
        ),
        "remapped.uncorrected": lambda: n.nvmlDeviceGetRemappedRows(handle)[1],
    }
    for name, ask in asked.items():
        try:
            told[name] = ask()
        except n.NVMLError:
            pass
    return {name: str(value) for name, value in told.items()}


devices = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
print(json.dumps([of(handle) for handle in devices]), flush=True)
