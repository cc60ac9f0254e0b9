//! How wide the columns of the table are: as their text would have them, then as the screen has room.

use super::{INDENT, Row, Values};
use gpuwho_model::screen::{self, Screen, Style};

/// Names shorter than this are of no use: columns go before.
const MIN_NAME: usize = 20;
/// Shorter commands and details are of no use.
const MIN_CELL: usize = 6;
/// Longest command name of Linux (`TASK_COMM_LEN`) with its note, and of a user that is shown whole (useradd(8)).
const MAX_COMMAND: usize = 28;
const MAX_USER: usize = 32;
/// From this width on a process's job or image is shown.
const WITH_DETAIL: usize = 120;
const DETAIL: &str = "JOB OR IMAGE";

/// How wide each column is; 0 where it is left out.
#[derive(Clone, Copy, Default)]
pub(super) struct Columns {
    pub(super) index: usize,
    pub(super) name: usize,
    /// What devices and parts need to the left of memory.
    span: usize,
    pub(super) state: usize,
    pub(super) user: usize,
    pub(super) pid: usize,
    pub(super) memory: usize,
    pub(super) busy: usize,
    pub(super) power: usize,
    pub(super) temperature: usize,
    /// Of processes, where devices have power and temperature, and behind them.
    pub(super) command: usize,
    pub(super) detail: usize,
}

impl Columns {
    /// As wide as the rows would have them.
    pub(super) fn of(rows: &[Row], holders: &[Row]) -> Self {
        let mut all = Self { index: 3, state: 5, memory: 6, busy: 5, ..Self::default() };
        let grow = |column: &mut usize, text: &str| *column = screen::width(text).max(*column);
        let mut model_width = 0;
        for row in rows.iter().chain(holders) {
            match row {
                Row::Device { index, model, state, values } => {
                    grow(&mut all.index, index);
                    grow(&mut all.state, state);
                    grow(&mut model_width, model);
                    grow(&mut all.power, &values.power);
                    grow(&mut all.power, "POWER");
                    grow(&mut all.temperature, &values.temperature);
                    grow(&mut all.temperature, "TEMP");
                }
                Row::Process { owner, user, pid, command, detail, .. } => {
                    grow(&mut all.name, owner);
                    all.user = screen::width(user).max(4).max(all.user).min(MAX_USER);
                    all.pid = screen::width(pid).max(3).max(all.pid);
                    all.command = screen::width(command).max(7).max(all.command).min(MAX_COMMAND);
                    grow(&mut all.detail, detail);
                }
                Row::Part { name, .. } => all.span = all.span.max(INDENT + screen::width(name)),
                Row::Reason { .. } => {}
            }
            if let Some(values) = row.values() {
                grow(&mut all.memory, &values.memory);
            }
        }
        all.span = all.span.max(all.index + model_width + 3 + all.state);
        if all.detail > 0 {
            grow(&mut all.detail, DETAIL);
        }
        all
    }

    /// The same in so much room.
    pub(super) fn fit(mut self, room: usize) -> Self {
        let owner = self.name;
        let drops: [fn(&mut Self) -> &mut usize; 4] = [
            |columns| &mut columns.temperature,
            |columns| &mut columns.power,
            |columns| &mut columns.user,
            |columns| &mut columns.pid,
        ];
        for drop in drops {
            self.name = owner.min(MIN_NAME);
            if self.total() <= room {
                break;
            }
            *drop(&mut self) = 0;
        }
        self.name = 0;
        let natural = owner.max(self.span.saturating_sub(self.left()));
        self.name = natural.min(room.saturating_sub(self.total()));
        let behind = room.saturating_sub(self.total() - self.behind());
        let fit = |wide: usize, room: usize| {
            let wide = wide.min(room.saturating_sub(1));
            if wide < MIN_CELL { 0 } else { wide }
        };
        self.command = fit(self.command, behind);
        let rest = if room < WITH_DETAIL { 0 } else { behind.saturating_sub(self.command + 1) };
        self.detail = fit(self.detail, rest);
        self
    }

    /// Columns to the left of memory.
    pub(super) fn left(&self) -> usize {
        let own = [self.user, self.pid].into_iter().filter(|wide| *wide > 0);
        INDENT + self.name + own.map(|wide| wide + 1).sum::<usize>()
    }

    /// Columns that only devices have.
    fn behind(&self) -> usize {
        let own = [self.power, self.temperature].into_iter().filter(|wide| *wide > 0);
        own.map(|wide| wide + 1).sum()
    }

    /// All but a process's own behind its use.
    fn total(&self) -> usize {
        self.left() + 1 + self.memory + 1 + self.busy + self.behind()
    }

    pub(super) fn header(&self, screen: Screen, has_processes: bool) -> String {
        let text = |text: &str| text.to_owned();
        let device = Row::Device {
            index: text("GPU"),
            model: text("MODEL"),
            state: text("STATE"),
            values: Values {
                memory: text("MEMORY"),
                busy: text("UTIL"),
                power: text("POWER"),
                temperature: text("TEMP"),
            },
        };
        let process = Row::Process {
            owner: text("OWNER"),
            short: text("OWNER"),
            user: text("USER"),
            pid: text("PID"),
            command: text("COMMAND"),
            detail: text(DETAIL),
            values: Values { memory: text("MEMORY"), busy: text("UTIL"), ..Values::default() },
        };
        let rows = [Some(device), has_processes.then_some(process)];
        let plain = Screen::new(screen.width(), false);
        let lines = rows.iter().flatten().map(|row| row.render(self, plain));
        let paint = |line: String| screen.paint(Style::Heading, line.trim_end()) + "\n";
        lines.map(paint).collect()
    }
}
