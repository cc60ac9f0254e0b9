use super::*;
use crate::sysfs::fake::values;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use tempfile::TempDir;

const ADDRESS: &str = "0000:19:00.0";
/// As recorded from eight Gaudi3 (hl-smi 1.22), with the columns asked for here.
const ROW: &str = "0000:19:00.0, 01P4-HL3090A0-18-U4V193-22-07-00, HL-325L, 1.22.1-97ec1a4, \
                   131072 MiB, 672 MiB, 36 C, 0 %, 226 W, AN50012345, 0, 0, 3, 1";

/// A program named `hl-smi` with this script.
fn script(body: &str) -> (TempDir, Tool) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("hl-smi");
    fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let tool = Tool::new(&path, Duration::from_secs(30));
    (folder, tool)
}

/// Runs it. A program that was just written may be open in a process that another test has forked.
fn run(tool: &Tool) {
    tool.run();
    while tool.latest.lock().problem.contains("Text file busy") {
        tool.run();
    }
}

fn said(tool: &Tool) -> (BTreeMap<String, f64>, String) {
    let mut out = Vec::new();
    let note = tool.values(ADDRESS, &mut out);
    (values(&out), note)
}

#[test]
fn a_line_of_eight_columns_of_numbers_with_units_is_in_base_units() {
    let (_folder, tool) = script(&format!("echo '{ROW}'"));
    run(&tool);
    let expected = [
        ("gpu.utilization{general}", 0.0),
        ("gpu.memory.limit", 137_438_953_472.0),
        ("gpu.memory.usage{used}", 704_643_072.0),
        ("gpu.memory.usage{free}", 136_734_310_400.0),
        ("gpu.temperature{gpu}", 36.0),
        ("gpu.power", 226.0),
        ("gpu.ecc.errors{uncorrected,aggregate}", 0.0),
        ("gpu.ecc.errors{uncorrected,volatile}", 0.0),
        ("gpu.ecc.errors{corrected,aggregate}", 3.0),
        ("gpu.ecc.errors{corrected,volatile}", 1.0),
    ];
    let expected = expected.map(|(name, value)| (name.to_owned(), value));
    assert_eq!(said(&tool), (BTreeMap::from(expected), String::new()));
    let identity = tool.identity(ADDRESS);
    assert_eq!(identity.uuid.as_deref(), Some("01P4-HL3090A0-18-U4V193-22-07-00"));
    assert_eq!(identity.serial.as_deref(), Some("AN50012345"));
}

#[test]
fn an_older_build_that_refuses_a_word_is_asked_for_less() {
    let short = ROW.split(", AN5").next().unwrap();
    let body = format!("case \"$2\" in *serial*) exit 3;; esac; echo '{short}'");
    let (_folder, tool) = script(&body);
    run(&tool);
    let (values, note) = said(&tool);
    assert_eq!((values.get("gpu.power"), note.as_str()), (Some(&226.0), ""));
    assert!(!values.contains_key("gpu.ecc.errors{corrected,volatile}"));
}

#[test]
fn what_is_no_number_of_its_unit_is_left_out() {
    let bad = ROW
        .replace("0 %", "zero")
        .replace("226 W", "N/A")
        .replace("36 C", "97 F")
        .replace("672 MiB", "672000000 MiB");
    let (_folder, tool) = script(&format!("echo '{bad}'"));
    run(&tool);
    let names: Vec<_> = said(&tool).0.into_keys().collect();
    assert_eq!(
        names.iter().filter(|name| !name.contains("ecc")).collect::<Vec<_>>(),
        ["gpu.memory.limit"]
    );
}

#[test]
fn lines_that_are_no_rows_and_programs_that_fail_are_said_and_nothing_else() {
    let cases = [
        (format!("echo '{ROW}, 1'"), "hl-smi wrote no line with 9 columns"),
        ("echo 'Der Treiber ist nicht geladen, bitte laden'".to_owned(), "no line with 9 columns"),
        ("exit 7".to_owned(), "exit status: 7"),
        ("kill -SEGV $$".to_owned(), "signal: 11"),
        ("yes 0000:19:00.0 | head -c 200000".to_owned(), "more than 65536 bytes"),
        (format!("echo '{}'", ROW.replace("0000:19:00.0", "../../etc/passwd")), "9 columns"),
    ];
    for (body, problem) in cases {
        let (_folder, tool) = script(&body);
        run(&tool);
        let (values, note) = said(&tool);
        assert!(values.is_empty() && note.contains(problem), "{body}: {note}");
    }
    let missing = Tool::new(Path::new("/nonexistent/hl-smi"), TIMEOUT);
    missing.run();
    assert!(said(&missing).1.contains("cannot be run"), "{}", said(&missing).1);
}

#[test]
fn a_program_that_hangs_is_killed_with_what_it_started() {
    let (folder, tool) = script("echo $$ > \"$0.pid\"; sleep 1000 & echo $! >> \"$0.pid\"; wait");
    let tool = Tool { timeout: Duration::from_millis(300), ..tool };
    // Its output may be late by so much that it has not begun.
    let pids = loop {
        run(&tool);
        let file = fs::read_to_string(folder.path().join("hl-smi.pid")).unwrap_or_default();
        let pids: Vec<i32> = file.lines().map(|line| line.parse().unwrap()).collect();
        if pids.len() == 2 {
            break pids;
        }
    };
    assert!(said(&tool).1.contains("did not end within"), "{}", said(&tool).1);
    // What was killed ends when the kernel comes to it.
    let end = Instant::now() + Duration::from_mins(1);
    for pid in pids {
        loop {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            if stat.is_empty() || stat.contains(") Z ") {
                break;
            }
            assert!(Instant::now() < end, "{stat}");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn a_program_that_fails_later_keeps_what_it_said_for_a_while_with_its_problem() {
    let (folder, tool) = script(&format!("echo '{ROW}'"));
    run(&tool);
    fs::write(folder.path().join("hl-smi"), "#!/bin/sh\nexit 1\n").unwrap();
    run(&tool);
    let (values, note) = said(&tool);
    assert_eq!(values.get("gpu.power"), Some(&226.0));
    assert!(note.contains("exit status: 1"), "{note}");
    tool.latest.lock().at = Instant::now().checked_sub(MAX_AGE * 2);
    assert!(said(&tool).0.is_empty(), "too old");
}
