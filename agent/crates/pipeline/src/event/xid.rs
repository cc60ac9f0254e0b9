//! The meaning of each XID: one row a code, with the origin of the row.
//!
//! A code without a row is reported as unknown, never guessed: NVIDIA adds codes with each driver.

mod text;

use super::Severity;

/// One code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xid {
    /// The number in `NVRM: Xid (…): N`.
    pub code: u16,
    /// The driver's own name of it.
    pub name: &'static str,
    /// What it means.
    pub meaning: &'static str,
    /// What to do, unless the text says more.
    pub action: Action,
    /// The work that it affects, unless the text says more.
    pub affects: Affects,
    /// The origin of the row.
    pub origin: Origin,
}

/// The work that an XID affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Affects {
    /// The work of the process in which it occurred; other processes on the device continue.
    Process,
    /// The work of every process on the device, whichever process the line names: for a device that
    /// does not answer, the line names the process that made the failing call.
    Device,
}

/// The origin of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// NVIDIA's Xid catalogue for Ampere and later, as published: code, mnemonic
    /// and resolution bucket (immediate action).
    /// `https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html`
    Catalog,
    /// A code that the catalogue calls unused (or whose GPUs it does not cover): its name in
    /// `nverror.h` of NVIDIA's open kernel modules (`src/common/sdk/nvidia/inc`), which states no
    /// action; ours follows the engine it names.
    Header,
}

/// What to do about a code; the resolution buckets of the catalogue in plain words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// `IGNORE`.
    Nothing,
    /// The text says that the error was injected for a test.
    Injected,
    /// `IGNORE`, with a note to look at repetitions.
    Watch,
    /// `IGNORE (follow other Xid)`, `WORKFLOW_XID_45`, `CHECK_UVM`.
    SeeOther,
    /// `RESTART_APP`.
    RestartApp,
    /// `RESTART_APP` (or `IGNORE`) with `CHECK_APP/CUDA`, `WORKFLOW_XID_13`, `WORKFLOW_XID_31`.
    CheckApp,
    /// `RESTART_VM`.
    RestartVm,
    /// `RESET_GPU`.
    ResetGpu,
    /// `WORKFLOW_XID_48`.
    ResetEcc,
    /// `RESTART_BM`.
    RestartNode,
    /// `WORKFLOW_NVLINK_ERR`; `WORKFLOW_NVLINK5_ERR` where the text says that it is fatal.
    CheckLink,
    /// `WORKFLOW_NVLINK5_ERR` with `XID_154_EVAL`, or without a text that states the severity.
    FollowRecovery,
    /// `CHECK_MECHANICALS`.
    CheckCables,
    /// `UPDATE_SWFW`.
    Update,
    /// Of XID 154: the text names it.
    FollowText,
    /// Of XID 154: the device needs no action any more.
    Recovered,
    /// Of XID 154: traffic between devices has to end.
    DrainPeers,
    /// Of XID 168.
    EnableEcc,
    /// `CONTACT_SUPPORT`, or no bucket.
    Support,
    /// A code that is in no row.
    LookUp,
}

impl Action {
    /// One short sentence.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Nothing => "nothing to do",
            Self::Injected => "nothing to do: the error was injected for a test",
            Self::Watch => "nothing to do now; replace the board if it keeps coming",
            Self::SeeOther => "follow the other XID of the same moment; alone, restart the program",
            Self::RestartApp => "restart the program",
            Self::CheckApp => "look for the fault in the program (compute-sanitizer), restart it",
            Self::RestartVm => "restart the virtual machine",
            Self::ResetGpu => "drain the GPU and reset it",
            Self::ResetEcc => {
                "drain the GPU and reset it; replace it if its ECC threshold is passed"
            }
            Self::RestartNode => "drain the node and restart it; check power, seating and PCIe",
            Self::CheckLink => "reset the GPU; check the NVLink peers if it comes back",
            Self::CheckCables => "check the board's power connectors",
            Self::Update => "update driver and firmware",
            Self::FollowRecovery => {
                "nothing to do for this alone; do what an XID 154 behind it names"
            }
            Self::FollowText => "do what the message names",
            Self::Recovered => "nothing to do: the GPU needs no recovery any more",
            Self::DrainPeers => "end the work that uses peer-to-peer traffic of this GPU",
            Self::LookUp => "look the code up at the vendor; it is new to this agent",
            Self::EnableEcc => "switch ECC on and restart the node",
            Self::Support => "contact the vendor if it comes back",
        }
    }

    /// The severity of a code with this action.
    pub fn severity(self) -> Severity {
        match self {
            Self::Nothing | Self::Injected | Self::Recovered => Severity::Info,
            Self::Watch
            | Self::SeeOther
            | Self::RestartApp
            | Self::CheckApp
            | Self::RestartVm
            | Self::Update
            | Self::FollowRecovery
            | Self::DrainPeers
            | Self::FollowText => Severity::Warning,
            Self::ResetGpu
            | Self::ResetEcc
            | Self::RestartNode
            | Self::CheckLink
            | Self::CheckCables
            | Self::EnableEcc
            | Self::LookUp
            | Self::Support => Severity::Critical,
        }
    }
}

