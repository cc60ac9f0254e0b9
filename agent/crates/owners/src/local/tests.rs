use super::fake::{Call, Server};
use super::*;
use std::sync::Mutex;
use std::time::Instant;
use tonic::Code;

const METHOD: &str = "/test.Test/Ask";
const SOON: Duration = Duration::from_millis(60);
const LATE: Duration = Duration::from_secs(20);

#[derive(Clone, PartialEq, prost::Message)]
struct Words {
    #[prost(string, tag = "1")]
    text: String,
}

fn words(text: &str) -> Words {
    Words { text: text.to_owned() }
}

fn socket() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s.sock");
    (dir, socket)
}

fn wait<F: Future>(work: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(work)
}

fn cause(socket: &Path, deadline: Duration) -> Cause {
    let grpc = Grpc::new(socket.to_owned());
    let answer = wait(grpc.unary::<_, Words>(METHOD, words("who"), deadline));
    let error = answer.unwrap_err();
    assert_eq!((error.socket.as_path(), error.call.as_str()), (socket, METHOD));
    error.cause
}

#[test]
fn a_question_is_answered() {
    let (_dir, socket) = socket();
    let _server = Server::grpc(&socket, |call: Call| {
        assert_eq!((call.path.as_str(), call.question::<Words>()), (METHOD, words("who")));
        call.reply.only(&words("me"));
    });
    let grpc = Grpc::new(socket);
    assert_eq!(wait(grpc.unary(METHOD, words("who"), LATE)), Ok(words("me")));
}

#[test]
fn an_absent_socket_and_one_without_a_listener_are_distinguished() {
    let (_dir, socket) = socket();
    assert_eq!(cause(&socket, LATE), Cause::Absent);
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    assert_eq!(cause(&socket, LATE), Cause::Refused);
}

#[test]
fn a_call_that_hangs_ends_at_its_deadline_and_delays_no_other_call() {
    let (_dir, socket) = socket();
    let hung = Mutex::new(Vec::new());
    let _server = Server::grpc(&socket, move |call: Call| {
        if call.question::<Words>() == words("hang") {
            hung.lock().unwrap().push(call.reply);
        } else {
            call.reply.only(&words("me"));
        }
    });
    let grpc = Grpc::new(socket.clone());
    wait(async {
        let hangs = grpc.unary::<_, Words>(METHOD, words("hang"), SOON);
        let answered = grpc.unary::<_, Words>(METHOD, words("who"), LATE);
        let (hangs, answered) = tokio::join!(hangs, answered);
        assert_eq!(hangs, Err(LocalError::late(&socket, METHOD, SOON)));
        assert_eq!(answered, Ok(words("me")));
    });
}

#[test]
fn an_error_has_the_message_of_the_server() {
    let (_dir, socket) = socket();
    let codes = [Code::Unimplemented, Code::NotFound, Code::PermissionDenied, Code::Internal];
    let next = Mutex::new(codes.into_iter());
    let _server = Server::grpc(&socket, move |call: Call| {
        call.reply.end(next.lock().unwrap().next().unwrap(), "because\nso");
    });
    let answered = Cause::Answered { status: "Internal".into(), message: "becauseso".into() };
    for expected in [Cause::Unimplemented, Cause::NotFound, Cause::Denied, answered] {
        assert_eq!(cause(&socket, LATE), expected);
    }
}

#[test]
fn an_invalid_message_is_refused() {
    let (_dir, socket) = socket();
    let _server = Server::grpc(&socket, |call: Call| {
        call.reply.bytes(&[0xff; 9]);
        call.reply.end(Code::Ok, "");
    });
    let cause = cause(&socket, LATE);
    assert!(matches!(&cause, Cause::Answered { status, .. } if status == "Internal"), "{cause:?}");
}

#[test]
fn a_server_of_another_protocol_is_an_error() {
    let (_dir, socket) = socket();
    let _server = Server::noise(&socket, b"220 mail.example ESMTP\r\n");
    let cause = cause(&socket, LATE);
    assert!(matches!(cause, Cause::Lost(_)), "{cause:?}");
}

