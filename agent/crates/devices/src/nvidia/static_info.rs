//! A board's identity, modes and fabric: about twenty calls once per handle, of which four are
//! repeated every thirtieth reading (modes and video sessions) and one every sixth (the fabric).
//! The InfoROM's flash memory is never read, only the checksum of its configuration, which the
//! driver has.

use super::cached::CachedReadings;
use super::caller::{Call, NvmlCaller, PollEvery};
use super::fields::{Field, Fields};
use super::links::Links;
use super::{Versions, fabric};
use crate::wire::WireValue;
use crate::wire::push;
use gpuwho_model::catalog::board::{
    self as metric, ComputeMode, Mode, Protection, RecoveryAction, Video,
};
use gpuwho_model::catalog::device::{CodeKind, UNKNOWN_CODE};
use gpuwho_owners::inventory::facts::{Fact, Facts};
use gpuwho_sys::nvml::board::{self as raw, Confidential};
use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{ComputeMode as NvmlComputeMode, InfoRom};
use nvml_wrapper::error::NvmlError;

/// Bytes of a KiB.
const KIB: u64 = 1024;
/// Divides microseconds.
const MICRO: f64 = 1e6;

/// State of one board between readings.
#[derive(Debug)]
pub(super) struct StaticInfo {
    /// A part of the identity could not be read; it is read again at the next reading.
    again: bool,
    /// Accounting is on.
    accounting: bool,
    /// The checksum of the InfoROM's configuration.
    checksum: Option<u32>,
    inforom: CachedReadings,
    modes: CachedReadings,
    video: CachedReadings,
    fabric: CachedReadings,
    fabric_facts: fabric::Joined,
    /// Whether its board is a part of a rack, once that had to be known.
    is_of_rack: Option<bool>,
}

impl Default for StaticInfo {
    fn default() -> Self {
        Self {
            again: true,
            accounting: false,
            checksum: None,
            inforom: CachedReadings::new(PollEvery::Once),
            modes: CachedReadings::new(PollEvery::Slow),
            video: CachedReadings::new(PollEvery::Medium),
            fabric: CachedReadings::new(PollEvery::Medium),
            fabric_facts: fabric::Joined::default(),
            is_of_rack: None,
        }
    }
}

/// A device with its readings that the facts come from.
#[derive(Clone, Copy)]
pub(super) struct Board<'a> {
    pub device: &'a Device<'a>,
    pub fields: &'a Fields,
    pub versions: &'a Versions,
}

impl StaticInfo {
    /// Reads the board's state; its fields are already read.
    pub(super) fn read(
        &mut self,
        board: Board<'_>,
        caller: &mut NvmlCaller,
        out: &mut Vec<WireValue>,
    ) {
        let Board { device, fields, versions } = board;
        recovery_action(fields, out);
        let checksum = &mut self.checksum;
        self.inforom.read(caller, out, |caller, out| *checksum = inforom(device, caller, out));
        let accounting = &mut self.accounting;
        self.modes.read(caller, out, |caller, out| {
            *accounting = modes(device, caller, out);
            confidential(device, versions, caller, out);
        });
        self.video.read(caller, out, |caller, out| video(device, caller, out));
        let (joined, is_of_rack) = (&mut self.fabric_facts, &mut self.is_of_rack);
        self.fabric.read(caller, out, |caller, out| {
            *joined = fabric::read(device, is_of_rack, caller, out);
        });
    }

    /// Whether the driver's accounting is on.
    pub(super) fn has_accounting(&self) -> bool {
        self.accounting
    }

    /// Updates the board's facts; true if any changed.
    pub(super) fn update(
        &mut self,
        board: Board<'_>,
        caller: &mut NvmlCaller,
        facts: &mut Facts,
    ) -> bool {
        let Board { device, fields, versions } = board;
        let mut changed = false;
        if self.again || caller.due(PollEvery::Once) {
            let failed = caller.cost().failed;
            changed |= identity(device, caller, facts);
            changed |= confidential_facts(versions.confidential, facts);
            self.again = caller.cost().failed != failed;
        }
        let checksum = self.checksum.map(|checksum| format!("{checksum:08x}"));
        changed |= facts.set(Fact::InforomChecksum, checksum);
        changed |= facts.set(Fact::NvLink, Links::version(fields).map(str::to_owned));
        changed |= facts.set(Fact::FabricCluster, self.fabric_facts.cluster.clone());
        changed |= facts.set(Fact::FabricClique, self.fabric_facts.clique.clone());
        changed
    }
}