/// A code of the device.
const fn xid(
    code: u16,
    name: &'static str,
    meaning: &'static str,
    action: Action,
    origin: Origin,
) -> Xid {
    Xid { code, name, meaning, action, affects: Affects::Device, origin }
}

/// A code of one process's work: of its channel, engine or context.
const fn app(
    code: u16,
    name: &'static str,
    meaning: &'static str,
    action: Action,
    origin: Origin,
) -> Xid {
    Xid { affects: Affects::Process, ..xid(code, name, meaning, action, origin) }
}

/// Every code in use, ascending.
#[rustfmt::skip]
pub static XIDS: &[Xid] = &[
    app(8, "ROBUST_CHANNEL_FIFO_ERROR_IDLE_TIMEOUT", "the GPU stopped processing a channel", Action::RestartApp, Origin::Catalog),
    app(11, "ROBUST_CHANNEL_GR_ERROR_MISSING_HW", "invalid or corrupted command stream", Action::RestartApp, Origin::Catalog),
    app(13, "ROBUST_CHANNEL_GR_EXCEPTION", "graphics engine exception, mostly an out-of-bounds access of the program", Action::CheckApp, Origin::Catalog),
    app(14, "ROBUST_CHANNEL_FAKE_ERROR", "an error injected from user space", Action::Nothing, Origin::Catalog),
    app(19, "ROBUST_CHANNEL_DISP_MISSED_NOTIFIER", "display engine error", Action::RestartApp, Origin::Header),
    app(25, "ROBUST_CHANNEL_GR_ILLEGAL_NOTIFY", "invalid or illegal command stream", Action::RestartApp, Origin::Catalog),
    app(27, "ROBUST_CHANNEL_VP_ERROR", "video engine error", Action::RestartApp, Origin::Header),
    app(28, "ROBUST_CHANNEL_VP2_ERROR", "video engine error", Action::RestartApp, Origin::Header),
    app(29, "ROBUST_CHANNEL_BSP_ERROR", "video engine error", Action::RestartApp, Origin::Header),
    app(30, "ROBUST_CHANNEL_BAD_ADDR_ACCESS", "access violation", Action::CheckApp, Origin::Header),
    app(31, "ROBUST_CHANNEL_FIFO_ERROR_MMU_ERR_FLT", "GPU memory page fault, mostly an illegal address of the program", Action::CheckApp, Origin::Catalog),
    app(32, "ROBUST_CHANNEL_PBDMA_ERROR", "invalid or corrupted command stream, mostly for want of PCIe signal quality", Action::RestartApp, Origin::Catalog),
    app(33, "ROBUST_CHANNEL_SEC_ERROR", "security engine error", Action::RestartApp, Origin::Header),
    app(34, "ROBUST_CHANNEL_MSVLD_ERROR", "video engine error", Action::RestartApp, Origin::Header),
    app(35, "ROBUST_CHANNEL_MSPDEC_ERROR", "video engine error", Action::RestartApp, Origin::Header),
    app(36, "ROBUST_CHANNEL_MSPPP_ERROR", "video engine error", Action::RestartApp, Origin::Header),
    app(37, "ROBUST_CHANNEL_FECS_ERR_UNIMP_FIRMWARE_METHOD", "error of the driver's firmware", Action::Nothing, Origin::Catalog),
    app(38, "ROBUST_CHANNEL_FECS_ERR_WATCHDOG_TIMEOUT", "error of the driver's firmware", Action::Nothing, Origin::Catalog),
    app(39, "ROBUST_CHANNEL_CE0_ERROR", "copy engine 0 exception", Action::RestartApp, Origin::Catalog),
    app(40, "ROBUST_CHANNEL_CE1_ERROR", "copy engine 1 exception", Action::RestartApp, Origin::Catalog),
    app(41, "ROBUST_CHANNEL_CE2_ERROR", "copy engine 2 exception", Action::RestartApp, Origin::Catalog),
    app(42, "ROBUST_CHANNEL_VIC_ERROR", "video image compositor error", Action::RestartApp, Origin::Header),
    app(43, "ROBUST_CHANNEL_RESETCHANNEL_VERIF_ERROR", "a program hit a fault of its own and must end; the GPU is healthy", Action::CheckApp, Origin::Catalog),
    app(44, "ROBUST_CHANNEL_GR_FAULT_DURING_CTXSW", "graphics engine fault during a context switch", Action::Nothing, Origin::Catalog),
    app(45, "ROBUST_CHANNEL_PREEMPTIVE_REMOVAL", "a program's channels were taken down, because it ended or after another error", Action::SeeOther, Origin::Catalog),
    xid(46, "ROBUST_CHANNEL_GPU_TIMEOUT_ERROR", "the GPU stopped processing", Action::ResetGpu, Origin::Catalog),
    app(47, "ROBUST_CHANNEL_NVENC0_ERROR", "video encoder 0 error", Action::RestartApp, Origin::Header),
    xid(48, "ROBUST_CHANNEL_GPU_ECC_DBE", "uncorrectable (double bit) ECC error", Action::ResetEcc, Origin::Catalog),
    xid(54, "SILENT_RUNNING_PWR_REDUCED_CLOCKING", "auxiliary power is not connected to the board", Action::CheckCables, Origin::Catalog),
    xid(59, "PMU_ERROR", "internal micro-controller error", Action::Support, Origin::Header),
    app(60, "ROBUST_CHANNEL_SEC2_ERROR", "security or video processor exception", Action::RestartApp, Origin::Catalog),
    xid(61, "PMU_BREAKPOINT", "internal micro-controller breakpoint", Action::Support, Origin::Header),
    xid(62, "PMU_HALT_ERROR", "internal micro-controller halt", Action::ResetGpu, Origin::Catalog),
    xid(63, "INFOROM_DRAM_RETIREMENT_EVENT", "a row of memory was remapped, or a page retired", Action::Nothing, Origin::Catalog),
    xid(64, "INFOROM_DRAM_RETIREMENT_FAILURE", "a row of memory could not be remapped, or a page not retired", Action::ResetGpu, Origin::Catalog),
    app(65, "ROBUST_CHANNEL_NVENC1_ERROR", "video encoder 1 error", Action::RestartApp, Origin::Header),
    app(66, "ROBUST_CHANNEL_FECS_ERR_REG_ACCESS_VIOLATION", "illegal access by the driver", Action::Nothing, Origin::Catalog),
    app(67, "ROBUST_CHANNEL_FECS_ERR_VERIF_VIOLATION", "illegal access by the driver", Action::Nothing, Origin::Catalog),
    app(68, "ROBUST_CHANNEL_NVDEC0_ERROR", "video decoder 0 exception", Action::RestartApp, Origin::Catalog),
    app(69, "ROBUST_CHANNEL_GR_CLASS_ERROR", "graphics engine class error", Action::RestartApp, Origin::Catalog),
    app(70, "ROBUST_CHANNEL_CE3_ERROR", "copy engine 3 error", Action::RestartApp, Origin::Catalog),
    app(71, "ROBUST_CHANNEL_CE4_ERROR", "copy engine 4 error", Action::RestartApp, Origin::Catalog),
    app(72, "ROBUST_CHANNEL_CE5_ERROR", "copy engine 5 error", Action::RestartApp, Origin::Catalog),
    app(73, "ROBUST_CHANNEL_NVENC2_ERROR", "video encoder 2 error", Action::RestartApp, Origin::Header),
    xid(74, "NVLINK_ERROR", "NVLink error: of this GPU, of the link, or of what is at its other end", Action::CheckLink, Origin::Catalog),
    app(75, "ROBUST_CHANNEL_CE6_ERROR", "copy engine 6 error", Action::RestartApp, Origin::Catalog),
    app(76, "ROBUST_CHANNEL_CE7_ERROR", "copy engine 7 error", Action::RestartApp, Origin::Catalog),
    app(77, "ROBUST_CHANNEL_CE8_ERROR", "copy engine 8 error", Action::RestartApp, Origin::Catalog),
    xid(78, "VGPU_START_ERROR", "a vGPU could not be started", Action::Update, Origin::Catalog),
    xid(79, "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS", "the GPU has fallen off the bus: it is not reachable over PCIe", Action::RestartNode, Origin::Catalog),
    app(80, "PBDMA_PUSHBUFFER_CRC_MISMATCH", "corrupted data was sent to the GPU", Action::RestartApp, Origin::Catalog),
    xid(81, "ROBUST_CHANNEL_VGA_SUBSYSTEM_ERROR", "VGA subsystem error", Action::Support, Origin::Header),
    app(82, "ROBUST_CHANNEL_NVJPG0_ERROR", "JPEG engine 0 error", Action::RestartApp, Origin::Catalog),
    app(83, "ROBUST_CHANNEL_NVDEC1_ERROR", "video decoder 1 error", Action::RestartApp, Origin::Catalog),
    app(84, "ROBUST_CHANNEL_NVDEC2_ERROR", "video decoder 2 error", Action::RestartApp, Origin::Catalog),
    app(85, "ROBUST_CHANNEL_CE9_ERROR", "copy engine 9 error", Action::RestartApp, Origin::Catalog),
    app(86, "ROBUST_CHANNEL_OFA0_ERROR", "optical flow engine exception", Action::RestartApp, Origin::Catalog),
    xid(87, "NVTELEMETRY_DRIVER_REPORT", "report of the driver's telemetry", Action::Nothing, Origin::Header),
    app(88, "ROBUST_CHANNEL_NVDEC3_ERROR", "video decoder 3 error", Action::RestartApp, Origin::Catalog),
    app(89, "ROBUST_CHANNEL_NVDEC4_ERROR", "video decoder 4 error", Action::RestartApp, Origin::Catalog),
    xid(90, "LTC_ERROR", "error of the level-2 cache or memory interface", Action::Support, Origin::Header),
    xid(92, "EXCESSIVE_SBE_INTERRUPTS", "high rate of corrected (single bit) ECC errors", Action::Watch, Origin::Catalog),
    xid(93, "INFOROM_ERASE_LIMIT_EXCEEDED", "InfoROM wear limit reached", Action::Nothing, Origin::Catalog),
    app(94, "ROBUST_CHANNEL_CONTAINED_ERROR", "memory error contained to one program; others are not affected", Action::RestartApp, Origin::Catalog),
    xid(95, "ROBUST_CHANNEL_UNCONTAINED_ERROR", "memory error that may have reached several programs", Action::ResetGpu, Origin::Catalog),
    app(96, "ROBUST_CHANNEL_NVDEC5_ERROR", "video decoder 5 error", Action::RestartApp, Origin::Catalog),
    app(97, "ROBUST_CHANNEL_NVDEC6_ERROR", "video decoder 6 error", Action::RestartApp, Origin::Catalog),
    app(98, "ROBUST_CHANNEL_NVDEC7_ERROR", "video decoder 7 error", Action::RestartApp, Origin::Catalog),
    app(99, "ROBUST_CHANNEL_NVJPG1_ERROR", "JPEG engine 1 error", Action::RestartApp, Origin::Catalog),
    app(100, "ROBUST_CHANNEL_NVJPG2_ERROR", "JPEG engine 2 error", Action::RestartApp, Origin::Catalog),
    app(101, "ROBUST_CHANNEL_NVJPG3_ERROR", "JPEG engine 3 error", Action::RestartApp, Origin::Catalog),
    app(102, "ROBUST_CHANNEL_NVJPG4_ERROR", "JPEG engine 4 error", Action::RestartApp, Origin::Catalog),
    app(103, "ROBUST_CHANNEL_NVJPG5_ERROR", "JPEG engine 5 error", Action::RestartApp, Origin::Catalog),
    app(104, "ROBUST_CHANNEL_NVJPG6_ERROR", "JPEG engine 6 error", Action::RestartApp, Origin::Catalog),
    app(105, "ROBUST_CHANNEL_NVJPG7_ERROR", "JPEG engine 7 error", Action::RestartApp, Origin::Catalog),
    xid(106, "SMBPBI_TEST_MESSAGE", "test message of the management bus", Action::Nothing, Origin::Catalog),
    xid(107, "SMBPBI_TEST_MESSAGE_SILENT", "silent test message of the management bus", Action::Nothing, Origin::Catalog),
    app(108, "NVLINK_REMOTE_TRANSLATION_ERROR", "a translation failed at the other end of an NVLink, mostly for an illegal access over it", Action::Nothing, Origin::Catalog),
    xid(109, "ROBUST_CHANNEL_CTXSW_TIMEOUT_ERROR", "context switch timed out", Action::ResetGpu, Origin::Catalog),
    xid(110, "SEC_FAULT_ERROR", "security fault, mostly failing hardware", Action::ResetGpu, Origin::Catalog),
    xid(119, "GSP_RPC_TIMEOUT", "the GPU's system processor (GSP) did not answer in time", Action::ResetGpu, Origin::Catalog),
    xid(120, "GSP_ERROR", "error in the firmware of the GPU's system processor (GSP)", Action::ResetGpu, Origin::Catalog),
    xid(121, "C2C_ERROR", "corrected errors on the chip-to-chip link to the CPU", Action::Watch, Origin::Catalog),
    xid(122, "SPI_PMU_RPC_READ_FAIL", "the board's flash could not be read", Action::Support, Origin::Header),
    xid(123, "SPI_PMU_RPC_WRITE_FAIL", "the board's flash could not be written", Action::Support, Origin::Header),
    xid(124, "SPI_PMU_RPC_ERASE_FAIL", "the board's flash could not be erased", Action::Support, Origin::Header),
    xid(125, "INFOROM_FS_ERROR", "the InfoROM's file system is damaged", Action::Support, Origin::Header),
    app(126, "ROBUST_CHANNEL_CE10_ERROR", "copy engine 10 error", Action::RestartApp, Origin::Catalog),
    app(127, "ROBUST_CHANNEL_CE11_ERROR", "copy engine 11 error", Action::RestartApp, Origin::Catalog),
    app(128, "ROBUST_CHANNEL_CE12_ERROR", "copy engine 12 error", Action::RestartApp, Origin::Catalog),
    app(129, "ROBUST_CHANNEL_CE13_ERROR", "copy engine 13 error", Action::RestartApp, Origin::Catalog),
    app(130, "ROBUST_CHANNEL_CE14_ERROR", "copy engine 14 error", Action::RestartApp, Origin::Catalog),
    app(131, "ROBUST_CHANNEL_CE15_ERROR", "copy engine 15 error", Action::RestartApp, Origin::Catalog),
    app(132, "ROBUST_CHANNEL_CE16_ERROR", "copy engine 16 error", Action::RestartApp, Origin::Catalog),
    app(133, "ROBUST_CHANNEL_CE17_ERROR", "copy engine 17 error", Action::RestartApp, Origin::Catalog),
    app(134, "ROBUST_CHANNEL_CE18_ERROR", "copy engine 18 error", Action::RestartApp, Origin::Catalog),
    app(135, "ROBUST_CHANNEL_CE19_ERROR", "copy engine 19 error", Action::RestartApp, Origin::Catalog),
    xid(136, "ALI_TRAINING_FAIL", "NVLink training failed", Action::ResetGpu, Origin::Catalog),
    app(137, "NVLINK_PRIV_ERR", "illegal access over NVLink, mostly of the program", Action::CheckApp, Origin::Catalog),
    app(139, "ROBUST_CHANNEL_OFA1_ERROR", "optical flow engine 1 error", Action::RestartApp, Origin::Catalog),
    xid(140, "UNRECOVERABLE_ECC_ERROR_ESCAPE", "uncorrectable ECC error that could not be repaired", Action::ResetGpu, Origin::Catalog),
    app(141, "ROBUST_CHANNEL_FAST_PATH_ERROR", "CUDA fast path error", Action::Nothing, Origin::Catalog),
    app(142, "ROBUST_CHANNEL_NVENC3_ERROR", "video encoder 3 error", Action::Support, Origin::Catalog),
    xid(143, "GPU_INIT_ERROR", "the GPU could not be initialised", Action::ResetGpu, Origin::Catalog),
    xid(144, "NVLINK_SAW_ERROR", "NVLink: SAW error", Action::FollowRecovery, Origin::Catalog),
    xid(145, "NVLINK_RLW_ERROR", "NVLink: RLW error", Action::FollowRecovery, Origin::Catalog),
    xid(146, "NVLINK_TLW_ERROR", "NVLink: TLW error", Action::FollowRecovery, Origin::Catalog),
    xid(147, "NVLINK_TREX_ERROR", "NVLink: TREX error", Action::FollowRecovery, Origin::Catalog),
    xid(148, "NVLINK_NVLPW_CTRL_ERROR", "NVLink: NVLPW_CTRL error", Action::FollowRecovery, Origin::Catalog),
    xid(149, "NVLINK_NETIR_ERROR", "NVLink: NETIR error", Action::FollowRecovery, Origin::Catalog),
    xid(150, "NVLINK_MSE_ERROR", "NVLink: MSE error", Action::FollowRecovery, Origin::Catalog),
    xid(151, "ROBUST_CHANNEL_KEY_ROTATION_ERROR", "key rotation error (confidential computing)", Action::RestartVm, Origin::Catalog),
    app(152, "ROBUST_CHANNEL_DLA_SMMU_ERROR", "DLA memory management error", Action::Nothing, Origin::Catalog),
    app(153, "ROBUST_CHANNEL_DLA_TIMEOUT", "DLA timed out", Action::Nothing, Origin::Catalog),
    xid(154, "GPU_RECOVERY_ACTION_CHANGED", "what the GPU needs to recover has changed; the text says to what", Action::FollowText, Origin::Catalog),
    xid(155, "NVLINK_SW_DEFINED_ERROR", "NVLink: link down or another software-defined error", Action::ResetGpu, Origin::Catalog),
    xid(156, "RESOURCE_RETIREMENT_EVENT", "a part of the GPU was retired", Action::ResetGpu, Origin::Catalog),
    xid(157, "RESOURCE_RETIREMENT_FAILURE", "a part of the GPU could not be retired, for want of spares", Action::Watch, Origin::Catalog),
    xid(158, "GPU_FATAL_TIMEOUT", "fatal time-out of the GPU", Action::ResetGpu, Origin::Catalog),
    xid(159, "ROBUST_CHANNEL_CHI_NON_DATA_ERROR", "error on the chip-to-chip link without data", Action::SeeOther, Origin::Catalog),
    xid(160, "CHANNEL_RETIREMENT_EVENT", "a memory channel was retired", Action::Nothing, Origin::Catalog),
    xid(161, "CHANNEL_RETIREMENT_FAILURE", "a memory channel could not be retired", Action::Watch, Origin::Catalog),
    xid(162, "PSHC_REENGAGED", "power smoothing hardware is on again", Action::Nothing, Origin::Catalog),
    xid(163, "PSHC_DISENGAGED", "power smoothing hardware is off, for its temperature or a time-out", Action::Watch, Origin::Catalog),
    xid(164, "PSHC_LOW_LIFETIME", "power smoothing hardware is near the end of its life", Action::Watch, Origin::Catalog),
    xid(165, "PSHC_ZERO_LIFETIME", "power smoothing hardware is at the end of its life", Action::Watch, Origin::Catalog),
    xid(166, "NVLINK_SECURE_CRYPTO_ERR", "NVLink traffic before encryption was set up (confidential computing)", Action::Support, Origin::Catalog),
    xid(167, "PCIE_FATAL_TIMEOUT", "fatal PCIe time-out", Action::Support, Origin::Catalog),
    xid(168, "REDUCED_GPU_MEMORY_CAPACITY", "errors in protected memory, with ECC off", Action::EnableEcc, Origin::Catalog),
    xid(169, "SEC2_HALT_ERROR", "internal micro-controller halt", Action::Support, Origin::Catalog),
    xid(170, "NVLINK_SECURE_OTHER", "unexpected NVLink interrupt (confidential computing)", Action::Support, Origin::Catalog),
    xid(171, "UNCORRECTABLE_DRAM_ERROR", "the error of an XID 48 was in DRAM", Action::SeeOther, Origin::Catalog),
    xid(172, "UNCORRECTABLE_SRAM_ERROR", "the error of an XID 48 was in SRAM", Action::SeeOther, Origin::Catalog),
];

