use super::*;
use crate::who::{Device, Process};
use gpuwho_owners::attribute::view::OwnerView;
use gpuwho_pipeline::event::recent::EventView;
use std::io::Read as _;
use std::sync::Arc;

struct Fixed;

impl Answer for Fixed {
    fn who(&self) -> HostReport {
        let owner = |pid, uid| OwnerView { pid, uid: Some(uid), ..OwnerView::default() };
        let process = |pid, uid| Process { owner: owner(pid, uid), ..Process::default() };
        let processes = vec![process(1, 0), process(2, 65_534)];
        let devices = vec![Device { processes, ..Device::default() }];
        HostReport { host: "node1".into(), devices, ..HostReport::default() }
    }

    fn events(&self, viewer: Option<u32>) -> EventReport {
        let title = |uid: u32| EventView { name: format!("seen by {uid}"), ..EventView::default() };
        EventReport { events: viewer.map(title).into_iter().collect(), ..EventReport::default() }
    }

    fn health(&self) -> HealthReport {
        HealthReport { host: "node1".into(), ..HealthReport::default() }
    }

    fn receipts(&self, name: &str, viewer: Option<u32>) -> ReceiptReport {
        ReceiptReport { host: format!("{name} seen by {viewer:?}"), ..ReceiptReport::default() }
    }

    fn release(&self, length: Duration) -> String {
        format!("released for {length:?}")
    }

    fn resume(&self) -> String {
        "resumed".into()
    }

    fn forget(&self, uuid: &str) -> Result<String, String> {
        Err(format!("no {uuid}"))
    }
}

const ALL: Access = Access::Public { show_others: false };

/// Serves both sockets.
fn served(run: &Path) -> [PathBuf; 2] {
    let answer: Arc<dyn Answer> = Arc::new(Fixed);
    let listeners = listen(run, Settings::default()).unwrap();
    for (listener, access) in listeners.into_iter().zip([ALL, Access::Admin]) {
        let answer = Arc::clone(&answer);
        thread::spawn(move || serve(&listener, access, &*answer, Duration::from_hours(1)));
    }
    [run.join(SOCKET), run.join(ADMIN_SOCKET)]
}

#[test]
fn who_is_answered_over_both_sockets() {
    let dir = tempfile::tempdir().unwrap();
    for socket in served(dir.path()) {
        let who = Box::new(Fixed.who());
        assert_eq!(ask(&socket, &Request::Who).unwrap(), Reply::Who { who });
    }
}

#[test]
fn commands_are_done_over_the_admins_socket_alone() {
    let dir = tempfile::tempdir().unwrap();
    let [public, admin] = served(dir.path());
    let modes =
        [&public, &admin].map(|socket| fs::metadata(socket).unwrap().permissions().mode() & 0o777);
    assert_eq!(modes, [0o666, 0o600]);
    let uuid = || "GPU-1".to_owned();
    for (request, done) in [
        (Request::Release { seconds: 600 }, Reply::Done { message: "released for 600s".into() }),
        (Request::Resume, Reply::Done { message: "resumed".into() }),
        (Request::Forget { uuid: uuid() }, Reply::Refused { reason: "no GPU-1".into() }),
    ] {
        let refused = ask(&public, &request).unwrap();
        let Reply::Refused { reason } = refused else { panic!("{refused:?}") };
        assert!(reason.contains(ADMIN_SOCKET), "{reason}");
        assert_eq!(ask(&admin, &request).unwrap(), done);
    }
}

#[test]
fn a_request_that_is_not_one_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let [socket, _] = served(dir.path());
    let reply_to = |request: &[u8]| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(request).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let answer = reply_to(b"{\"ask\":\"reboot\"}\n");
    assert!(answer.contains("refused") && answer.contains("reboot"), "{answer}");
    assert!(reply_to(b"").contains("refused"));
    assert!(reply_to(&[b'['; 4096]).contains("refused"));
    assert!(reply_to(b"\xff\xfe\n").contains("refused"));
}

#[test]
fn a_silent_client_is_disconnected() {
    let dir = tempfile::tempdir().unwrap();
    let [socket, _] = served(dir.path());
    let mut silent = UnixStream::connect(&socket).unwrap();
    silent.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    assert_eq!(silent.read(&mut [0; 16]).unwrap(), 0);
}

#[test]
fn a_second_agent_is_refused_while_the_first_runs() {
    let dir = tempfile::tempdir().unwrap();
    served(dir.path());
    let error = listen(dir.path(), Settings::default()).unwrap_err().to_string();
    assert!(error.starts_with("another gpuwho agent is running"), "{error}");
}

#[test]
fn a_dead_agent_s_sockets_are_replaced() {
    let dir = tempfile::tempdir().unwrap();
    drop(listen(dir.path(), Settings::default()).unwrap());
    let settings = Settings { mode: 0o660, ..Settings::default() };
    assert!(listen(dir.path(), settings).is_ok());
    let mode = fs::metadata(dir.path().join(SOCKET)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
}

#[test]
fn a_missing_agent_is_reported_with_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let error = ask(&dir.path().join(SOCKET), &Request::Who).unwrap_err().to_string();
    assert!(error.ends_with("start one with `gpuwho agent`"), "{error}");
}

#[test]
fn a_socket_is_left_once_nobody_asks_and_answers_the_next_client_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let [listener, _] = listen(dir.path(), Settings::default()).unwrap();
    let socket = dir.path().join(SOCKET);
    for _ in 0..2 {
        thread::scope(|scope| {
            scope.spawn(|| serve(&listener, ALL, &Fixed, Duration::from_millis(100)));
            assert!(matches!(ask(&socket, &Request::Who), Ok(Reply::Who { .. })));
        });
    }
}
