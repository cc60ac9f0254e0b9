//! Tenants who fill the page for Prometheus, or guess its passwords.

use super::usage::{Attacker, Received, cpu_time_of_threads};
use crate::fixture::TRAINER;
use crate::points::ALONE;
use gpuwho_tests::agent::{Agent, Config};
use gpuwho_tests::attacker;
use gpuwho_tests::nvml::FakeNvml;
use gpuwho_tests::prometheus::{free_address, get_with};
use gpuwho_tests::stage::{PodSpec, Stage};
use gpuwho_tests::until::until;
use gpuwho_tests::worker::nodes::environment;
use gpuwho_tests::{or_skip, skip};
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Some readings on a machine under load.
const WITHIN: Duration = Duration::from_mins(1);
/// Pods with a page of wide histograms each: twice as many series as the limit, and as the page takes.
const WIDE: usize = 8;
/// Scrapes of a page that is full.
const SCRAPES: usize = 3;
/// The devices of the scenario.
const DEVICES: usize = 8;
/// Of alice's password, at a cost for which a build for tests takes some 50 ms.
const HASH: &str = "$2b$08$abcdefghijklmnopqrstuuF5bbfI5HHefdD2oziAFkakR7K9wqd/.";
/// Her name and password.
const AUTHORIZATION: &str = "Authorization: Basic YWxpY2U6VSpV\r\n";
/// Wrong passwords: each was once checked, half a minute of them after the last had come.
const PASSWORDS: &str = "600";
/// Readings, one each half second, in which no more than what had a place is checked.
const READINGS: usize = 8;
const MAX_CPU: Duration = Duration::from_millis(1500);

/// The endpoint's threads.
const THREAD: &str = "export:promethe";

fn page(address: &str) -> String {
    get_with(address, "/metrics", AUTHORIZATION).unwrap()
}

/// Whether a scrape has every device.
fn is_whole(page: &str) -> bool {
    let devices = page.lines().filter(|line| line.starts_with("gpu_energy_joules_total{"));
    page.starts_with("HTTP/1.0 200 ") && devices.count() == DEVICES
}

#[test]
fn wide_histograms_and_wrong_passwords_take_no_scrape_from_the_operator() {
    let mut stage = or_skip!(Stage::new());
    let nvml = FakeNvml::install(stage.folder(), "h100x8").unwrap();
    let address = free_address(stage.folder()).unwrap();
    let (points, received) =
        Received::listen(stage.folder(), &["gpuwho.owner.refused", "gpuwho.series"]);
    let config = Config {
        interval: Some("500ms".to_owned()),
        pod_logs: Some(stage.pod_logs()),
        file: Some(points),
        more: format!(
            "{ALONE}[engines]\ninterval = \"2s\"\n[prometheus]\nlisten = {address:?}\n\
             basic_auth_users = {{ alice = {HASH:?} }}\n"
        ),
        ..Config::default()
    };
    let agent = Agent::start(stage.folder(), &config, Some(&nvml)).unwrap();
    let whole = until(WITHIN, || is_whole(&page(&address)).then_some(()));
    let last = || page(&address).chars().take(2000).collect::<String>();
    assert!(whole.is_some(), "{:#?} {}", agent.log(), last());

    let engines: Vec<_> = (0..WIDE)
        .map(|_| {
            let group = stage.pod(&PodSpec { name: "wide", ..TRAINER }).unwrap();
            let groups = group.directories.iter().map(|path| path.to_str().unwrap());
            let arguments: Vec<_> = ["wide", "1", "8000", "0"].into_iter().chain(groups).collect();
            Attacker::start(attacker::command("engines", &arguments).unwrap().envs([environment()]))
        })
        .collect();
    let refused = || received.of(&["gpuwho.owner.refused", "\"series\"", "wide"]);
    let is_full = until(WITHIN, || {
        // Each is whole, whatever there is beside the devices.
        assert!(is_whole(&page(&address)), "{:#?}", agent.log());
        refused().filter(|(count, _)| *count > 0.0)
    });
    assert!(is_full.is_some(), "{received:#?} {:#?}", agent.log());
    for _ in 0..SCRAPES {
        assert!(is_whole(&page(&address)), "{:#?}", agent.log());
    }
    drop(engines);

    let guesser =
        Attacker::start(&mut attacker::command("passwords", &[&address, PASSWORDS]).unwrap());
    let mut scrapes = 0;
    while guesser.count("done") == 0 {
        assert!(is_whole(&page(&address)), "{:#?}", agent.log());
        scrapes += 1;
    }
    let spent = || cpu_time_of_threads(&agent, THREAD);
    let readings = || received.of(&["gpuwho.series"]).map_or(0, |(_, count)| count);
    let (before, first, began) = (spent(), readings(), Instant::now());
    let more = until(WITHIN, || (readings() >= first + READINGS).then_some(()));
    assert!(more.is_some(), "{:#?}", agent.log());
    let after = spent().saturating_sub(before);
    println!(
        "{scrapes} scrapes, {} passwords refused at once; then {after:?} in {:?}",
        guesser.count("busy"),
        began.elapsed()
    );
    assert!(guesser.count("busy") > guesser.count("refused"), "few were refused without a check");
    assert!(after < MAX_CPU, "{after:?} of a processor after the last password");
}