/// The row of a code; `None` for one that is in no row.
pub fn find(code: u32) -> Option<&'static Xid> {
    let code = u16::try_from(code).ok()?;
    let at = XIDS.binary_search_by_key(&code, |row| row.code).ok()?;
    XIDS.get(at)
}

/// All that is known of an XID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict<'a> {
    /// The row of its code.
    pub row: Option<&'static Xid>,
    /// What to do.
    pub action: Action,
    /// The work that it affects.
    pub affects: Affects,
    /// The NVLink unit that its text names.
    pub unit: Option<&'a str>,
    /// The unit's status, a hexadecimal number.
    pub status: Option<&'a str>,
}

/// What an XID means by its code and, where the kernel log has it, its line.
pub fn verdict(code: u32, line: &str) -> Verdict<'_> {
    let row = find(code);
    let detail = match code {
        144..=150 => text::nvlink(line),
        154 => text::recovery(line),
        _ => None,
    };
    let (action, affects) =
        row.map_or((Action::LookUp, Affects::Device), |row| (row.action, row.affects));
    detail.map_or(Verdict { row, action, affects, unit: None, status: None }, |detail| Verdict {
        row,
        action: detail.action,
        affects: detail.affects,
        unit: detail.unit,
        status: detail.status,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_found_by_its_code_and_has_a_meaning() {
        assert!(XIDS.is_sorted_by_key(|row| row.code), "the search needs ascending codes");
        for row in XIDS {
            assert_eq!(find(u32::from(row.code)), Some(row));
            assert!(row.name.len() > 3 && row.meaning.len() > 10, "{row:?}");
            assert!(
                !row.meaning.ends_with('.') && !row.action.sentence().ends_with('.'),
                "{row:?}"
            );
        }
    }

    #[test]
    fn a_code_of_a_later_driver_is_unknown() {
        assert_eq!(find(999), None);
        assert_eq!(find(65_536 + 79), None);
    }

    #[test]
    fn what_ends_a_gpu_is_critical_and_what_a_program_does_is_not() {
        let severity = |code| find(code).map(|row| row.action.severity());
        for code in [48, 64, 74, 79, 95, 119, 120, 140, 143] {
            assert_eq!(severity(code), Some(Severity::Critical), "{code}");
        }
        for code in [13, 31, 43, 45, 94] {
            assert_eq!(severity(code), Some(Severity::Warning), "{code}");
        }
        for code in [63, 106] {
            assert_eq!(severity(code), Some(Severity::Info), "{code}");
        }
    }

    #[test]
    fn what_ends_a_gpu_affects_all_of_it_and_what_a_program_does_only_that_program() {
        let affects = |code| verdict(code, "").affects;
        for code in [48, 62, 74, 79, 95, 119, 120, 140, 143, 999] {
            assert_eq!(affects(code), Affects::Device, "{code}");
        }
        for code in [13, 31, 43, 45, 68, 69, 94] {
            assert_eq!(affects(code), Affects::Process, "{code}");
        }
        for row in XIDS.iter().filter(|row| row.affects == Affects::Process) {
            let wide = [Action::ResetGpu, Action::ResetEcc, Action::RestartNode, Action::CheckLink];
            assert!(!wide.contains(&row.action), "{row:?}");
        }
    }
}
