//! Metrics of errors in a device's memory and on its link to the host: ECC errors, retired memory,
//! the PCIe link.

use super::attributes as attr;
use super::link::Direction;
use super::{dims, metrics};
use crate::ids::GpuId;

dims! {
    /// What became of an error in a block of the chip.
    BlockError: attr::GPU_ECC_ERROR_TYPE {
        /// Corrected.
        Corrected = "corrected",
        /// Not corrected, and consumed.
        Uncorrected = "uncorrected",
        /// Not corrected; the data is marked as bad and not yet used.
        Deferred = "deferred",
    }
    /// Block of the chip, by the driver's name.
    Block: attr::GPU_ECC_BLOCK {
        /// Controllers of the device memory.
        Umc = "umc",
        /// Copy engines.
        Sdma = "sdma",
        /// Compute and graphics.
        Gfx = "gfx",
        /// Memory hub.
        Mmhub = "mmhub",
        /// Address translation hub.
        Athub = "athub",
        /// PCIe interface.
        PcieBif = "pcie_bif",
        /// Host data path.
        Hdp = "hdp",
        /// Links to other devices.
        XgmiWafl = "xgmi_wafl",
        /// Data fabric.
        Df = "df",
        /// System management network.
        Smn = "smn",
        /// Semaphore block.
        Sem = "sem",
        /// Security processor.
        Mp0 = "mp0",
        /// Power management processor.
        Mp1 = "mp1",
        /// Fuses.
        Fuse = "fuse",
        /// Machine check architecture.
        Mca = "mca",
        /// Video codec.
        Vcn = "vcn",
        /// JPEG decoder.
        Jpeg = "jpeg",
        /// Interrupt handler.
        Ih = "ih",
        /// I/O processor.
        Mpio = "mpio",
        /// Memory management.
        Mmsch = "mmsch",
        /// A block that the agent's table does not have.
        Other = "other",
    }
    /// Why memory was retired.
    RetirementCause: attr::GPU_MEMORY_RETIREMENT_CAUSE {
        /// Repeated corrected errors in one place.
        Corrected = "corrected",
        /// An error that could not be corrected.
        Uncorrected = "uncorrected",
    }
    /// Number of spare rows that a bank still has.
    SpareRows: attr::GPU_MEMORY_SPARE_ROWS {
        /// All.
        All = "all",
        /// Most.
        High = "high",
        /// Some.
        Partial = "partial",
        /// Few.
        Low = "low",
        /// None: the next error in it cannot be remapped.
        None = "none",
    }
    /// Whether ECC corrected an error.
    EccError: attr::GPU_ECC_ERROR_TYPE {
        /// Corrected (single bit).
        Corrected = "corrected",
        /// Not corrected (double bit, parity).
        Uncorrected = "uncorrected",
    }
    /// Start of the error counts.
    EccCount: attr::GPU_ECC_COUNT_TYPE {
        /// Since the driver was loaded.
        Volatile = "volatile",
        /// Since the board was made.
        Aggregate = "aggregate",
    }
    /// Which memory. A device has DRAM and SRAM, or before Turing the others.
    EccLocation: attr::GPU_ECC_LOCATION {
        /// The device memory.
        Dram = "dram",
        /// The static memories of the chip, all of them.
        Sram = "sram",
        /// L1 cache.
        L1 = "l1",
        /// L2 cache.
        L2 = "l2",
        /// Register file.
        Registers = "registers",
        /// Texture memory.
        Texture = "texture",
        /// Convergence barrier unit.
        Barrier = "barrier",
    }
    /// Where a static memory is.
    SramUnit: attr::GPU_ECC_SRAM_UNIT {
        /// L2 cache.
        L2 = "l2",
        /// Multiprocessors.
        Multiprocessor = "sm",
        /// PCIe unit.
        Pcie = "pcie",
        /// Microcontrollers.
        Microcontroller = "microcontroller",
        /// Elsewhere.
        Other = "other",
    }
    /// Kind of error on the PCIe link. They overlap: a corrected error is also counted by its
    /// cause.
    PcieError: attr::GPU_PCIE_ERROR {
        /// Corrected errors.
        Correctable = "correctable",
        /// Errors that lost a transaction.
        NonFatal = "non_fatal",
        /// Errors that lost the link.
        Fatal = "fatal",
        /// Requests that the device does not support.
        UnsupportedRequest = "unsupported_request",
        /// Errors of the receiver.
        Receiver = "receiver",
        /// Transaction packets that were damaged.
        BadTlp = "bad_tlp",
        /// Link packets that were damaged.
        BadDllp = "bad_dllp",
        /// Packets with a wrong link checksum.
        Lcrc = "lcrc",
        /// Errors of a lane.
        Lane = "lane",
        /// Packets that the other side refused.
        NakReceived = "nak_received",
        /// Packets that the device refused.
        NakSent = "nak_sent",
        /// Repeated packets after which the link was trained again.
        ReplayRollover = "replay_rollover",
        /// Recoveries of the link.
        Recovery = "recovery",
    }
}

