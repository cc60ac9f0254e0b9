//! The screen at several sizes, and under keys nobody meant.

use super::state::{State, Tab};
use super::{Look, Options, fixture, keys, screen};
use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{
    Event, KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};
use std::time::{Duration, Instant};

fn state(is_ascii: bool) -> State {
    let options = Options { every: Duration::from_secs(2), is_coloured: false, is_ascii };
    let mut state = State::new(options, "");
    for _ in 0..3 {
        state.take(fixture::look(), Instant::now());
    }
    state
}

/// The lines of the screen, without what is blank at their ends.
fn lines(state: &mut State, wide: u16, high: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(wide, high)).unwrap();
    terminal.draw(|frame| screen::draw(frame, state)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |at: u16| (0..wide).map(|x| buffer[(x, at)].symbol()).collect::<String>();
    (0..high).map(|at| line(at).trim_end().to_owned()).collect()
}

fn press(state: &mut State, keys: &str) {
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            '\u{1b}' => KeyCode::Esc,
            key => KeyCode::Char(key),
        };
        keys::heed(state, &Event::Key(KeyEvent::new(code, KeyModifiers::NONE)));
    }
}

#[test]
fn the_devices_at_80_columns() {
    let mut state = state(true);
    let seen = lines(&mut state, 80, 16).join("\n");
    let wanted = "\
node-7  3 GPUs  1 not answering  720 W  70/160 GiB  3 processes
[1 Devices] 2 Owners  3 Engines  4 Health  5 Agent
GPU  UTIL                      MEMORY  POWER  TEMP OWNERS
0    97 %          ###    70.0G/80.0G  630 W  86 C serving/llama-0, slurm 777.0
1     3 %          ...     0.5G/80.0G   90 W  35 C bob
2   lost: GPU is lost

OWNER (by memory)                   GPUS   UTIL                    MEMORY PROCS
- namespace serving                    1   60 %              ---    40.0G     1
  + serving/llama-0                    1   60 %              ---    40.0G     1
- slurm alice                          1   30 %              :::    29.0G     1
  + slurm 777.0                        1   30 %              :::    29.0G     1
- user bob                             1    1 %              ...     0.0G     1
  + python3                            1    1 %              ...     0.0G     1

? help  / filter  s order  Enter parts  Space hold  q quit";
    assert_eq!(seen, wanted, "\n{seen}");
}

#[test]
fn no_id_is_cut() {
    let long = "a-very-long-namespace-indeed/and-a-pod-with-a-name-that-has-no-room-0";
    let mut look = fixture::look();
    look.who.devices[0].processes[0].owner.owner = Some(format!("{long} [server]"));
    let mut state = state(true);
    state.take(look, Instant::now());
    for wide in [80, 100, 200] {
        let seen = lines(&mut state, wide, 24).join("\n");
        assert!(seen.contains(long) && !seen.contains('…'), "{seen}");
    }
}

#[test]
fn pages_folds_filters_and_help_are_a_key_away() {
    let mut state = state(true);
    lines(&mut state, 80, 24);
    press(&mut state, "\n");
    let seen = lines(&mut state, 100, 24).join("\n");
    assert!(seen.contains("slurm 777.0 task 3") && seen.contains("train"), "{seen}");
    press(&mut state, "2jj\n");
    let seen = lines(&mut state, 80, 24).join("\n");
    assert!(!seen.contains("TEMP") && !seen.contains("slurm 777"), "folded\n{seen}");
    press(&mut state, "3");
    assert!(lines(&mut state, 80, 24).join("\n").contains("llama-3-70b"));
    press(&mut state, "4");
    assert!(lines(&mut state, 80, 24).join("\n").contains("health is judged by the agent"));
    press(&mut state, "5");
    assert!(lines(&mut state, 80, 24).join("\n").contains("start it"));
    press(&mut state, "1/user==bob\n");
    let seen = lines(&mut state, 80, 24).join("\n");
    assert!(!seen.contains("llama") && seen.contains("filter: user==bob"), "{seen}");
    press(&mut state, "/&&");
    assert!(lines(&mut state, 80, 24).join("\n").contains("a term is missing"));
    press(&mut state, "\u{1b}?");
    let seen = lines(&mut state, 80, 24).join("\n");
    assert!(seen.contains("Ctrl-Z: suspend"), "{seen}");
    press(&mut state, "\u{1b}");
    assert!(lines(&mut state, 80, 24).join("\n").contains("llama-0"));
}