fn identity(device: &Device<'_>, caller: &mut NvmlCaller, facts: &mut Facts) -> bool {
    // Some drivers return "N/A" for what a board does not have.
    let word = |reported: Option<String>| reported.filter(|text| !text.is_empty() && text != "N/A");
    let texts = [
        (Fact::Vbios, caller.call(Call::Vbios, || device.vbios_version())),
        (Fact::Part, caller.call(Call::BoardPart, || device.board_part_number())),
        (Fact::GspFirmware, caller.call(Call::GspVersion, || device.gsp_firmware_version())),
        (Fact::InforomImage, caller.call(Call::InforomImage, || device.info_rom_image_version())),
        (Fact::InforomOem, caller.call(Call::InforomOem, || device.info_rom_version(InfoRom::OEM))),
        (Fact::InforomEcc, caller.call(Call::InforomEcc, || device.info_rom_version(InfoRom::ECC))),
        (
            Fact::InforomPower,
            caller.call(Call::InforomPower, || device.info_rom_version(InfoRom::Power)),
        ),
        (Fact::Module, caller.call(Call::ModuleId, || raw::module_id(device)).map(decimal)),
        (
            Fact::Addressing,
            caller.call(Call::Addressing, || raw::addressing_mode(device)).and_then(addressing),
        ),
    ];
    let mut changed = false;
    for (fact, text) in texts {
        changed |= facts.set(fact, word(text));
    }
    let place = caller.call(Call::Platform, || raw::platform(device));
    changed | place.is_some_and(|place| platform(&place, facts))
}

fn platform(place: &raw::Platform, facts: &mut Facts) -> bool {
    let chassis = Some(place.chassis.clone()).filter(|serial| !serial.is_empty());
    let peer = match place.peer {
        0 => Some("direct".to_owned()),
        1 => Some("switch".to_owned()),
        _ => None,
    };
    let reported = [
        (Fact::Chassis, chassis),
        (Fact::Slot, Some(place.slot.to_string())),
        (Fact::Tray, Some(place.tray.to_string())),
        (Fact::Host, Some(place.host.to_string())),
        (Fact::Peer, peer),
    ];
    // No short circuit: each must be set.
    reported.into_iter().fold(false, |changed, (fact, text)| facts.set(fact, text) | changed)
}

fn confidential_facts(reported: Option<Confidential>, facts: &mut Facts) -> bool {
    let mode = reported.map(|reported| match (reported.on, reported.devtools) {
        (false, _) => "off",
        (true, false) => "on",
        (true, true) => "devtools",
    });
    let environment = reported.and_then(|reported| match reported.environment {
        0 => Some("unavailable"),
        1 => Some("simulation"),
        2 => Some("production"),
        _ => None,
    });
    facts.set(Fact::Confidential, mode.map(str::to_owned))
        | facts.set(Fact::ConfidentialEnvironment, environment.map(str::to_owned))
}

fn decimal(number: u32) -> String {
    number.to_string()
}

fn addressing(mode: u32) -> Option<String> {
    let words = ["none", "hmm", "ats"];
    words.get(usize::try_from(mode).ok()?).map(|word| (*word).to_owned())
}

fn recovery_action(fields: &Fields, out: &mut Vec<WireValue>) {
    let Some(reported) = fields.whole(Field::RecoveryAction) else { return };
    let place = usize::try_from(reported).ok();
    let named = place.and_then(|place| RecoveryAction::ALL.get(place)).copied();
    let named = named.filter(|action| *action != RecoveryAction::Other);
    let action = named.unwrap_or(RecoveryAction::Other);
    for each in RecoveryAction::ALL {
        push(out, &metric::RECOVERY_ACTION, *each, Some(i64::from(*each == action)));
    }
    let unknown = named.is_none().then_some(reported);
    push(out, &UNKNOWN_CODE, CodeKind::RecoveryAction, unknown);
}

