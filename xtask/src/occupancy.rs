//! The occupancy of kernels: how many of a multiprocessor's warps can be resident.

use crate::ptxas::Resources;

/// The resources of a multiprocessor. The numbers are from "Technical Specifications per Compute
/// Capability" in the CUDA C++ Programming Guide. Numbers that are the same for all architectures
/// here are constants below.
pub(crate) struct Architecture {
    pub(crate) sm: u32,
    /// Bytes of shared memory for all blocks together.
    shared: u32,
}

/// The architectures that have columns in the report.
pub(crate) const ARCHITECTURES: [Architecture; 3] = [
    Architecture {
        sm: 80,
        shared: 164 << 10,
    },
    Architecture {
        sm: 90,
        shared: 228 << 10,
    },
    Architecture {
        sm: 100,
        shared: 228 << 10,
    },
];

const WARPS: u32 = 64;
const BLOCKS: u32 = 32;
const REGISTERS: u32 = 64 << 10;
/// Registers are allocated to warps in multiples of this,
const REGISTER_UNIT: u32 = 256;
/// from as many register files as there are warp schedulers.
const SCHEDULERS: u32 = 4;
/// Shared memory is allocated to blocks in multiples of this many bytes,
const SHARED_UNIT: u32 = 128;
/// plus this many bytes that the system reserves for each block.
const SHARED_RESERVED: u32 = 1 << 10;

/// The fraction of a multiprocessor's warps that can be resident, in percent.
pub(crate) fn percent(architecture: &Architecture, block: u32, resources: &Resources) -> u32 {
    let warps = block.div_ceil(32).max(1);
    let registers = (resources.registers * 32).next_multiple_of(REGISTER_UNIT);
    let by_registers = match registers {
        0 => WARPS,
        registers => REGISTERS / SCHEDULERS / registers * SCHEDULERS,
    };
    let shared = resources.shared.next_multiple_of(SHARED_UNIT) + SHARED_RESERVED;
    let blocks = (WARPS / warps)
        .min(by_registers / warps)
        .min(architecture.shared / shared)
        .min(BLOCKS);
    blocks * warps * 100 / WARPS
}

#[cfg(test)]
mod tests {
    use super::*;

    // The expected values are from NVIDIA's occupancy calculator.
    #[test]
    fn each_limit_limits() {
        let [sm_80, sm_90, _] = ARCHITECTURES;
        let takes = |registers, shared| Resources {
            registers,
            shared,
            local: 0,
        };
        assert_eq!(percent(&sm_80, 256, &takes(32, 0)), 100);
        assert_eq!(percent(&sm_80, 256, &takes(33, 0)), 75); // 40 registers: 12 warps a scheduler
        assert_eq!(percent(&sm_80, 256, &takes(64, 0)), 50);
        assert_eq!(percent(&sm_80, 1024, &takes(40, 0)), 50);
        assert_eq!(percent(&sm_80, 32, &takes(16, 0)), 50); // 32 blocks
        assert_eq!(percent(&sm_80, 256, &takes(32, 47 << 10)), 37); // 3 blocks
        assert_eq!(percent(&sm_90, 256, &takes(32, 47 << 10)), 50); // 4 blocks
    }
}