#[test]
fn a_held_screen_stays_and_an_agent_that_is_gone_is_said() {
    let mut state = state(true);
    press(&mut state, " ");
    state.take(Look::default(), Instant::now());
    let seen = lines(&mut state, 80, 24).join("\n");
    assert!(seen.contains("llama-0") && seen.contains("held; Space goes on"), "{seen}");
    press(&mut state, " ");
    state.fail("no gpuwho agent answers".into());
    let seen = lines(&mut state, 80, 24).join("\n");
    assert!(seen.contains("llama-0") && seen.contains("no gpuwho agent answers"), "{seen}");
}

#[test]
fn names_that_others_chose_are_not_the_terminal_s() {
    let mut look = fixture::look();
    look.who.devices[0].processes[0].owner.owner = Some("\u{1b}[2J\u{202e}evil".into());
    look.who.host = "\u{1b}]0;x\u{7}".into();
    let mut state = state(false);
    state.take(look, Instant::now());
    for key in "12345".chars() {
        press(&mut state, &key.to_string());
        let seen = lines(&mut state, 120, 30).join("\n");
        assert!(!seen.contains(['\u{1b}', '\u{202e}', '\u{7}']), "{seen:?}");
    }
}

fn any_event() -> impl Strategy<Value = Event> {
    let codes = prop_oneof![
        8 => any::<char>().prop_map(KeyCode::Char),
        8 => prop::sample::select("jkgGs/?12345 &|:>=temp8".chars().collect::<Vec<_>>())
            .prop_map(KeyCode::Char),
        1 => Just(KeyCode::Enter), 1 => Just(KeyCode::Esc), 1 => Just(KeyCode::Tab),
        1 => Just(KeyCode::BackTab), 1 => Just(KeyCode::PageDown), 1 => Just(KeyCode::PageUp),
        1 => Just(KeyCode::End), 1 => Just(KeyCode::Backspace), 1 => Just(KeyCode::F(1)),
    ];
    let key = codes.prop_map(|code| Event::Key(KeyEvent::new(code, KeyModifiers::NONE)));
    let kinds = prop::sample::select(vec![
        MouseEventKind::Down(MouseButton::Left),
        MouseEventKind::ScrollDown,
        MouseEventKind::ScrollUp,
    ]);
    let mouse = (kinds, any::<u16>(), 0..60_u16).prop_map(|(kind, column, row)| {
        Event::Mouse(MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE })
    });
    prop_oneof![5 => key, 1 => mouse, 1 => "\\PC{0,300}".prop_map(Event::Paste)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn no_key_and_no_size_is_a_panic(
        events in prop::collection::vec((any_event(), 0..200_u16, 0..60_u16, 0..4_u8), 1..60),
        is_ascii in any::<bool>(),
    ) {
        let mut state = state(is_ascii);
        for (event, wide, high, news) in events {
            keys::heed(&mut state, &event);
            match news {
                0 => state.take(fixture::look(), Instant::now()),
                1 => state.take(Look::default(), Instant::now()),
                2 => state.fail("gone".into()),
                _ => {}
            }
            lines(&mut state, wide, high);
            prop_assert!(state.cursor().0 < state.keys.len().max(1));
        }
    }
}

#[test]
fn every_page_is_drawn_from_1_to_400_columns() {
    let mut state = state(false);
    for tab in Tab::ALL {
        state.tab = tab;
        for (wide, high) in
            [(0, 0), (1, 1), (2, 40), (19, 3), (40, 10), (60, 24), (200, 60), (400, 100)]
        {
            lines(&mut state, wide, high);
        }
    }
}