/// The same password at the least cost of use, so that ten checks a second fit into the share of a processor.
const CHEAP_HASH: &str = "$2a$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW";
/// Scrapes of a client that was never accepted, while others guess, and how many of them are answered.
const NEW_SCRAPES: usize = 20;
const ANSWERED: usize = 15;
/// Processor time of the endpoint meanwhile, of a core, in a build for tests: a tenth is the checks'.
const MAX_SHARE: f64 = 0.5;

/// An address of this host that is no loopback address, if it has one.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    // Nothing is sent: the kernel looks for a way.
    socket.connect((Ipv4Addr::new(198, 51, 100, 1), 9)).ok()?;
    socket.local_addr().ok().map(|address| address.ip()).filter(|address| !address.is_loopback())
}

/// A scrape whose client takes its time before it asks.
fn slow_scrape(address: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    thread::sleep(Duration::from_millis(500));
    write!(stream, "GET /metrics HTTP/1.0\r\n{AUTHORIZATION}\r\n")?;
    let mut page = String::new();
    stream.read_to_string(&mut page)?;
    Ok(page)
}

#[test]
fn a_guesser_with_all_loopback_addresses_is_one_client_and_keeps_no_other_waiting() {
    let Some(own) = own_address() else { skip!("an address beside those of loopback") };
    let folder = TempDir::new().unwrap();
    let nvml = FakeNvml::install(folder.path(), "h100x8").unwrap();
    let loopback = free_address(folder.path()).unwrap();
    let port = loopback.rsplit_once(':').unwrap().1;
    let config = Config {
        interval: Some("500ms".to_owned()),
        more: format!(
            "{ALONE}[prometheus]\nlisten = \"0.0.0.0:{port}\"\n\
             basic_auth_users = {{ alice = {CHEAP_HASH:?} }}\n"
        ),
        ..Config::default()
    };
    let agent = Agent::start(folder.path(), &config, Some(&nvml)).unwrap();
    let address = format!("{own}:{port}");
    let whole = until(WITHIN, || is_whole(&page(&address)).then_some(()));
    assert!(whole.is_some(), "{:#?}", agent.log());

    let arguments = [&*loopback, "1000000", "all"];
    let guesser = Attacker::start(&mut attacker::command("passwords", &arguments).unwrap());
    let spent = || cpu_time_of_threads(&agent, THREAD);
    let (before, began) = (spent(), Instant::now());
    let mut answered = 0;
    for number in 1..=NEW_SCRAPES {
        // Each spelling is one that was not checked before.
        let header = AUTHORIZATION.replace("Basic ", &format!("Basic {}", " ".repeat(number)));
        answered +=
            usize::from(is_whole(&get_with(&address, "/metrics", &header).unwrap_or_default()));
        thread::sleep(Duration::from_millis(150));
    }
    let share = spent().saturating_sub(before).div_duration_f64(began.elapsed());
    println!(
        "{answered} of {NEW_SCRAPES} answered beside {} wrong passwords checked and {} not; {share:.2} of a core",
        guesser.count("refused"),
        guesser.count("busy")
    );
    assert!(guesser.count("busy") > guesser.count("refused"), "few were refused without a check");
    assert!(answered >= ANSWERED, "{answered} of {NEW_SCRAPES} scrapes were answered");
    assert!(share < MAX_SHARE, "{share} of a core");
    drop(guesser);

    let _silent = Attacker::start(&mut attacker::command("silent-clients", &[&loopback]).unwrap());
    for _ in 0..SCRAPES {
        let page = slow_scrape(&address);
        assert!(page.as_ref().is_ok_and(|page| is_whole(page)), "{page:?} {:#?}", agent.log());
    }
}
