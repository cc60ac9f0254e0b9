use super::*;
use crate::who::{Others, Source, Totals};
use gpuwho_owners::attribute::view::OwnerView;

const GIB: i64 = 1 << 30;

fn person(pid: u32, comm: &str) -> OwnerView {
    OwnerView { pid, comm: comm.into(), user: "alice".into(), ..OwnerView::default() }
}

fn process(owner: &str, pid: u32, gib: i64, busy: f64) -> Process {
    let container = owner.split_once('[').map(|(_, name)| name.trim_end_matches(']').into());
    let owner = OwnerView { owner: Some(owner.into()), container, ..person(pid, "python3") };
    let memory_bytes = Some(gib * GIB);
    Process { owner, memory_bytes, utilization: Some(busy), ..Process::default() }
}

fn device(index: u32, processes: Vec<Process>) -> Device {
    let device = Device {
        index,
        model: "NVIDIA H100 80GB HBM3".into(),
        state: "ok".into(),
        utilization: Some(0.87),
        memory_used_bytes: Some(60 * GIB),
        memory_limit_bytes: Some(80 * GIB),
        power_watts: Some(512.4),
        temperature_celsius: Some(61.0),
        processes,
        ..Device::default()
    };
    device.with_rest(false)
}

fn lost(index: u32) -> Device {
    Device {
        index,
        model: "NVIDIA H100 80GB HBM3".into(),
        state: "lost".into(),
        reason: "device fell off the bus".into(),
        read_age_seconds: Some(18.2),
        ..Device::default()
    }
}

fn host(devices: Vec<Device>) -> HostReport {
    let totals = Totals::of(&devices);
    HostReport { host: "node1".into(), totals, devices, ..HostReport::default() }
}

/// Two pods on one device, one of them on another as well, and a device that is lost.
fn node() -> HostReport {
    let server = "serving/embedder-5d8f7c9b6d-x2x7k [server]";
    host(vec![
        device(
            0,
            vec![process("ml/trainer-0 [pytorch]", 4711, 40, 0.5), process(server, 9, 9, 0.3)],
        ),
        device(1, vec![process("ml/trainer-0 [pytorch]", 4711, 60, 0.9)]),
        lost(2),
    ])
}

fn at(width: usize, report: &HostReport) -> String {
    report.render(Screen::new(width, false), SystemTime::UNIX_EPOCH)
}

fn check(width: usize, expected: &str) {
    let table = at(width, &node());
    assert_eq!(table, expected, "\n{table}");
}

#[test]
fn at_sixty_columns_a_long_owner_has_a_line_of_its_own_and_columns_go_from_the_right() {
    check(
        60,
        "\
node1: 2 processes on 3 accelerators, 1 not answering

GPU  MODEL                         STATE        MEMORY  UTIL
     OWNER                    USER   PID        MEMORY  UTIL
  0  NVIDIA H100 80GB HBM3         ok    60.0/80.0 GiB  87 %
     ml/trainer-0 [pytorch]   alice 4711      40.0 GiB  50 %
     serving/embedder-5d8f7c9b6d-x2x7k
                              alice    9       9.0 GiB  30 %
     unattributed                             11.0 GiB
  1  NVIDIA H100 80GB HBM3         ok    60.0/80.0 GiB  87 %
     ml/trainer-0 [pytorch]   alice 4711      60.0 GiB  90 %
  2  NVIDIA H100 80GB HBM3         lost              -     -
     last read 18 s ago: device fell off the bus
",
    );
}

#[test]
fn at_eighty_columns_every_id_is_whole_and_a_container_goes_first() {
    check(
        80,
        "\
node1: 2 processes on 3 accelerators, 1 not answering

GPU  MODEL                                  STATE        MEMORY  UTIL POWER TEMP
     OWNER                             USER   PID        MEMORY  UTIL COMMAND
  0  NVIDIA H100 80GB HBM3                  ok    60.0/80.0 GiB  87 % 512 W 61 C
     ml/trainer-0 [pytorch]            alice 4711      40.0 GiB  50 % python3
     serving/embedder-5d8f7c9b6d-x2x7k alice    9       9.0 GiB  30 % python3
     unattributed                                      11.0 GiB
  1  NVIDIA H100 80GB HBM3                  ok    60.0/80.0 GiB  87 % 512 W 61 C
     ml/trainer-0 [pytorch]            alice 4711      60.0 GiB  90 % python3
  2  NVIDIA H100 80GB HBM3                  lost              -     -     -    -
     last read 18 s ago: device fell off the bus
",
    );
}

