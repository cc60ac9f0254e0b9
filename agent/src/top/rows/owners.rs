//! Owners: a tree to fold, from the namespace down to the process.

use super::{Page, Row, gib, header};
use crate::top::screen::Mark;
use crate::top::state::State;
use crate::top::tree::Node;
use gpuwho_model::screen::width;

/// GPUs, use, memory, processes, and their spaces.
const NUMBERS: usize = 5 + 7 + 9 + 6;
/// Where there is room for it.
const PAST: usize = 16;
const USER: usize = 12;
const MIN_NAME: usize = 24;

struct Columns {
    name: usize,
    past: usize,
    user: usize,
}

/// The page of the owners that the filter leaves.
pub(super) fn page(state: &State, wide: usize) -> Page {
    let room = wide.saturating_sub(NUMBERS);
    let past = if room > MIN_NAME + PAST { PAST } else { 0 };
    let room = room.saturating_sub(past + 1);
    let user = if room >= MIN_NAME * 2 + USER { USER } else { 0 };
    let name = room.saturating_sub(if user > 0 { user + 1 } else { 0 } + 1);
    let columns = Columns { name, past, user };
    let mut rows = Vec::new();
    let tree = state.tree();
    for node in &tree.children {
        put(state, node, 0, &columns, &mut rows);
    }
    let title = format!("OWNER (by {})", state.order.as_str());
    let header = header(&[
        (&title, columns.name, false),
        ("USER", columns.user, false),
        ("GPUS", 4, true),
        ("UTIL", 6, true),
        ("", columns.past, false),
        ("MEMORY", 8, true),
        ("PROCS", 5, true),
    ]);
    Page { header, rows }
}

/// A node and what of it is shown: at first all but the processes.
fn put(state: &State, node: &Node, depth: usize, columns: &Columns, rows: &mut Vec<Row>) {
    let is_toggled = state.toggled.contains(&node.key);
    let is_open = is_toggled != (depth == 0);
    let sign = match (node.children.is_empty(), is_open) {
        (true, _) => " ",
        (false, true) => "-",
        (false, false) => "+",
    };
    let name = format!("{}{sign} {}", "  ".repeat(depth), node.name);
    // Of several users nobody is named; a process has no past.
    let user = match node.users.len() {
        1 => node.users.first().cloned().unwrap_or_default(),
        0 => String::new(),
        many => format!("{many} users"),
    };
    let past = if depth < 2 { state.past(&node.key, columns.past) } else { String::new() };
    let mark = if depth == 0 { Mark::Heading } else { Mark::Plain };
    // A name that has no room beside the numbers stands above them, whole.
    let is_long = width(&name) > columns.name;
    if is_long {
        rows.push(Row { key: Some(node.key.clone()), ..Row::text(&name, mark) });
    }
    let row = Row::new((!is_long).then_some(&node.key))
        .left(if is_long { "" } else { &name }, columns.name, mark)
        .left(&user, columns.user, Mark::Dim)
        .right(&node.devices.len().to_string(), 4, Mark::Plain)
        .right(
            &node.busy.map_or("-".into(), |busy| format!("{:.0} %", busy * 100.0)),
            6,
            Mark::Plain,
        )
        .left(&past, columns.past, Mark::Bar)
        .right(&gib(node.memory), 8, Mark::Plain)
        .right(&node.processes.to_string(), 5, Mark::Dim);
    rows.push(row);
    if is_open {
        node.children.iter().for_each(|child| put(state, child, depth + 1, columns, rows));
    }
}