metrics! {
    /// Whether ECC is on: 1 if so. Read at every thirtieth reading.
    ECC_ENABLED: Gauge<i64> of GpuId = "gpu.ecc.enabled" ["{flag}"]
        from "field 1; nvmlDeviceGetEccMode where the driver has no such field";
    /// Whether ECC will be on after the next reset: 1 if so. Read at every thirtieth reading.
    ECC_ENABLED_NEXT: Gauge<i64> of GpuId = "gpu.ecc.enabled.pending" ["{flag}"]
        from "field 2; nvmlDeviceGetEccMode where the driver has no such field";
    /// Memory errors that ECC detected in all memories of a device.
    ECC_ERRORS: Counter<i64> of GpuId, by (EccError, EccCount) = "gpu.ecc.errors" ["{error}"]
        from "fields 3 to 6 (SBE, DBE; volatile, aggregate)";
    /// Memory errors by location, since the driver was loaded. SRAM is read at every sixth reading.
    ECC_VOLATILE: Counter<i64> of GpuId, by (EccError, EccLocation) = "gpu.ecc.location.errors.volatile" ["{error}"]
        from "fields 7 to 17; nvmlDeviceGetSramEccErrorStatus, GetMemoryErrorCounter (SRAM)";
    /// Memory errors by location, over the board's lifetime. SRAM is read at every sixth reading.
    ECC_AGGREGATE: Counter<i64> of GpuId, by (EccError, EccLocation) = "gpu.ecc.location.errors.aggregate" ["{error}"]
        from "fields 18 to 28; nvmlDeviceGetSramEccErrorStatus, GetMemoryErrorCounter (SRAM)";
    /// Uncorrected SRAM errors over the board's lifetime, by location.
    /// Ampere and later, only for root; read at every sixth reading.
    ECC_SRAM: Counter<i64> of GpuId, by SramUnit = "gpu.ecc.sram.uncorrected" ["{error}"]
        from "nvmlDeviceGetSramEccErrorStatus";
    /// SRAM error threshold of the vendor's field diagnosis exceeded: 1 if
    /// so. Replace the board.
    ECC_SRAM_EXCEEDED: Gauge<i64> of GpuId = "gpu.ecc.sram.threshold_exceeded" ["{flag}"]
        from "nvmlDeviceGetSramEccErrorStatus";
    /// Errors of memories by the block of the chip that they are in, since the driver was loaded;
    /// the blocks add up to `gpu.ecc.errors`. Only blocks that report errors; read at every sixth
    /// reading.
    BLOCK_ERRORS: Counter<i64> of GpuId, by (BlockError, Block) = "gpu.ecc.block.errors" ["{error}"]
        from "the table of vendors";
    /// Rows of device memory remapped to spare rows over the board's lifetime, by cause.
    /// Ampere and later.
    REMAPPED_ROWS: Counter<i64> of GpuId, by RetirementCause = "gpu.memory.remapped_rows" ["{row}"]
        from "fields 142, 143; nvmlDeviceGetRemappedRows where the driver has no such fields";
    /// Row remapping pending, needs a reset: 1 if so.
    REMAP_PENDING: Gauge<i64> of GpuId = "gpu.memory.remap.pending" ["{flag}"]
        from "field 144; nvmlDeviceGetRemappedRows";
    /// Row remapping failed: 1 if so. Replace the board.
    REMAP_FAILED: Gauge<i64> of GpuId = "gpu.memory.remap.failed" ["{flag}"]
        from "field 145; nvmlDeviceGetRemappedRows";
    /// Banks of device memory by their remaining spare rows. Read at every thirtieth reading.
    SPARE_ROWS: UpDownCounter<i64> of GpuId, by SpareRows = "gpu.memory.banks" ["{bank}"]
        from "nvmlDeviceGetRowRemapperHistogram";
    /// Retired pages of device memory over the board's lifetime, by cause. Before Ampere; read at
    /// every sixth reading.
    RETIRED_PAGES: Counter<i64> of GpuId, by RetirementCause = "gpu.memory.retired_pages" ["{page}"]
        from "fields 29 (SBE) and 30 (DBE)";
    /// Page retirement pending, needs a reset: 1 if so.
    RETIREMENT_PENDING: Gauge<i64> of GpuId = "gpu.memory.retirement.pending" ["{flag}"]
        from "field 31 (any cause)";
    /// Current PCIe generation of the link; it falls when the device is idle.
    PCIE_GENERATION: Gauge<i64> of GpuId = "gpu.pcie.link.generation" ["{generation}"]
        from "nvmlDeviceGetCurrPcieLinkGeneration";
    /// Current number of lanes of the link.
    PCIE_WIDTH: Gauge<i64> of GpuId = "gpu.pcie.link.width" ["{lane}"]
        from "nvmlDeviceGetCurrPcieLinkWidth";
    /// Highest PCIe generation that device and slot both support, read once.
    PCIE_GENERATION_LIMIT: Gauge<i64> of GpuId = "gpu.pcie.link.generation.limit" ["{generation}"]
        from "nvmlDeviceGetMaxPcieLinkGeneration";
    /// Largest number of lanes that device and slot both support, read once.
    PCIE_WIDTH_LIMIT: Gauge<i64> of GpuId = "gpu.pcie.link.width.limit" ["{lane}"]
        from "nvmlDeviceGetMaxPcieLinkWidth";
    /// PCIe packets sent again.
    PCIE_REPLAYS: Counter<i64> of GpuId = "gpu.pcie.replays" ["{replay}"]
        from "field 94; nvmlDeviceGetPcieReplayCounter where the driver has no such field";
    /// Errors of the PCIe link, read at every sixth reading.
    PCIE_ERRORS: Counter<i64> of GpuId, by PcieError = "gpu.pcie.errors" ["{error}"]
        from "fields 95, 169, 173 to 183";
    /// Bytes over the PCIe link. Only where the driver counts in 64 bits: a 32-bit counter wraps
    /// many times between two readings.
    PCIE_IO: Counter<i64> of GpuId, by Direction = "gpu.pcie.io" ["By"]
        from "fields 197, 198";
}