#[test]
fn at_132_columns_nothing_is_left_out() {
    check(
        132,
        "\
node1: 2 processes on 3 accelerators, 1 not answering

GPU  MODEL                                           STATE        MEMORY  UTIL POWER TEMP
     OWNER                                      USER   PID        MEMORY  UTIL COMMAND
  0  NVIDIA H100 80GB HBM3                           ok    60.0/80.0 GiB  87 % 512 W 61 C
     ml/trainer-0 [pytorch]                     alice 4711      40.0 GiB  50 % python3
     serving/embedder-5d8f7c9b6d-x2x7k [server] alice    9       9.0 GiB  30 % python3
     unattributed                                               11.0 GiB
  1  NVIDIA H100 80GB HBM3                           ok    60.0/80.0 GiB  87 % 512 W 61 C
     ml/trainer-0 [pytorch]                     alice 4711      60.0 GiB  90 % python3
  2  NVIDIA H100 80GB HBM3                           lost              -     -     -    -
     last read 18 s ago: device fell off the bus
",
    );
    assert_eq!(at(200, &node()), at(132, &node()), "no wider than its text");
}

#[test]
fn from_120_columns_a_job_s_name_or_an_image_stands_behind_the_command() {
    let mut report = node();
    report.devices[0].processes[0].owner.job_name = Some("finetune".into());
    report.devices[0].processes[1].owner.image = Some("registry.example/embedder:1.4".into());
    let behind = |width| {
        let table = at(width, &report);
        let lines = table.lines().skip(3).take(4);
        lines
            .filter_map(|line| {
                Some(line.split_once("UTIL ").or(line.split_once("0 % "))?.1.to_owned())
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(behind(119), ["COMMAND", "python3", "python3"]);
    let all = ["COMMAND JOB OR IMAGE", "python3 finetune", "python3 registry.example/embedder:1.4"];
    assert_eq!(behind(132), all);
}

#[test]
fn a_name_is_whole_however_long_at_eighty_columns() {
    let mut report = node();
    let pod = format!("a-namespace/{}", "a-long-pod-name-".repeat(9));
    report.devices[0].processes[0].owner.owner = Some(format!("{pod} [pytorch]"));
    report.devices[0].processes[0].owner.pid = 4_194_304;
    let table = at(80, &report);
    let all: String = table.split_whitespace().collect();
    assert!(all.contains(&pod) && all.contains("4194304") && !table.contains('…'), "{table}");
}

#[test]
fn devices_of_several_vendors_are_named_as_the_filter_takes_them() {
    let mut report = node();
    report.devices[1].vendor = "amd".into();
    report
        .devices
        .iter_mut()
        .filter(|one| one.vendor.is_empty())
        .for_each(|one| one.vendor = "nvidia".into());
    let table = at(80, &report);
    let names: Vec<_> = table.lines().filter_map(|line| line.split_once("  NVIDIA")).collect();
    let names: Vec<_> = names.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["nvidia:0", "   amd:1", "nvidia:2"], "{table}");
}

#[test]
fn a_condition_of_several_devices_is_one_line_and_released_devices_are_counted_apart() {
    let condition = |reason: &str| ConditionView {
        condition: "memory_rows_pending".into(),
        severity: "warning".into(),
        reason: reason.into(),
        ..ConditionView::default()
    };
    let mut report = host((0..4).map(|index| device(index, Vec::new())).collect());
    report.devices.iter_mut().for_each(|device| device.health = vec![condition("pending")]);
    report.devices[2].health.push(condition("also"));
    report.devices[1].state = "released".into();
    report.totals = Totals::of(&report.devices);
    let table = at(80, &report);
    let lines: Vec<_> = table.lines().filter(|line| line.contains("warning")).collect();
    let common = "warning on GPU 0-3: pending (memory_rows_pending)";
    assert_eq!(lines, [common, "     warning: also (memory_rows_pending)"], "{table}");
    assert!(table.starts_with("node1: 0 processes on 4 accelerators, 1 released\n"), "{table}");
}

#[test]
fn no_line_is_wider_than_the_screen() {
    let mut report = node();
    let wide = "模型训练/任务".repeat(20);
    report.devices[0].processes.push(process(&wide, u32::MAX, 1, 0.0));
    report.devices[0].processes[0].owner.user = "a-user-with-a-long-name@example.org".into();
    report.devices[1].model = wide.clone();
    report.host = wide;
    let nodes = (0..16).map(|gpu| format!("/dev/nvidia{gpu}")).collect();
    report.holders = vec![Holder { owner: person(3, "idle"), nodes, ..Holder::default() }];
    for width in 40..=250 {
        let table = at(width, &report);
        let widest = table.lines().map(screen::width).max();
        assert!(widest <= Some(width), "{width}: {widest:?}\n{table}");
    }
}

#[test]
fn escapes_in_names_reach_no_terminal_even_from_an_agent_that_lets_them_through() {
    let mut report = node();
    report.devices[0].processes[0].owner.owner = Some("\x1b[2Jx\n".into());
    report.devices[2].reason = "\x1b]0;x\x07".into();
    report.host = "\x1b[31m".into();
    let table = at(120, &report);
    assert!(!table.contains(|c: char| c.is_control() && c != '\n'), "{table:?}");
}

#[test]
fn colours_change_nothing_but_the_colour() {
    let coloured = node().render(Screen::new(80, true), SystemTime::UNIX_EPOCH);
    assert!(coloured.contains("\x1b[31mlost \x1b[0m"), "{coloured:?}");
    let plain = ["1", "31", "32", "33", "0"]
        .iter()
        .fold(coloured, |text, code| text.replace(&format!("\x1b[{code}m"), ""));
    assert_eq!(plain, at(80, &node()));
}

#[test]
fn processes_stand_under_their_instance_and_mps_is_said() {
    let process = |pid, instance: Option<&str>, kind: &str| Process {
        owner: person(pid, "python3"),
        kind: Some(kind.into()),
        instance: instance.map(Into::into),
        memory_bytes: Some(3 * GIB),
        utilization: None,
    };
    let instance = |uuid: &str, gpu_instance, used: i64| Instance {
        uuid: uuid.into(),
        gpu_instance,
        compute_instance: Some(0),
        profile: Some("3g.20gb".into()),
        memory_used_bytes: Some(used * GIB),
        memory_limit_bytes: Some(20 * GIB),
    };
    let device = Device {
        model: "NVIDIA A100-SXM4-40GB".into(),
        state: "ok".into(),
        memory_used_bytes: Some(9 * GIB),
        memory_limit_bytes: Some(40 * GIB),
        instances: vec![instance("MIG-a", 1, 3), instance("MIG-b", 2, 6)],
        processes: vec![
            process(10, Some("MIG-b"), "compute"),
            process(11, None, "mps_server"),
            process(12, Some("MIG-a"), "mps"),
        ],
        ..Device::default()
    };
    let table = at(100, &host(vec![device]));
    let expected = "\
node1: 3 processes on 1 accelerator

GPU  MODEL                 STATE       MEMORY  UTIL POWER TEMP
     OWNER             USER  PID       MEMORY  UTIL COMMAND
  0  NVIDIA A100-SXM4-40GB ok    9.0/40.0 GiB     -     -    -
     -                 alice  11      3.0 GiB       python3 (MPS server)
     MIG 1/0 3g.20gb             3.0/20.0 GiB
     -                 alice  12      3.0 GiB       python3 (MPS)
     MIG 2/0 3g.20gb             6.0/20.0 GiB
     -                 alice  10      3.0 GiB       python3
";
    assert_eq!(table, expected, "\n{table}");
}

#[test]
fn what_a_user_sees_fits_eighty_columns_and_says_what_is_hidden() {
    let mut report = host(vec![device(0, vec![process("slurm 4711.0", 4_194_304, 40, 0.25)])]);
    report.devices[0].others =
        Some(Others { processes: 1, memory_bytes: Some(2 * GIB), utilization: Some(0.25) });
    report.others_hidden = true;
    report.hidden_processes = 1;
    let table = at(80, &report);
    let expected = "\
node1: 1 process on 1 accelerator

GPU  MODEL                 STATE        MEMORY  UTIL POWER TEMP
     OWNER                   PID        MEMORY  UTIL COMMAND
  0  NVIDIA H100 80GB HBM3 ok    60.0/80.0 GiB  87 % 512 W 61 C
     slurm 4711.0        4194304      40.0 GiB  25 % python3
     1 process of others               2.0 GiB  25 %
     unattributed                     20.0 GiB

1 process of other users is hidden; run as root, or set agent.show_others
";
    assert_eq!(table, expected, "\n{table}");
}

#[test]
fn a_holder_without_work_on_the_driver_s_list_is_shown_with_the_devices_it_has_open() {
    let nodes = ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm"].map(str::to_owned);
    let held =
        |pid| Holder { owner: person(pid, "idle"), nodes: nodes.to_vec(), ..Holder::default() };
    let report = HostReport { holders: vec![held(8), held(7)], ..node() };
    let table = at(132, &report);
    let lines: Vec<_> =
        table.lines().skip_while(|line| !line.contains("does not list them")).collect();
    let names: Vec<_> =
        lines[1..3].iter().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
    assert_eq!(
        names,
        [["-", "alice", "7", "idle", "nvidia0"], ["-", "alice", "8", "idle", "nvidia0"]]
    );
    let nodes = ["tenstorrent/2", "vfio/0", "vfio/1", "dri/renderD129", "kfd"];
    let nodes = nodes.map(|node| format!("/dev/{node}")).to_vec();
    let held = Holder { owner: person(8, "idle"), nodes, ..Holder::default() };
    let table = at(132, &HostReport { holders: vec![held], ..node() });
    assert!(table.contains(" tenstorrent/2 vfio/0,1 renderD129\n"), "{table}");
}

fn source(name: &str, state: &str) -> Source {
    let (reason, remedy) = ("it is so".to_owned(), "do this".to_owned());
    Source { name: name.into(), state: state.into(), reason, remedy, ..Source::default() }
}

#[test]
fn a_source_that_fails_says_why_and_what_to_do_and_one_that_is_absent_nothing() {
    let failing = [source("nccl", "failed"), source("nvidia", "hung")];
    let quiet = [source("amd", "absent"), source("nccl", "absent"), source("nvidia", "degraded")];
    let sources = quiet.iter().chain(&failing).cloned().collect();
    let table = at(80, &HostReport { sources, ..node() });
    let (_, remarks) = table.rsplit_once("\n\n").unwrap();
    let expected = "\
nccl is failed: it is so; remedy: do this
nvidia is hung: it is so; remedy: do this
";
    assert_eq!(remarks, expected, "the lost device says itself why nvidia is degraded\n{table}");
}

#[test]
fn without_any_device_the_drivers_say_why() {
    let quiet = ["nvidia", "amd", "nccl"].map(|name| source(name, "absent"));
    let sources = quiet.into_iter().chain([source("cri", "failed")]).collect();
    let table = at(80, &HostReport { sources, ..host(Vec::new()) });
    let expected = "\
node1: no accelerator

no driver found for: nvidia (it is so), amd; see `gpuwho doctor --all`
";
    assert_eq!(table, expected);
}

#[test]
fn a_process_on_two_devices_counts_once_and_the_rest_of_memory_has_a_line() {
    let report = node();
    assert_eq!((report.totals.processes, report.totals.memory_used_bytes), (2, Some(120 * GIB)));
    let rest = report.devices.iter().map(|device| device.memory_unattributed_bytes);
    assert_eq!(rest.collect::<Vec<_>>(), [Some(11 * GIB), None, None]);
    let small = Device { memory_used_bytes: Some(60 * GIB + GIB / 2), ..report.devices[1].clone() };
    assert_eq!(small.unattributed(), None, "the driver's own");
}

/// Gaudi, TPU and Neuron: their drivers say of the device what it has in use, and not of processes.
#[test]
fn memory_that_no_driver_divides_is_said_as_the_counters_have_it() {
    let bare = |owner: &str, pid| Process {
        memory_bytes: None,
        utilization: None,
        ..process(owner, pid, 0, 0.0)
    };
    let of = |processes: &[Process], has_one_owner| {
        let device = device(0, processes.to_vec());
        let bare =
            Device { memory_unattributed_bytes: None, memory_unsplittable_bytes: None, ..device };
        bare.with_rest(has_one_owner)
    };
    let lines = |device: &Device| {
        let table = at(80, &host(vec![device.clone()]));
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        table.lines().skip(5).map(words).collect::<Vec<_>>()
    };
    let (a, b) = (bare("vision/eval", 7), bare("vision/eval", 8));
    let alone = of(std::slice::from_ref(&a), true);
    assert_eq!(lines(&alone), ["vision/eval alice 7 ~60.0 GiB ~87 % python3"]);
    let together = of(&[a.clone(), b], true);
    assert_eq!(lines(&together)[2], "all processes together ~60.0 GiB ~87 %");
    let shared = of(&[a.clone(), bare("ml/other", 9)], false);
    assert_eq!(lines(&shared)[2], "shared, not split 60.0 GiB");
    let part = of(&[a, process("ml/other", 9, 20, 0.5)], false);
    assert_eq!(lines(&part)[2], "shared, not split 40.0 GiB");
    let all = [&alone, &together, &shared, &part].map(|device| {
        let bytes = |bytes: Option<i64>| bytes.map(|bytes| bytes / GIB);
        let Device { memory_exclusive_bytes, memory_unsplittable_bytes, .. } = device;
        assert_eq!(device.memory_unattributed_bytes, None, "it is somebody's");
        (bytes(*memory_exclusive_bytes), bytes(*memory_unsplittable_bytes))
    });
    assert_eq!(all, [(Some(60), None), (Some(60), None), (None, Some(60)), (None, Some(40))]);
}
