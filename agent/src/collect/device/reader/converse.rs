//! One tick with a child: what is asked, what is waited for, and until when.

use super::DeviceReader;
use crate::catalog::device::DeviceState;
use crate::collect::device::connection::{Connection, Disconnect};
use crate::collect::device::plausible;
use crate::collect::device::states::Unavailable;
use crate::collect::device::wire::{Frame, Outcome, Reading, Request};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

impl DeviceReader {
    /// One tick with a child, of one that began a while ago.
    pub(super) fn converse(
        &mut self,
        session: &mut Connection,
        begun: Instant,
    ) -> Result<(), Disconnect> {
        let deadline = begun + self.settings.deadline;
        self.tick += 1;
        let patience = if session.late { Instant::now() } else { deadline };
        let ready = self.open(session, patience)? && self.settle(session)?;
        session.late = !ready;
        let Some(devices) = session.devices.filter(|_| ready) else {
            self.rows.rest(DeviceState::Hung, &session.why_late(None));
            return Ok(());
        };
        let count = self.is_time_to_count(session)?;
        let holders = (self.knows.holders)();
        session.link.send(&Request::Read { tick: self.tick, count, holders })?;
        session.owed = Some(self.tick);
        session.gone.clear();
        let mut missing: BTreeSet<u32> = (0..devices).collect();
        while session.owed.is_some() || missing.iter().any(|slot| !self.slow.contains(slot)) {
            let Some(frame) = session.link.receive(deadline)? else { break };
            if let Some(slot) = self.handle(session, frame)? {
                missing.remove(&slot);
            }
        }
        session.late = session.owed.is_some();
        self.judge_gone(session, devices)?;
        for slot in &missing {
            let why = session.why_late(Some(*slot));
            self.rows.silent(*slot, Unavailable { state: DeviceState::Hung, why });
        }
        self.rows.unlisted(&self.knows.inventory);
        self.slow.retain(|slot| missing.contains(slot));
        self.slow.extend(missing);
        self.restarts.went_well();
        Ok(())
    }

    /// Waits until the library is open; false at the deadline.
    fn open(&mut self, session: &mut Connection, deadline: Instant) -> Result<bool, Disconnect> {
        while session.devices.is_none() {
            let Some(frame) = session.link.receive(deadline)? else { return Ok(false) };
            self.handle(session, frame)?;
        }
        Ok(true)
    }

    /// Takes what arrived since the last tick; false while the child owes an answer.
    fn settle(&mut self, session: &mut Connection) -> Result<bool, Disconnect> {
        let now = Instant::now();
        while let Some(frame) = session.link.receive(now)? {
            self.handle(session, frame)?;
        }
        Ok(session.owed.is_none())
    }

    /// Whether the devices are to be counted; they are not where the kernel driver has others than
    /// before, because then the library is loaded anew.
    fn is_time_to_count(&self, session: &mut Connection) -> Result<bool, Disconnect> {
        if session.counted.elapsed() < self.settings.retry {
            return Ok(false);
        }
        session.counted = Instant::now();
        let roster = self.driver_devices();
        if roster == session.driver_devices {
            return Ok(true);
        }
        let (before, now) = (session.driver_devices.len(), roster.len());
        Err(Disconnect::Changed(format!("the kernel driver had {before}, and now others or {now}")))
    }

    /// Takes a frame; gives the device that answered this tick with it.
    fn handle(
        &mut self,
        session: &mut Connection,
        frame: Frame,
    ) -> Result<Option<u32>, Disconnect> {
        match frame {
            Frame::Opened { devices: 0 } => return Err(Disconnect::NoDevice),
            Frame::Opened { devices } => {
                session.devices = Some(devices);
                session.stuck.remove(&None);
                self.rows.renumber();
            }
            Frame::Refused { refusal, text } => return Err(Disconnect::Refused { refusal, text }),
            Frame::Stuck { slot, call } => {
                session.stuck.insert(slot, call);
            }
            Frame::Counted { devices } => self.counted(session, devices)?,
            Frame::Done { tick } => session.owed = session.owed.filter(|owed| *owed != tick),
            Frame::Device { tick, slot, mut reading } => {
                session.stuck.remove(&Some(slot));
                let timely = tick == self.tick;
                self.account(&reading, slot);
                if let Outcome::DriverGone(why) = &reading.outcome {
                    if !std::mem::replace(&mut self.renewed, true) {
                        return Err(Disconnect::DriverGone(why.clone()));
                    }
                    session.gone.insert(slot, why.clone());
                }
                plausible::keep(&mut reading, &mut self.report);
                if let Some(gpu) = self.rows.take(slot, &reading, timely, &self.knows) {
                    reading.ended.iter().for_each(|ended| self.listener.ended(gpu, ended));
                }
                return Ok(timely.then_some(slot));
            }
        }
        Ok(None)
    }

    /// What those devices make of it that said the driver was gone also after the library was loaded
    /// anew: it is gone if all of them say so. If others answer, it is the device that is lost, and no
    /// reason to load the library once more.
    fn judge_gone(&mut self, session: &mut Connection, devices: u32) -> Result<(), Disconnect> {
        let gone = std::mem::take(&mut session.gone);
        if let Some(why) = gone.values().next().filter(|_| gone.len() == devices as usize) {
            return Err(Disconnect::DriverGone(why.clone()));
        }
        // While the child owes an answer, nobody knows.
        self.renewed &= session.late || !gone.is_empty();
        Ok(())
    }

    /// The library has as many devices as it says now. Where loading it anew has not helped before,
    /// it is not done again.
    fn counted(&mut self, session: &Connection, now: u32) -> Result<(), Disconnect> {
        let before = session.devices.unwrap_or(now);
        if now == before || self.miscount == Some((before, now)) {
            return Ok(());
        }
        self.miscount = Some((before, now));
        Err(Disconnect::Changed(format!("the library had {before}, and now {now}")))
    }

    /// Books what a reading cost. A late device that was quick enough this time is waited for
    /// again.
    fn account(&mut self, reading: &Reading, slot: u32) {
        let spent = Duration::from_nanos(reading.cost.library_ns);
        self.calls += u64::from(reading.cost.calls);
        self.library_time += spent;
        self.report.count(reading.cost.failed, reading.cost.implausible);
        if spent < self.settings.deadline {
            self.slow.remove(&slot);
        }
    }
}
