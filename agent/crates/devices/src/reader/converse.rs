//! One tick with a child: requests, answers and deadlines.

use super::DeviceReader;
use crate::connection::{Connection, Disconnect};
use crate::plausible::Checks;
use crate::states::Unavailable;
use crate::wire::{Frame, Outcome, Reading, Request};
use gpuwho_model::catalog::device::DeviceState;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

impl DeviceReader {
    /// Runs one tick with a child; the tick began at `begun`.
    pub(super) fn converse(
        &mut self,
        connection: &mut Connection,
        begun: Instant,
    ) -> Result<(), Disconnect> {
        let deadline = begun + self.settings.deadline;
        self.tick += 1;
        let timeout = if connection.late { Instant::now() } else { deadline };
        let ready = self.open(connection, timeout)? && self.settle(connection)?;
        connection.late = !ready;
        let Some(devices) = connection.devices.filter(|_| ready) else {
            self.states.mark_rest(DeviceState::Hung, &connection.why_late(None));
            return Ok(());
        };
        let count = self.is_time_to_count(connection)?;
        let openers = (self.context.openers)();
        connection.link.send(&Request::Read { tick: self.tick, count, openers })?;
        connection.owed = Some(self.tick);
        connection.gone.clear();
        let mut missing: BTreeSet<u32> = (0..devices).collect();
        let sent = Instant::now();
        self.nap.sleep(deadline);
        let mut has_waited = false;
        while connection.owed.is_some() || missing.iter().any(|slot| !self.slow.contains(slot)) {
            let mut frame = connection.link.receive(Instant::now())?;
            if frame.is_none() {
                has_waited = true;
                frame = connection.link.receive(deadline)?;
            }
            let Some(frame) = frame else { break };
            if let Some(slot) = self.handle(connection, frame)? {
                missing.remove(&slot);
            }
        }
        if missing.is_empty() {
            self.nap.note(has_waited, sent.elapsed());
        }
        connection.late = connection.owed.is_some();
        self.classify_gone(connection, devices)?;
        for slot in &missing {
            let why = connection.why_late(Some(*slot));
            self.states.mark_hung(*slot, Unavailable { state: DeviceState::Hung, why });
        }
        self.states.mark_missing(&self.context.inventory);
        self.slow.retain(|slot| missing.contains(slot));
        self.slow.extend(missing);
        self.restarts.succeeded();
        Ok(())
    }

    /// Waits until the library is open; false at the deadline.
    fn open(&mut self, connection: &mut Connection, deadline: Instant) -> Result<bool, Disconnect> {
        while connection.devices.is_none() {
            let Some(frame) = connection.link.receive(deadline)? else { return Ok(false) };
            self.handle(connection, frame)?;
        }
        Ok(true)
    }

    /// Handles the frames that arrived since the last tick; false while the child has an unfinished
    /// request.
    fn settle(&mut self, connection: &mut Connection) -> Result<bool, Disconnect> {
        let now = Instant::now();
        while let Some(frame) = connection.link.receive(now)? {
            self.handle(connection, frame)?;
        }
        Ok(connection.owed.is_none())
    }

    /// Whether to count the devices. If the kernel driver's devices changed, the library is
    /// reloaded instead.
    fn is_time_to_count(&self, connection: &mut Connection) -> Result<bool, Disconnect> {
        if connection.counted.elapsed() < self.settings.retry {
            return Ok(false);
        }
        connection.counted = Instant::now();
        let now_listed = self.driver_devices();
        if now_listed == connection.driver_devices {
            return Ok(true);
        }
        let (before, now) = (connection.driver_devices.len(), now_listed.len());
        Err(Disconnect::Changed(format!("the kernel driver had {before}, and now others or {now}")))
    }

    /// Handles a frame; returns the device if it answered this tick.
    fn handle(
        &mut self,
        connection: &mut Connection,
        frame: Frame,
    ) -> Result<Option<u32>, Disconnect> {
        match frame {
            Frame::Opened { devices: 0 } => return Err(Disconnect::NoDevice),
            Frame::Opened { devices } => {
                connection.devices = Some(devices);
                connection.stuck.remove(&None);
                self.states.reset_slots();
                self.checks = Checks::of(self.vendor.name);
            }
            Frame::Refused { refusal, text } => return Err(Disconnect::Refused { refusal, text }),
            Frame::Stuck { slot, call } => {
                connection.stuck.insert(slot, call);
            }
            Frame::Counted { devices } => self.counted(connection, devices)?,
            Frame::Done { tick } => connection.owed = connection.owed.filter(|owed| *owed != tick),
            Frame::Device { tick, slot, mut reading } => {
                connection.stuck.remove(&Some(slot));
                let timely = tick == self.tick;
                self.account(&reading, slot);
                if let Outcome::DriverGone(why) = &reading.outcome {
                    if !std::mem::replace(&mut self.renewed, true) {
                        return Err(Disconnect::DriverGone(why.clone()));
                    }
                    connection.gone.insert(slot, why.clone());
                }
                self.add_what_others_know(slot, &mut reading);
                self.checks.keep(slot, &mut reading, &mut self.report);
                if let Some(gpu) = self.states.take(slot, &reading, timely, &self.context) {
                    reading.ended.iter().for_each(|ended| self.listener.ended(gpu, ended));
                }
                return Ok(timely.then_some(slot));
            }
        }
        Ok(None)
    }

    /// Adds to a good reading what the processes on the device serve themselves, and to the device's
    /// identity what a library beside the files knows.
    fn add_what_others_know(&mut self, slot: u32, reading: &mut Reading) {
        let known = || self.context.inventory.get(self.states.at(slot)?);
        let info = reading.identity.clone().or_else(|| known().map(|info| (*info).clone()));
        if let Some(info) = info.filter(|_| reading.outcome == Outcome::Ok) {
            reading.values.extend((self.context.served)(Some(&info)));
            let whole = (self.context.complete)(&info, &mut reading.note);
            reading.identity = whole.or(reading.identity.take());
        }
    }

    /// Decides what it means that devices report a missing driver after the library was reloaded:
    /// the driver is gone if all of them report it. If others answer, those devices are lost, and
    /// the library is not reloaded again.
    fn classify_gone(
        &mut self,
        connection: &mut Connection,
        devices: u32,
    ) -> Result<(), Disconnect> {
        let gone = std::mem::take(&mut connection.gone);
        if let Some(why) = gone.values().next().filter(|_| gone.len() == devices as usize) {
            return Err(Disconnect::DriverGone(why.clone()));
        }
        // Undecided while the child has an unfinished request.
        self.renewed &= connection.late || !gone.is_empty();
        Ok(())
    }

    /// Handles the library's device count: a changed count reloads the library, unless a reload for
    /// the same change did not help.
    fn counted(&mut self, connection: &Connection, now: u32) -> Result<(), Disconnect> {
        let before = connection.devices.unwrap_or(now);
        if now == before || self.miscount == Some((before, now)) {
            return Ok(());
        }
        self.miscount = Some((before, now));
        Err(Disconnect::Changed(format!("the library had {before}, and now {now}")))
    }

    /// Records the cost of a reading. A late device that was fast enough this time is waited for
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
