//! How wide the columns of the table are: as their text would have them, then as the screen has room.

use super::{INDENT, Row, Values};
use gpuwho_model::screen::{self, Screen, Style};

/// Names shorter than this are of no use: columns go before.
const MIN_NAME: usize = 20;
/// Longest command name of Linux (`TASK_COMM_LEN`), and of a user that is shown whole.
const MAX_COMMAND: usize = 15;
const MAX_USER: usize = 12;

/// How wide each column is; 0 where it is left out.
#[derive(Clone, Copy, Default)]
pub(super) struct Columns {
    pub(super) name: usize,
    /// What devices and parts need to the left of memory, behind the indent.
    pub(super) span: usize,
    pub(super) state: usize,
    pub(super) user: usize,
    pub(super) pid: usize,
    pub(super) command: usize,
    pub(super) memory: usize,
    pub(super) busy: usize,
    pub(super) power: usize,
    pub(super) temperature: usize,
}

impl Columns {
    /// As wide as the rows would have them.
    pub(super) fn of(rows: &[Row], holders: &[Row]) -> Self {
        let mut all = Self { state: 5, memory: 6, busy: 5, ..Self::default() };
        let grow = |column: &mut usize, text: &str| *column = screen::width(text).max(*column);
        for row in rows.iter().chain(holders) {
            match row {
                Row::Device { model, state, values, .. } => {
                    grow(&mut all.state, state);
                    all.span = all.span.max(screen::width(model) + 1 + all.state);
                    grow(&mut all.power, &values.power);
                    grow(&mut all.power, "POWER");
                    grow(&mut all.temperature, &values.temperature);
                    grow(&mut all.temperature, "TEMP");
                }
                Row::Process { owner, user, pid, command, .. } => {
                    grow(&mut all.name, owner);
                    all.user = screen::width(user).max(4).max(all.user).min(MAX_USER);
                    all.pid = screen::width(pid).max(3).max(all.pid);
                    all.command = screen::width(command).max(7).max(all.command).min(MAX_COMMAND);
                }
                Row::Part { name, .. } => grow(&mut all.span, name),
                Row::Reason(_) => {}
            }
            if let Some(values) = row.values() {
                grow(&mut all.memory, &values.memory);
            }
        }
        all
    }

    /// The same in so much room.
    pub(super) fn fit(mut self, room: usize) -> Self {
        let owner = self.name;
        let drops: [fn(&mut Self) -> &mut usize; 5] = [
            |columns| &mut columns.temperature,
            |columns| &mut columns.power,
            |columns| &mut columns.command,
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
        let beside = self.left() - INDENT;
        let natural = owner.max(self.span.saturating_sub(beside));
        self.name = natural.min(room.saturating_sub(self.total()));
        self
    }

    /// Columns to the left of memory.
    pub(super) fn left(&self) -> usize {
        let own = [self.user, self.pid, self.command].into_iter().filter(|wide| *wide > 0);
        INDENT + self.name + own.map(|wide| wide + 1).sum::<usize>()
    }

    /// Columns that only devices have.
    pub(super) fn behind(&self) -> usize {
        let own = [self.power, self.temperature].into_iter().filter(|wide| *wide > 0);
        own.map(|wide| wide + 1).sum()
    }

    pub(super) fn total(&self) -> usize {
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
                note: "",
            },
        };
        let process = Row::Process {
            owner: text("OWNER"),
            user: text("USER"),
            pid: text("PID"),
            command: text("COMMAND"),
            values: Values { memory: text("MEMORY"), busy: text("UTIL"), ..Values::default() },
        };
        let rows = [Some(device), has_processes.then_some(process)];
        let plain = Screen::new(screen.width(), false);
        let lines = rows.iter().flatten().map(|row| row.render(self, plain));
        let paint = |line: String| screen.paint(Style::Heading, line.trim_end()) + "\n";
        lines.map(paint).collect()
    }
}
