//! Starts, closes and restarts the child.

use super::{DeviceReader, EXIT_TIMEOUT, RELEASED, Settings};
use crate::connection::{Connection, Disconnect};
use crate::library::{self, Substitute};
use crate::link::{Link, Program};
use gpuwho_model::catalog::agent::SourceState;
use gpuwho_model::catalog::device::DeviceState;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

impl DeviceReader {
    /// Starts a child if one is due and no old one is left.
    pub(super) fn start(&mut self) -> Option<Connection> {
        if let Some(exiting_child) = &mut self.exiting_child {
            if exiting_child.ended(Duration::ZERO).is_none() {
                let reason =
                    format!("reader process {} is still inside a driver call", exiting_child.pid());
                self.down = (DeviceState::Hung, reason.clone());
                self.state(SourceState::Hung, reason, "it ends by itself when the call returns");
                return None;
            }
            self.exiting_child = None;
        }
        if !self.restarts.is_due() {
            return None;
        }
        match self.find() {
            Ok(library) if self.is_found => self.spawn(&library),
            Ok(_) => {
                // A child may hang, and this may be the thread of the readers that have none.
                self.is_found = true;
                "the driver has just been found".clone_into(&mut self.down.1);
                self.state(SourceState::Absent, self.down.1.clone(), "");
                None
            }
            Err(reason) => {
                self.restarts.wait(self.settings.retry);
                self.down = (DeviceState::NoDriver, reason.clone());
                self.state(SourceState::Absent, reason, self.vendor.remedy);
                None
            }
        }
    }

    /// The library to load (empty for a vendor that needs none), or why there is nothing to read.
    pub(super) fn find(&self) -> Result<PathBuf, String> {
        let Settings { library, paths, .. } = &self.settings;
        let Some(known) = &self.vendor.library else {
            let is_there = !self.driver_devices().is_empty();
            return is_there.then(PathBuf::new).ok_or_else(|| self.why_no_device());
        };
        let found = library::find(known, library.as_deref(), paths)?;
        // A vendor with a substitute is found by its kernel driver; without a device no process is
        // started.
        if known.substitute != Substitute::None && self.driver_devices().is_empty() {
            return Err(self.why_no_device());
        }
        Ok(found)
    }

    fn why_no_device(&self) -> String {
        if self.vendor.nodes.drivers.is_empty() {
            return "there is no such device on the PCI bus".to_owned();
        }
        format!("no device of the driver {}", self.vendor.nodes.drivers.join(" or "))
    }

    fn spawn(&mut self, library: &Path) -> Option<Connection> {
        self.report.restarts += u64::from(self.restarts.begin());
        // Listed before the library is loaded, so that a later change is noticed.
        let driver_devices = self.driver_devices();
        let Settings { program: path, environment, off, paths, confined, stall, .. } =
            &self.settings;
        let (vendor, events) = (self.vendor.name, self.listener.are_open());
        let (confined, stall) = (*confined, *stall);
        let program =
            Program { path, vendor, library, paths, off, environment, events, confined, stall };
        let started = Link::start(&program);
        match started.and_then(|link| Ok((link.hangup()?, link))) {
            Ok((hangup, mut link)) => {
                self.listener.receive(link.events());
                self.control.hold(hangup.boxed());
                self.slow.clear();
                let connection = Connection::new(link, driver_devices);
                // The operator may release the devices between the check at the start of the tick
                // and here.
                if self.control.released() {
                    self.connection = Some(connection);
                    self.let_go();
                    self.down = (DeviceState::Released, RELEASED.to_owned());
                    return None;
                }
                Some(connection)
            }
            Err(error) => {
                self.restarts.back_off();
                self.report.errors += 1;
                self.down = (DeviceState::Failing, error.to_string());
                // The program itself is found through it.
                let has_proc = Path::new("/proc/self").exists();
                let remedy = if has_proc { "" } else { "mount procfs on /proc" };
                self.state(SourceState::Failed, error.to_string(), remedy);
                None
            }
        }
    }

    /// Closes a connection and decides when the next one starts.
    pub(super) fn end(&mut self, connection: Connection, ending: &Disconnect) {
        self.control.forget_child();
        let mut exiting_child = connection.link.close();
        let status = exiting_child.ended(EXIT_TIMEOUT);
        self.exiting_child = status.is_none().then_some(exiting_child);
        if self.control.released() {
            self.down = (DeviceState::Released, RELEASED.to_owned());
            self.state(SourceState::Absent, RELEASED, "");
            return;
        }
        let (state, remedy) = ending.source_state();
        let mut reason = ending.to_string();
        if let (Disconnect::Lost(_), Some(status)) = (ending, status) {
            reason = format!("the reader process ended early: {status}");
        }
        match ending {
            // Happens once for each change: no pause needed.
            Disconnect::Changed(_) => tracing::info!(reason, "the library is loaded anew"),
            ending if ending.is_passing() => {
                self.report.errors += 1;
                self.restarts.back_off();
            }
            _ => self.restarts.wait(self.settings.retry),
        }
        self.down = (ending.devices(), reason.clone());
        self.state(state, reason, remedy);
    }

    /// Closes the connection to the child, if there is one.
    pub(super) fn let_go(&mut self) {
        self.control.forget_child();
        if let Some(connection) = self.connection.take() {
            let mut exiting_child = connection.link.close();
            self.exiting_child =
                exiting_child.ended(EXIT_TIMEOUT).is_none().then_some(exiting_child);
        }
        self.restarts.at_once();
    }

    /// The kernel driver's devices; empty if it has no such list.
    pub(super) fn driver_devices(&self) -> BTreeSet<OsString> {
        (self.vendor.listed)(&self.settings.paths)
    }
}
