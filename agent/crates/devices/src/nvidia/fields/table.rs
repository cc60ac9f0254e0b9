//! The fields, with the numbers of the bindings' header.

use super::{ALL_LINKS, DEVICE, MODULE};
use crate::nvidia::caller::PollEvery;
use gpuwho_sys::nvml::fields::Number;
use nvml_wrapper_sys::bindings::field_id as nvml;

/// The unit of a raw value, with its factor to the catalogue's base unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// A count, a state, or bytes.
    Number,
    Celsius,
    Milliwatt,
    Millijoule,
    Nanosecond,
    MegabytePerSecond,
}

/// The properties of a field.
pub(super) struct FieldInfo {
    /// Its number before driver 580.82.
    pub(super) id: u32,
    pub(super) pace: PollEvery,
    pub(super) unit: Unit,
    /// The scopes in which it is always queried.
    pub(super) scopes: &'static [u32],
}

/// Declares the fields.
macro_rules! fields {
    ($($(#[doc = $doc:literal])+ $field:ident = $id:ident, $pace:ident, $unit:ident, of $scopes:expr;)+) => {
        /// A value of the batched call.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(in super::super) enum Field { $($(#[doc = $doc])+ $field,)+ }

        impl Field {
            /// Every field.
            pub(super) const ALL: &'static [Self] = &[$(Self::$field),+];

            /// Its properties.
            pub(super) fn info(self) -> FieldInfo {
                match self {
                    $(Self::$field => FieldInfo {
                        id: nvml::$id,
                        pace: PollEvery::$pace,
                        unit: Unit::$unit,
                        scopes: &$scopes,
                    },)+
                }
            }
        }
    };
}

fields! {
    /// Temperature of the memory stacks; 0 on boards without that sensor.
    MemoryTemperature = NVML_FI_DEV_MEMORY_TEMP, EveryTick, Celsius, of [DEVICE];
    /// Energy used since the driver was loaded.
    Energy = NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, EveryTick, Millijoule, of [DEVICE];
    /// Power, averaged over a second; Ampere (but GA100) and later.
    PowerAverage = NVML_FI_DEV_POWER_AVERAGE, EveryTick, Milliwatt, of [DEVICE];
    /// Power now.
    PowerInstant = NVML_FI_DEV_POWER_INSTANT, EveryTick, Milliwatt, of [DEVICE, MODULE];
    /// The lowest power limit that can be set.
    PowerLimitMinimum = NVML_FI_DEV_POWER_MIN_LIMIT, Slow, Milliwatt, of [DEVICE];
    /// The highest power limit that can be set.
    PowerLimitMaximum = NVML_FI_DEV_POWER_MAX_LIMIT, Slow, Milliwatt, of [DEVICE];
    /// The power limit at the start.
    PowerLimitDefault = NVML_FI_DEV_POWER_DEFAULT_LIMIT, Slow, Milliwatt, of [DEVICE];
    /// The power limit in force.
    PowerLimitEnforced = NVML_FI_DEV_POWER_CURRENT_LIMIT, Slow, Milliwatt, of [DEVICE];
    /// The power limit that was asked for.
    PowerLimitRequested = NVML_FI_DEV_POWER_REQUESTED_LIMIT, Slow, Milliwatt, of [DEVICE];
    /// Time the clocks were limited by the power limit.
    HeldByPowerCap = NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP, EveryTick, Nanosecond, of [DEVICE];
    /// Time they were limited by another device of the sync-boost group.
    HeldBySyncBoost = NVML_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST, EveryTick, Nanosecond, of [DEVICE];
    /// Time they were limited by the board's limit.
    HeldByBoardLimit = NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT, EveryTick, Nanosecond, of [DEVICE];
    /// Time they were low because of low load.
    HeldByLowUtilization = NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION, EveryTick, Nanosecond, of [DEVICE];
    /// Time they were limited by voltage or reliability.
    HeldByReliability = NVML_FI_DEV_PERF_POLICY_RELIABILITY, EveryTick, Nanosecond, of [DEVICE];
    /// Time they were limited by software because of the temperature.
    HeldBySoftwareThermal = NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, EveryTick, Nanosecond, of [DEVICE];
    /// Time they were limited by hardware because of the temperature.
    HeldByHardwareThermal = NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, EveryTick, Nanosecond, of [DEVICE];
    /// Time they were limited by the external power brake.
    HeldByPowerBrake = NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN, EveryTick, Nanosecond, of [DEVICE];
    /// Time they were limited because of the temperature, by hardware or software.
    HeldByThermal = NVML_FI_DEV_PERF_POLICY_THERMAL, EveryTick, Nanosecond, of [DEVICE];
    /// Margin at which the device shuts down.
    MarginShutdown = NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT, Slow, Celsius, of [DEVICE];
    /// Margin at which hardware slows it down.
    MarginSlowdown = NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT, Slow, Celsius, of [DEVICE];
    /// Margin at which software slows it down for the memory's temperature.
    MarginMemory = NVML_FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT, Slow, Celsius, of [DEVICE];
    /// Margin at which it falls below its base clock.
    MarginOperating = NVML_FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT, Slow, Celsius, of [DEVICE];
    /// Whether ECC is on.
    EccEnabled = NVML_FI_DEV_ECC_CURRENT, Slow, Number, of [DEVICE];
    /// Whether it will be after the next reset.
    EccEnabledNext = NVML_FI_DEV_ECC_PENDING, Slow, Number, of [DEVICE];
    /// Corrected errors in all memories, since the driver was loaded.
    VolatileCorrectedAll = NVML_FI_DEV_ECC_SBE_VOL_TOTAL, EveryTick, Number, of [DEVICE];
    /// Uncorrected errors in all memories, since the driver was loaded.
    VolatileUncorrectedAll = NVML_FI_DEV_ECC_DBE_VOL_TOTAL, EveryTick, Number, of [DEVICE];
    /// Corrected errors in the L1 cache, since the driver was loaded.
    VolatileCorrectedL1 = NVML_FI_DEV_ECC_SBE_VOL_L1, EveryTick, Number, of [DEVICE];
    /// Uncorrected errors in the L1 cache, since the driver was loaded.
    VolatileUncorrectedL1 = NVML_FI_DEV_ECC_DBE_VOL_L1, EveryTick, Number, of [DEVICE];
    /// Corrected errors in the L2 cache, since the driver was loaded.
    VolatileCorrectedL2 = NVML_FI_DEV_ECC_SBE_VOL_L2, EveryTick, Number, of [DEVICE];
    /// Uncorrected errors in the L2 cache, since the driver was loaded.
    VolatileUncorrectedL2 = NVML_FI_DEV_ECC_DBE_VOL_L2, EveryTick, Number, of [DEVICE];
    /// Corrected errors in the device memory, since the driver was loaded.
    VolatileCorrectedDram = NVML_FI_DEV_ECC_SBE_VOL_DEV, EveryTick, Number, of [DEVICE];
    /// Uncorrected errors in the device memory, since the driver was loaded.
    VolatileUncorrectedDram = NVML_FI_DEV_ECC_DBE_VOL_DEV, EveryTick, Number, of [DEVICE];
    /// Corrected errors in the register file, since the driver was loaded.
    VolatileCorrectedRegisters = NVML_FI_DEV_ECC_SBE_VOL_REG, EveryTick, Number, of [DEVICE];
    /// Uncorrected errors in the register file, since the driver was loaded.
    VolatileUncorrectedRegisters = NVML_FI_DEV_ECC_DBE_VOL_REG, EveryTick, Number, of [DEVICE];
    /// Corrected errors in texture memory, since the driver was loaded.
    VolatileCorrectedTexture = NVML_FI_DEV_ECC_SBE_VOL_TEX, EveryTick, Number, of [DEVICE];
    /// Uncorrected errors in texture memory, since the driver was loaded.
    VolatileUncorrectedTexture = NVML_FI_DEV_ECC_DBE_VOL_TEX, EveryTick, Number, of [DEVICE];
    /// Uncorrected errors in the convergence barrier unit, since the driver was loaded.
    VolatileUncorrectedBarrier = NVML_FI_DEV_ECC_DBE_VOL_CBU, EveryTick, Number, of [DEVICE];
    /// Corrected errors in all memories, since the board was made.
    AggregateCorrectedAll = NVML_FI_DEV_ECC_SBE_AGG_TOTAL, EveryTick, Number, of [DEVICE];
    /// Uncorrected errors in all memories, since the board was made.
    AggregateUncorrectedAll = NVML_FI_DEV_ECC_DBE_AGG_TOTAL, EveryTick, Number, of [DEVICE];
    /// Corrected errors in the L1 cache, since the board was made.
    AggregateCorrectedL1 = NVML_FI_DEV_ECC_SBE_AGG_L1, EveryTick, Number, of [DEVICE];
    /// Uncorrected errors in the L1 cache, since the board was made.
    AggregateUncorrectedL1 = NVML_FI_DEV_ECC_DBE_AGG_L1, EveryTick, Number, of [DEVICE];
    /// Corrected errors in the L2 cache, since the board was made.
    AggregateCorrectedL2 = NVML_FI_DEV_ECC_SBE_AGG_L2, EveryTick, Number, of [DEVICE];
    /// Uncorrected errors in the L2 cache, since the board was made.
    AggregateUncorrectedL2 = NVML_FI_DEV_ECC_DBE_AGG_L2, EveryTick, Number, of [DEVICE];
    /// Corrected errors in the device memory, since the board was made.
    AggregateCorrectedDram = NVML_FI_DEV_ECC_SBE_AGG_DEV, EveryTick, Number, of [DEVICE];
    /// Uncorrected errors in the device memory, since the board was made.
    AggregateUncorrectedDram = NVML_FI_DEV_ECC_DBE_AGG_DEV, EveryTick, Number, of [DEVICE];
    /// Corrected errors in the register file, since the board was made.
    AggregateCorrectedRegisters = NVML_FI_DEV_ECC_SBE_AGG_REG, EveryTick, Number, of [DEVICE];
    /// Uncorrected errors in the register file, since the board was made.
    AggregateUncorrectedRegisters = NVML_FI_DEV_ECC_DBE_AGG_REG, EveryTick, Number, of [DEVICE];
    /// Corrected errors in texture memory, since the board was made.
    AggregateCorrectedTexture = NVML_FI_DEV_ECC_SBE_AGG_TEX, EveryTick, Number, of [DEVICE];
    /// Uncorrected errors in texture memory, since the board was made.
    AggregateUncorrectedTexture = NVML_FI_DEV_ECC_DBE_AGG_TEX, EveryTick, Number, of [DEVICE];
    /// Uncorrected errors in the convergence barrier unit, since the board was made.
    AggregateUncorrectedBarrier = NVML_FI_DEV_ECC_DBE_AGG_CBU, EveryTick, Number, of [DEVICE];
    /// Pages retired for corrected errors.
    RetiredCorrected = NVML_FI_DEV_RETIRED_SBE, Medium, Number, of [DEVICE];
    /// Pages retired for an uncorrected error.
    RetiredUncorrected = NVML_FI_DEV_RETIRED_DBE, Medium, Number, of [DEVICE];
    /// Whether pages wait for a reset.
    RetirementPending = NVML_FI_DEV_RETIRED_PENDING, Medium, Number, of [DEVICE];
    /// PCIe packets sent again.
    PcieReplays = NVML_FI_DEV_PCIE_REPLAY_COUNTER, EveryTick, Number, of [DEVICE];
    /// PCIe replay rollovers: packets sent again so often that the link was retrained.
    PcieRollovers = NVML_FI_DEV_PCIE_REPLAY_ROLLOVER_COUNTER, Medium, Number, of [DEVICE];
    /// Recoveries of the PCIe link.
    PcieRecoveries = NVML_FI_DEV_PCIE_L0_TO_RECOVERY_COUNTER, Medium, Number, of [DEVICE];
    /// Corrected PCIe errors.
    PcieCorrectable = NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS, Medium, Number, of [DEVICE];
    /// PCIe packets the other side refused.
    PcieNaksReceived = NVML_FI_DEV_PCIE_COUNT_NAKS_RECEIVED, Medium, Number, of [DEVICE];
    /// Errors of the PCIe receiver.
    PcieReceiverErrors = NVML_FI_DEV_PCIE_COUNT_RECEIVER_ERROR, Medium, Number, of [DEVICE];
    /// Damaged PCIe transaction packets.
    PcieBadTlps = NVML_FI_DEV_PCIE_COUNT_BAD_TLP, Medium, Number, of [DEVICE];
    /// PCIe packets the device refused.
    PcieNaksSent = NVML_FI_DEV_PCIE_COUNT_NAKS_SENT, Medium, Number, of [DEVICE];
    /// Damaged PCIe link packets.
    PcieBadDllps = NVML_FI_DEV_PCIE_COUNT_BAD_DLLP, Medium, Number, of [DEVICE];
    /// PCIe errors that lost a transaction.
    PcieNonFatal = NVML_FI_DEV_PCIE_COUNT_NON_FATAL_ERROR, Medium, Number, of [DEVICE];
    /// PCIe errors that lost the link.
    PcieFatal = NVML_FI_DEV_PCIE_COUNT_FATAL_ERROR, Medium, Number, of [DEVICE];
    /// PCIe requests that the device does not know.
    PcieUnsupportedRequests = NVML_FI_DEV_PCIE_COUNT_UNSUPPORTED_REQ, Medium, Number, of [DEVICE];
    /// PCIe packets with a wrong checksum.
    PcieLcrc = NVML_FI_DEV_PCIE_COUNT_LCRC_ERROR, Medium, Number, of [DEVICE];
    /// Errors of a PCIe lane.
    PcieLaneErrors = NVML_FI_DEV_PCIE_COUNT_LANE_ERROR, Medium, Number, of [DEVICE];
    /// Bytes sent over PCIe.
    PcieSent = NVML_FI_DEV_PCIE_COUNT_TX_BYTES, EveryTick, Number, of [DEVICE];
    /// Bytes received over PCIe.
    PcieReceived = NVML_FI_DEV_PCIE_COUNT_RX_BYTES, EveryTick, Number, of [DEVICE];
    /// Rows remapped for corrected errors.
    RemappedCorrected = NVML_FI_DEV_REMAPPED_COR, EveryTick, Number, of [DEVICE];
    /// Rows remapped for uncorrected errors.
    RemappedUncorrected = NVML_FI_DEV_REMAPPED_UNC, EveryTick, Number, of [DEVICE];
    /// Whether rows wait for a reset.
    RemapPending = NVML_FI_DEV_REMAPPED_PENDING, EveryTick, Number, of [DEVICE];
    /// Whether a row could not be remapped.
    RemapFailure = NVML_FI_DEV_REMAPPED_FAILURE, EveryTick, Number, of [DEVICE];
    /// The recovery action that the driver recommends.
    RecoveryAction = NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, EveryTick, Number, of [DEVICE];
    /// How many NVLinks there are.
    NvLinks = NVML_FI_DEV_NVLINK_LINK_COUNT, Once, Number, of [DEVICE];
    /// KiB of payload sent, by link or by all.
    NvLinkSent = NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, EveryTick, Number, of [ALL_LINKS];
    /// KiB of payload received, by link or by all.
    NvLinkReceived = NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, EveryTick, Number, of [ALL_LINKS];
    /// KiB sent including protocol overhead, by all links.
    NvLinkRawSent = NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_TX, EveryTick, Number, of [ALL_LINKS];
    /// KiB received including protocol overhead, by all links.
    NvLinkRawReceived = NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_RX, EveryTick, Number, of [ALL_LINKS];
    /// Flow control digits with a wrong checksum, all links.
    NvLinkFlits = NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, EveryTick, Number, of [DEVICE];
    /// Data with a wrong checksum, all links.
    NvLinkData = NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, EveryTick, Number, of [DEVICE];
    /// Data with a wrong ECC, all links.
    NvLinkEcc = NVML_FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_TOTAL, EveryTick, Number, of [DEVICE];
    /// Sent again, all links.
    NvLinkReplays = NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, EveryTick, Number, of [DEVICE];
    /// Recoveries, all links.
    NvLinkRecoveries = NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, EveryTick, Number, of [DEVICE];
    /// State of a link.
    LinkState = NVML_FI_DEV_NVLINK_GET_STATE, Medium, Number, of [];
    /// KiB of payload a link sent.
    LinkSent = NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, Medium, Number, of [];
    /// KiB of payload a link received.
    LinkReceived = NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, Medium, Number, of [];
    /// Bytes a link sent, by another counter of the fifth generation.
    LinkSentBytes = NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES, Medium, Number, of [];
    /// Bytes a link received, by another counter of the fifth generation.
    LinkReceivedBytes = NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES, Medium, Number, of [];
    /// Sent again on a link.
    LinkReplays = NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, Medium, Number, of [];
    /// Recoveries of a link.
    LinkRecoveries = NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY, Medium, Number, of [];
    /// Wrong checksums on a link.
    LinkCrc = NVML_FI_DEV_NVLINK_ERROR_DL_CRC, Medium, Number, of [];
    /// Malformed packets a link received.
    LinkMalformed = NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS, Medium, Number, of [];
    /// Packets a link had no buffer for.
    LinkOverruns = NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS, Medium, Number, of [];
    /// Packets a link received with an error.
    LinkReceiveErrors = NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS, Medium, Number, of [];
    /// Packets a link received that the other end had marked as bad.
    LinkRemoteErrors = NVML_FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS, Medium, Number, of [];
    /// Packets a link received with a header that does not fit.
    LinkGeneralErrors = NVML_FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS, Medium, Number, of [];
    /// Times that a link's local errors passed their threshold.
    LinkIntegrity = NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS, Medium, Number, of [];
    /// Packets a link did not send.
    LinkDiscards = NVML_FI_DEV_NVLINK_COUNT_XMIT_DISCARDS, Medium, Number, of [];
    /// Recoveries that brought a link back.
    LinkRecovered = NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS, Medium, Number, of [];
    /// Recoveries after which a link was down.
    LinkUnrecovered = NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS, Medium, Number, of [];
    /// Errors that a link's correction left over.
    LinkEffective = NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS, Medium, Number, of [];
    /// Wrong symbols a link received.
    LinkSymbols = NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS, Medium, Number, of [];
    /// A link's bit error rate after correction, packed.
    LinkEffectiveRate = NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_BER, Slow, Number, of [];
    /// A link's bit error rate of symbols, packed.
    LinkSymbolRate = NVML_FI_DEV_NVLINK_COUNT_SYMBOL_BER, Slow, Number, of [];
    /// Speed of a link.
    LinkSpeed = NVML_FI_DEV_NVLINK_GET_SPEED, Medium, MegabytePerSecond, of [];
    /// Version of a link.
    LinkVersion = NVML_FI_DEV_NVLINK_GET_VERSION, Once, Number, of [];
    /// Codewords of a link with no symbol corrected.
    LinkCorrected0 = NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_0, Slow, Number, of [];
    /// Codewords of a link with one symbol corrected.
    LinkCorrected1 = NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_1, Slow, Number, of [];
    /// Codewords of a link with 2 symbols corrected.
    LinkCorrected2 = NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_2, Slow, Number, of [];
    /// Codewords of a link with 3 symbols corrected.
    LinkCorrected3 = NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_3, Slow, Number, of [];
    /// Codewords of a link with 4 symbols corrected.
    LinkCorrected4 = NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_4, Slow, Number, of [];
    /// Codewords of a link with 5 symbols corrected.
    LinkCorrected5 = NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_5, Slow, Number, of [];
    /// Codewords of a link with 6 symbols corrected.
    LinkCorrected6 = NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_6, Slow, Number, of [];
    /// Codewords of a link with 7 symbols corrected.
    LinkCorrected7 = NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_7, Slow, Number, of [];
    /// Codewords of a link with 8 symbols corrected.
    LinkCorrected8 = NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_8, Slow, Number, of [];
    /// Codewords of a link with 9 symbols corrected.
    LinkCorrected9 = NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_9, Slow, Number, of [];
    /// Codewords of a link with 10 symbols corrected.
    LinkCorrected10 = NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_10, Slow, Number, of [];
    /// Codewords of a link with 11 symbols corrected.
    LinkCorrected11 = NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_11, Slow, Number, of [];
    /// Codewords of a link with 12 symbols corrected.
    LinkCorrected12 = NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_12, Slow, Number, of [];
    /// Codewords of a link with 13 symbols corrected.
    LinkCorrected13 = NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_13, Slow, Number, of [];
    /// Codewords of a link with 14 symbols corrected.
    LinkCorrected14 = NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_14, Slow, Number, of [];
    /// Codewords of a link with 15 symbols corrected.
    LinkCorrected15 = NVML_FI_DEV_NVLINK_COUNT_FEC_HISTORY_15, Slow, Number, of [];
    /// How many links to the CPU of the module there are.
    ChipLinks = NVML_FI_DEV_C2C_LINK_COUNT, Once, Number, of [DEVICE];
    /// Whether a link to the CPU is active.
    ChipLinkStatus = NVML_FI_DEV_C2C_LINK_GET_STATUS, Medium, Number, of [];
    /// Speed of a link to the CPU.
    ChipLinkSpeed = NVML_FI_DEV_C2C_LINK_GET_MAX_BW, Slow, MegabytePerSecond, of [];
    /// Wrong checksums on a link to the CPU.
    ChipLinkCrc = NVML_FI_DEV_C2C_LINK_ERROR_INTR, Medium, Number, of [];
    /// Sent again on a link to the CPU.
    ChipLinkReplays = NVML_FI_DEV_C2C_LINK_ERROR_REPLAY, Medium, Number, of [];
    /// Sent again twice in a row on a link to the CPU.
    ChipLinkDoubleReplays = NVML_FI_DEV_C2C_LINK_ERROR_REPLAY_B2B, Medium, Number, of [];
    /// Whether a link to the CPU saves power.
    ChipLinkPower = NVML_FI_DEV_C2C_LINK_POWER_STATE, Slow, Number, of [];
}

impl Unit {
    /// A value in the base unit.
    pub(super) fn base(self, value: Number) -> Option<f64> {
        let value = match value {
            // Margins are negative although the type is unsigned.
            Number::U32(value) if self == Self::Celsius => f64::from(value.cast_signed()),
            Number::U32(value) => f64::from(value),
            Number::U64(value) => value as f64,
            Number::I64(value) => value as f64,
            Number::F64(value) => value,
        };
        let base = match self {
            Self::Number | Self::Celsius => value,
            Self::Milliwatt | Self::Millijoule => value / 1e3,
            Self::Nanosecond => value / 1e9,
            Self::MegabytePerSecond => value * 1e6,
        };
        base.is_finite().then_some(base)
    }
}
