"""What a GPU or a laptop can do at best, each number with its source. Never what one does reach.

Peaks are those of dense products: data sheets often print twice as much, for weights of which
half are zero. Bandwidths are one way; a link said to do 900 GB/s does 450 in each direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

TERA, GIGA = 1e12, 1e9


@dataclass(frozen=True, slots=True)
class Hardware:
    """One device. Bytes and FLOP/s are decimal, as data sheets count them."""

    name: str
    memory_bytes: float
    memory_bytes_per_s: float
    flops_per_s: Mapping[int, float]  # bits of the numbers that are multiplied -> dense peak
    link_bytes_per_s: float  # to the other devices, one way; 0: there is no link
    host_bytes_per_s: float  # to the host's memory, one way
    source: str
    date: str  # of the source

    def peak_flops(self, bits: int) -> float:
        """Dense FLOP/s with numbers of so many bits. Raises ValueError naming those it has."""
        if bits not in self.flops_per_s:
            known = ", ".join(map(str, sorted(self.flops_per_s)))
            raise ValueError(f"{self.name} does not multiply {bits}-bit numbers: it has {known}")
        return self.flops_per_s[bits]

    def ridge_flops_per_byte(self, bits: int = 16) -> float:
        """Work of fewer FLOPs for each byte that it moves is held up by memory, not by
        arithmetic."""
        return self.peak_flops(bits) / self.memory_bytes_per_s


HARDWARE = {
    "h100": Hardware(
        name="H100 SXM",
        memory_bytes=80 * GIGA,
        memory_bytes_per_s=3.35 * TERA,
        flops_per_s={16: 989.4 * TERA, 8: 1978.9 * TERA},
        link_bytes_per_s=450 * GIGA,
        host_bytes_per_s=64 * GIGA,  # PCIe 5.0 x16
        source="NVIDIA H100 Tensor Core GPU data sheet and Hopper architecture white paper",
        date="2023",
    ),
    "h200": Hardware(
        name="H200 SXM",
        memory_bytes=141 * GIGA,
        memory_bytes_per_s=4.8 * TERA,
        flops_per_s={16: 989.4 * TERA, 8: 1978.9 * TERA},
        link_bytes_per_s=450 * GIGA,
        host_bytes_per_s=64 * GIGA,
        source="NVIDIA H200 Tensor Core GPU data sheet",
        date="2024",
    ),
    "b200": Hardware(
        name="B200 (HGX)",
        memory_bytes=180 * GIGA,  # of 192 GB on the package
        memory_bytes_per_s=8 * TERA,
        flops_per_s={16: 2250 * TERA, 8: 4500 * TERA, 4: 9000 * TERA},
        link_bytes_per_s=900 * GIGA,
        host_bytes_per_s=64 * GIGA,  # PCIe 5.0 x16 of the HGX board's host
        source="NVIDIA DGX B200 data sheet, divided by 8, and Blackwell architecture brief",
        date="2024",
    ),
    "gb200": Hardware(
        name="GB200 NVL72, one GPU",
        memory_bytes=186 * GIGA,
        memory_bytes_per_s=8 * TERA,
        flops_per_s={16: 2500 * TERA, 8: 5000 * TERA, 4: 10000 * TERA},
        link_bytes_per_s=900 * GIGA,
        host_bytes_per_s=225 * GIGA,  # NVLink-C2C, 450 one way, for two GPUs
        source="NVIDIA GB200 NVL72 product page, divided by 72",
        date="2024",
    ),
    "a100": Hardware(
        name="A100 SXM 80 GB",
        memory_bytes=80 * GIGA,
        memory_bytes_per_s=2.039 * TERA,
        flops_per_s={16: 312 * TERA, 8: 624 * TERA},  # 8: int8
        link_bytes_per_s=300 * GIGA,
        host_bytes_per_s=32 * GIGA,  # PCIe 4.0 x16
        source="NVIDIA A100 Tensor Core GPU data sheet",
        date="2021",
    ),
    "rtx4090": Hardware(
        name="GeForce RTX 4090",
        memory_bytes=24 * GIGA,
        memory_bytes_per_s=1.008 * TERA,
        flops_per_s={16: 165.2 * TERA, 8: 330.3 * TERA},  # sums in float32
        link_bytes_per_s=32 * GIGA,  # no NVLink: through PCIe
        host_bytes_per_s=32 * GIGA,  # PCIe 4.0 x16
        source="NVIDIA Ada GPU architecture white paper, appendix A",
        date="2022",
    ),
    "laptop": Hardware(
        name="laptop CPU (Ryzen 7 7840HS, two DDR5-5600)",
        memory_bytes=32 * GIGA,
        memory_bytes_per_s=89.6 * GIGA,  # 2 channels x 8 bytes x 5.6 GT/s
        # 8 cores x 3.8 GHz x 32 float32 operations a cycle; 16-bit weights are widened first
        flops_per_s={32: 0.973 * TERA, 16: 0.973 * TERA},
        link_bytes_per_s=0.0,
        host_bytes_per_s=44.8 * GIGA,  # a copy reads and writes the same memory
        source="AMD Ryzen 7 7840HS product page (8 cores, 3.8 GHz, DDR5-5600); arithmetic",
        date="2023",
    ),
}


def find_hardware(name: str) -> Hardware:
    """By its short name, in any case. Raises ValueError listing those that are known."""
    hardware = HARDWARE.get(name.lower())
    if hardware is None:
        raise ValueError(f"unknown hardware {name!r}: known are {', '.join(HARDWARE)}")
    return hardware