/// Reads the checksum of the InfoROM's configuration; `None` if the InfoROM is corrupted.
fn inforom(device: &Device<'_>, caller: &mut NvmlCaller, out: &mut Vec<WireValue>) -> Option<u32> {
    let reported = caller.call(Call::InforomChecksum, || match device.config_checksum() {
        Ok(checksum) => Ok(Some(checksum)),
        Err(NvmlError::CorruptedInfoROM) => Ok(None),
        Err(error) => Err(error),
    })?;
    push(out, &metric::INFOROM_VALID, (), Some(i64::from(reported.is_some())));
    reported
}

/// Reads the modes; true if accounting is on.
fn modes(device: &Device<'_>, caller: &mut NvmlCaller, out: &mut Vec<WireValue>) -> bool {
    let persistence = caller.call(Call::PersistenceMode, || device.is_in_persistent_mode());
    let accounting = caller.call(Call::AccountingMode, || device.is_accounting_enabled());
    let firmware =
        caller.call(Call::GspMode, || device.gsp_firmware_mode()).map(|mode| mode.enabled);
    let chip_links = caller.call(Call::ChipLinkMode, || raw::chip_links_are_on(device));
    let reported = [
        (Mode::Persistence, persistence),
        (Mode::Accounting, accounting),
        (Mode::Gsp, firmware),
        (Mode::ChipLinks, chip_links),
    ];
    for (mode, on) in reported {
        push(out, &metric::MODE, mode, on.map(i64::from));
    }
    if accounting == Some(true) {
        let limit = caller.call(Call::AccountingBuffer, || device.accounting_buffer_size());
        push(out, &metric::ACCOUNTING_LIMIT, (), limit.map(i64::from));
    }
    compute_mode(device, caller, out);
    accounting == Some(true)
}

fn compute_mode(device: &Device<'_>, caller: &mut NvmlCaller, out: &mut Vec<WireValue>) {
    let Some(reported) = caller.call(Call::ComputeMode, || device.compute_mode()) else { return };
    let reported = match reported {
        NvmlComputeMode::Default => ComputeMode::Default,
        NvmlComputeMode::ExclusiveThread => ComputeMode::ExclusiveThread,
        NvmlComputeMode::Prohibited => ComputeMode::Prohibited,
        NvmlComputeMode::ExclusiveProcess => ComputeMode::ExclusiveProcess,
    };
    for mode in ComputeMode::ALL {
        push(out, &metric::COMPUTE_MODE, *mode, Some(i64::from(*mode == reported)));
    }
}

/// Exports nothing if confidential computing is off.
fn confidential(
    device: &Device<'_>,
    versions: &Versions,
    caller: &mut NvmlCaller,
    out: &mut Vec<WireValue>,
) {
    if !versions.confidential.is_some_and(|reported| reported.on) {
        return;
    }
    let ready = caller.call(Call::ConfidentialReady, || raw::confidential_ready(device.nvml()));
    push(out, &metric::CONFIDENTIAL_READY, (), ready.map(i64::from));
    let memory = caller.call(Call::ConfidentialMemory, || raw::confidential_memory(device));
    let bytes = |kib: u64| kib.checked_mul(KIB).and_then(|bytes| i64::try_from(bytes).ok());
    for (place, protection) in Protection::ALL.iter().enumerate() {
        let kib = memory.as_ref().and_then(|memory| memory.get(place));
        push(out, &metric::CONFIDENTIAL_MEMORY, *protection, kib.and_then(|kib| bytes(*kib)));
    }
}

fn video(device: &Device<'_>, caller: &mut NvmlCaller, out: &mut Vec<WireValue>) {
    let encoder = caller.call(Call::EncoderSessions, || device.encoder_stats());
    let encoder = encoder
        .map(|reported| (reported.session_count, reported.average_fps, reported.average_latency));
    let capture = caller.call(Call::CaptureSessions, || device.fbc_stats());
    let capture = capture
        .map(|reported| (reported.sessions_count, reported.average_fps, reported.average_latency));
    for (video, reported) in [(Video::Encoder, encoder), (Video::Capture, capture)] {
        let Some((sessions, frames, microseconds)) = reported else { continue };
        push(out, &metric::VIDEO_SESSIONS, video, Some(i64::from(sessions)));
        if sessions > 0 {
            push(out, &metric::VIDEO_FRAME_RATE, video, Some(f64::from(frames)));
            push(out, &metric::VIDEO_LATENCY, video, Some(f64::from(microseconds) / MICRO));
        }
    }
}
