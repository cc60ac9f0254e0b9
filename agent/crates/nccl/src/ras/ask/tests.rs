use super::*;
use std::net::TcpListener;
use std::thread;

const ANSWER: &str =
    include_str!("../../../../../../tests/fixtures/nccl-ras/user-guide-2.29.1.json");

/// The result of a client against this server.
fn served(
    within: Duration,
    serve: impl FnOnce(BufReader<TcpStream>) + Send + 'static,
) -> Result<Answer, AskError> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let server = thread::spawn(move || serve(BufReader::new(listener.accept().unwrap().0)));
    let talk = Talk::begin(TcpStream::connect(at).unwrap(), Instant::now() + within, LIMIT);
    let answer = talk.and_then(|talk| talk.status(Instant::now() + within, &LocalNames::default()));
    // A server that writes for ever ends when the client closes.
    server.join().unwrap();
    answer
}

/// Replies to each line, then sends the document.
fn replies(
    lines: &'static [&'static str],
    document: impl FnOnce(&mut TcpStream) + Send + 'static,
) -> impl FnOnce(BufReader<TcpStream>) + Send + 'static {
    move |mut client| {
        for line in lines {
            let mut asked = String::new();
            client.read_line(&mut asked).unwrap();
            client.get_mut().write_all(line.as_bytes()).unwrap();
        }
        let mut asked = String::new();
        client.read_line(&mut asked).unwrap();
        assert_eq!(asked, "VERBOSE STATUS\n");
        document(client.get_mut());
    }
}

const NEW: &[&str] = &["SERVER PROTOCOL 2\n", "OK\n", "OK\n"];
const OLD: &[&str] = &["SERVER PROTOCOL 2\n", "OK\n", "ERROR: Unknown command SET FORMAT json\n"];
const LONG: Duration = Duration::from_secs(20);
/// A small limit, for the tests' speed.
const LIMIT: u64 = 2 << 20;

#[test]
fn a_library_with_json_is_queried_for_it() {
    let answer = served(LONG, replies(NEW, |to| to.write_all(ANSWER.as_bytes()).unwrap()));
    assert_eq!(answer.unwrap().late_count, 1);
}

#[test]
fn an_older_library_is_greeted_and_never_queried() {
    let (heard, received) = std::sync::mpsc::channel();
    let error = served(LONG, move |mut client| {
        for reply in OLD {
            let mut asked = String::new();
            client.read_line(&mut asked).unwrap();
            client.get_mut().write_all(reply.as_bytes()).unwrap();
        }
        let mut rest = String::new();
        client.read_to_string(&mut rest).unwrap();
        heard.send(rest).unwrap();
    });
    assert!(matches!(error, Err(AskError::TooOld)), "{error:?}");
    assert_eq!(received.recv().unwrap(), "");
}

#[test]
fn a_silent_or_incomplete_server_times_out() {
    let short = Duration::from_millis(100);
    let until_closed = |mut client: BufReader<TcpStream>| {
        let mut all = Vec::new();
        let _ = client.read_to_end(&mut all);
    };
    let error = served(short, until_closed).unwrap_err();
    assert_eq!(error.outcome(), RasOutcome::Late, "{error}");
    let half = replies(NEW, |to| {
        to.write_all(&ANSWER.as_bytes()[..300]).unwrap();
        let mut all = Vec::new();
        let _ = to.read_to_end(&mut all);
    });
    let error = served(short, half).unwrap_err();
    assert_eq!(error.outcome(), RasOutcome::Late, "{error}");
}

#[test]
fn slow_bytes_do_not_extend_the_timeout() {
    let drip = replies(NEW, |to| {
        while to.write_all(b" ").is_ok() {
            thread::yield_now();
        }
    });
    let error = served(Duration::from_millis(200), drip).unwrap_err();
    let is_bounded = matches!(error.outcome(), RasOutcome::Late | RasOutcome::TooLong);
    assert!(is_bounded, "{error}");
}

#[test]
fn an_endless_answer_is_bounded() {
    let blanks = |to: &mut TcpStream| {
        let block = vec![b' '; 65_536];
        while to.write_all(&block).is_ok() {}
    };
    let error = served(LONG, replies(NEW, blanks)).unwrap_err();
    assert_eq!(error.outcome(), RasOutcome::TooLong, "{error}");
    let greeting = |mut client: BufReader<TcpStream>| {
        let block = vec![b'x'; 65_536];
        while client.get_mut().write_all(&block).is_ok() {}
    };
    let error = served(LONG, greeting).unwrap_err();
    assert_eq!(error.outcome(), RasOutcome::NotUnderstood, "{error}");
}

#[test]
fn another_service_is_rejected_and_its_text_is_sanitised() {
    let web = |mut client: BufReader<TcpStream>| {
        client.get_mut().write_all(b"HTTP/1.1 400\x1b[31m Bad\r\n").unwrap();
    };
    let error = served(LONG, web).unwrap_err();
    assert_eq!(error.to_string(), "`HTTP/1.1 400[31m Bad` is not an answer of NCCL");
}

#[test]
fn a_closed_port_is_unreachable() {
    let at = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let until = Instant::now() + LONG;
    let error = greet(at, None, until).map(|_| ()).unwrap_err();
    assert_eq!(error.outcome(), RasOutcome::Unreachable, "{error}");
}
