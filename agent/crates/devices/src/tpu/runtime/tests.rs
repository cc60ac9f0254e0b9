use super::wire::{AttrValue, Attribute, Gauge, Metric, MetricRequest, MetricResponse, TpuMetric};
use super::*;
use crate::sysfs::fake::values;
use gpuwho_model::ids::GpuUuid;
use gpuwho_owners::attribute::Opened;
use gpuwho_owners::attribute::{Evidence, fake};
use gpuwho_owners::local::fake::{Call, Server};
use rustix::process::geteuid;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

fn chip(index: u32, group: u32) -> GpuInfo {
    GpuInfo {
        nodes: vec![format!("vfio/{group}")],
        model: Some("Google TPU v5e".to_owned()),
        ..GpuInfo::new(GpuUuid::new(&format!("TPU-{index}")), VENDOR.name, index)
    }
}

const GIB: f64 = 1_073_741_824.0;

fn devices(numbers: &[(u64, f64)]) -> Numbers {
    numbers.iter().copied().collect()
}

#[test]
fn a_claim_counts_only_of_exactly_the_chips_that_the_process_has_open() {
    let (one, two, three) = (chip(1, 3), chip(2, 7), chip(3, 9));
    let own = [&one, &two];
    let numbered = |ids: &[u32]| {
        let numbers = ids.iter().map(|id| (u64::from(*id), f64::from(*id))).collect();
        by_chip(&numbers, &own).map(|all| all.concat())
    };
    assert_eq!(numbered(&[1, 2]), Some(vec![1.0, 2.0]), "numbered over the host");
    assert_eq!(numbered(&[0, 1]), Some(vec![0.0, 1.0]), "numbered over its own");
    for claim in [&[0, 2][..], &[2, 3], &[1], &[0, 1, 2], &[], &[4, 5, 6, 7], &[1, 2, 3, 4, 5]] {
        assert_eq!(numbered(claim), None, "{claim:?}");
    }
    let cores = devices(&[(2, 1.0), (3, 2.0), (4, 3.0), (5, 4.0)]);
    let halves = by_chip(&cores, &[&one, &two]);
    assert_eq!(halves, Some(vec![vec![1.0, 2.0], vec![3.0, 4.0]]), "two devices a chip");
    assert_eq!(by_chip(&devices(&[(0, 1.0)]), &[]), None);
    assert!(by_chip(&devices(&[(3, 1.0)]), &[&three]).is_some());
}

#[test]
fn a_claim_beyond_what_a_chip_can_have_is_left_out() {
    let chip = chip(0, 0);
    let shared = |duty: f64, used: f64, total: f64| {
        let numbers = [(DUTY, duty), (USED, used), (TOTAL, total), (BANDWIDTH, 50.0)];
        let numbers = numbers.map(|(name, number)| (name, devices(&[(0, number)])));
        values(&shared_out(&BTreeMap::from(numbers), &[&chip])[0])
    };
    let whole = shared(85.5, 4.0 * GIB, 16.0 * GIB);
    let expected = [
        ("gpu.utilization{general}", 0.855),
        ("gpu.memory.bandwidth.utilization", 0.5),
        ("gpu.memory.limit", 16.0 * GIB),
        ("gpu.memory.usage{used}", 4.0 * GIB),
        ("gpu.memory.usage{free}", 12.0 * GIB),
    ];
    assert_eq!(whole, expected.map(|(name, number)| (name.to_owned(), number)).into());
    let names = |values: BTreeMap<String, f64>| values.into_keys().collect::<Vec<_>>().join(" ");
    let only = "gpu.memory.bandwidth.utilization";
    assert_eq!(names(shared(101.0, 1.0, 17.0 * GIB)), only);
    assert_eq!(names(shared(f64::NAN, -1.0, -5.0)), only);
    let no_usage = "gpu.memory.bandwidth.utilization gpu.memory.limit gpu.utilization{general}";
    assert_eq!(names(shared(0.0, 3.0 * GIB, 2.0 * GIB)), no_usage);
}

/// Answers as libtpu does, for these devices.
fn libtpu(call: Call, ids: &[i64]) {
    let name = call.question::<MetricRequest>().metric_name;
    let (double, int) = match name.as_str() {
        DUTY => (Some(25.0), None),
        USED => (None, Some(1 << 30)),
        TOTAL => (None, Some(16 << 30)),
        _ => return call.reply.end(tonic::Code::NotFound, "no such metric"),
    };
    let one = |id: &i64| {
        let value = Some(AttrValue { string_attr: None, int_attr: Some(*id) });
        let attribute = Some(Attribute { key: "device-id".to_owned(), value });
        let as_double = double.map(|percent| percent + f64::from(u8::try_from(*id).unwrap()));
        Metric { attribute, gauge: Some(Gauge { as_double, as_int: int }) }
    };
    let metrics = ids.iter().map(one).collect();
    call.reply.only(&MetricResponse { metric: Some(TpuMetric { name, metrics }) });
}