#[test]
fn an_answer_above_the_bound_is_refused() {
    let (_dir, socket) = socket();
    let large = vec![0; ANSWER_BYTES + 1];
    let _server = Server::grpc(&socket, move |call: Call| {
        call.reply.bytes(&large);
        call.reply.end(Code::Ok, "");
    });
    assert_eq!(cause(&socket, LATE), Cause::TooLarge(ANSWER_BYTES));
}

#[test]
fn a_server_that_was_restarted_is_connected_to_again() {
    let (_dir, socket) = socket();
    let answer = |text: &'static str| move |call: Call| call.reply.only(&words(text));
    let grpc = Grpc::new(socket.clone());
    wait(async {
        let server = Server::grpc(&socket, answer("one"));
        assert_eq!(grpc.unary(METHOD, words("who"), LATE).await, Ok(words("one")));
        drop(server);
        let _server = Server::grpc(&socket, answer("two"));
        assert_eq!(grpc.unary(METHOD, words("who"), LATE).await, Ok(words("two")));
    });
}

#[test]
fn answers_come_one_by_one_until_the_server_ends_them() {
    let (_dir, socket) = socket();
    let _server = Server::grpc(&socket, |call: Call| {
        call.reply.answer(&words("one"));
        call.reply.answer(&words("two"));
        call.reply.end(Code::Ok, "");
    });
    let mut answers = Grpc::new(socket).stream::<_, Words>(METHOD, words("all"));
    wait(async {
        assert_eq!(answers.next().await, Ok(Some(words("one"))));
        assert_eq!(answers.next().await, Ok(Some(words("two"))));
        assert_eq!(answers.next().await, Ok(None));
    });
}

#[test]
fn a_stream_can_be_dropped_while_it_waits_and_continued_later() {
    let (_dir, socket) = socket();
    let (give, replies) = std::sync::mpsc::channel();
    let _server = Server::grpc(&socket, move |call: Call| give.send(call.reply).unwrap());
    let mut answers = Grpc::new(socket).stream::<_, Words>(METHOD, words("all"));
    wait(async {
        assert!(tokio::time::timeout(SOON, answers.next()).await.is_err());
        assert!(replies.recv().unwrap().answer(&words("late")));
        assert_eq!(answers.next().await, Ok(Some(words("late"))));
    });
}

#[test]
fn http_answers_are_read_whole_and_in_bounds() {
    let (_dir, socket) = socket();
    let _server = Server::http(&socket, |path| match path {
        "/well" => Some((200, b"yes".to_vec())),
        "/large" => Some((200, vec![b'x'; ANSWER_BYTES + 1])),
        "/broken" => Some((500, b"{\"message\":\"no\"}".to_vec())),
        "/hang" => None,
        _ => Some((404, Vec::new())),
    });
    let get = |path: &str, deadline| {
        let answer = wait(http_get(&socket, path, deadline));
        answer.map_err(|error| error.cause)
    };
    assert_eq!(get("/well", LATE), Ok(Bytes::from_static(b"yes")));
    assert_eq!(get("/large", LATE), Err(Cause::TooLarge(ANSWER_BYTES)));
    let status = "500 Internal Server Error".into();
    let broken = Cause::Answered { status, message: "{\"message\":\"no\"}".into() };
    assert_eq!(get("/broken", LATE), Err(broken));
    assert_eq!(get("/none", LATE), Err(Cause::NotFound));
    assert_eq!(get("/hang", SOON), Err(Cause::TimedOut(SOON)));
}

#[test]
fn an_error_names_the_socket_the_call_and_the_remedy() {
    let socket = Path::new("/run/containerd/containerd.sock");
    let report = LocalError::late(socket, METHOD, LATE).report();
    let reason = "/run/containerd/containerd.sock: /test.Test/Ask: no answer within 20s";
    let remedy = "see the log of this socket's server; the agent continues without it";
    let hung = gpuwho_model::catalog::agent::SourceState::Hung;
    assert_eq!(report, gpuwho_model::status::Report::of(hung, reason, remedy));
}

#[test]
fn a_deadline_is_kept_when_the_server_takes_the_connection_and_nothing_else() {
    let (_dir, socket) = socket();
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let began = Instant::now();
    assert_eq!(cause(&socket, SOON), Cause::TimedOut(SOON));
    assert!(began.elapsed() < LATE);
}