/// This process as one that has two chips open.
fn asker() -> Asker {
    let paths = Paths::default();
    let ownership = Ownership::new(&paths);
    let process = Living::find(&paths, std::process::id()).unwrap().key;
    for group in [3, 7] {
        ownership.observe(Evidence::Opened(Opened {
            node: format!("/dev/vfio/{group}").into(),
            ..fake::opened(process, 5, 9)
        }));
    }
    let inventory = Arc::new(Inventory::default());
    for (index, group) in [(0, 1), (1, 3), (2, 7)] {
        inventory.put(chip(index, group));
    }
    Asker::new(paths, ownership, inventory)
}

impl Asker {
    /// The values of one round, whoever has just had a turn.
    fn answers(&mut self) -> BTreeMap<String, Vec<WireValue>> {
        self.turns.clear();
        let mut answers = BTreeMap::new();
        self.ask_all(|node, (_, values)| drop(answers.insert(node, values)));
        answers
    }

    /// Processes that are left alone.
    fn paused(&self) -> usize {
        self.silent.values().filter(|until| **until > Instant::now()).count()
    }
}

/// Ports are the host's: tests that listen on them run one after the other.
static PORT: Mutex<()> = Mutex::new(());

/// A free port of libtpu's.
fn listener() -> TcpListener {
    PORTS.rev().find_map(|port| TcpListener::bind(("127.0.0.1", port)).ok()).unwrap()
}

#[test]
fn what_libtpu_serves_goes_to_the_chips_of_its_process_and_to_no_other() {
    let _one = PORT.lock();
    let server = Server::grpc_on(listener(), |call| libtpu(call, &[0, 1]));
    let served = asker().answers();
    assert_eq!(served.keys().collect::<Vec<_>>(), ["vfio/3", "vfio/7"]);
    assert_eq!(values(&served["vfio/7"]).get("gpu.utilization{general}"), Some(&0.26));
    assert_eq!(values(&served["vfio/3"]).get("gpu.memory.limit"), Some(&17_179_869_184.0));
    drop(server);
    // It says that it has the whole host.
    let _server = Server::grpc_on(listener(), |call| libtpu(call, &[0, 1, 2]));
    let served = asker().answers();
    assert!(served.values().all(Vec::is_empty), "{served:#?}");
}

#[test]
fn a_port_that_hangs_or_talks_nonsense_gives_nothing_and_is_left_alone() {
    let _one = PORT.lock();
    let silent = listener();
    let mut asker = asker();
    assert!(asker.answers().is_empty());
    assert_eq!(asker.paused(), 1);
    drop(silent);
    let noisy = listener();
    let talker = thread::spawn(move || {
        let (mut stream, _) = noisy.accept().unwrap();
        // The other end hangs up as soon as it sees that this is no HTTP/2.
        while stream.write_all(&[b'x'; 4096]).is_ok() {}
    });
    assert!(asker.answers().is_empty(), "left alone, so not even asked");
    asker.silent.clear();
    assert!(asker.answers().is_empty());
    assert_eq!(asker.paused(), 1);
    talker.join().unwrap();
    let _large = Server::grpc_on(listener(), |call| {
        call.reply.bytes(&vec![0; 1 << 20]);
        call.reply.end(tonic::Code::Ok, "");
    });
    asker.silent.clear();
    assert!(asker.answers().is_empty(), "larger than any answer");
}

/// A process of another user.
fn child(user: u32) -> (std::process::Child, ProcKey) {
    let child = Command::new("sleep").arg("600").uid(user).spawn().unwrap();
    let process = Living::find(&Paths::default(), child.id()).unwrap().key;
    (child, process)
}

#[test]
fn an_owners_processes_without_end_take_no_turn_of_another_owner() {
    let _one = PORT.lock();
    if !geteuid().is_root() {
        println!("skipped: needs root, to start processes of another user");
        return;
    }
    let _server = Server::grpc_on(listener(), |call| libtpu(call, &[0, 1]));
    let mut asker = asker();
    let mut children: Vec<_> = (0..40).map(|_| child(65_534)).collect();
    for (_, process) in &children {
        asker.ownership.observe(Evidence::Opened(Opened {
            node: "/dev/vfio/1".into(),
            uid: 65_534,
            ..fake::opened(*process, 77, 9)
        }));
    }
    let rounds: Vec<_> = (0..3).map(|_| (asker.answers().len(), asker.silent.len())).collect();
    // Each round asks others of them, and has the first owner's values.
    assert_eq!(rounds, [(2, 16), (2, 32), (2, 40)]);
    assert_eq!(asker.turns.len(), 2, "one turn an owner");

    // A turn is followed by a rest.
    let later = Instant::now() + Duration::from_mins(1);
    asker.turns.values_mut().for_each(|(_, next)| *next = later);
    asker.ask_all(|node, _| panic!("{node} was asked for"));
    for (child, _) in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
