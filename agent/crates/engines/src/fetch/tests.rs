use super::media::{MAX_JSON, MAX_PAGE};
use super::*;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::thread::{self, JoinHandle};

/// Longer than any of these take on a busy machine; what must come late waits for it.
const LONG: Duration = Duration::from_secs(5);

/// Answers one connection with what `answer` writes; gives the request's lines.
fn serve(
    answer: impl FnOnce(&mut std::net::TcpStream) -> io::Result<()> + Send + 'static,
) -> (Target, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let thread = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let lines = lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
        // A client that hangs up is what is tried.
        let _ = answer(&mut stream);
        lines
    });
    (Target { place: Place::At(at), path: "/metrics".into(), tls: None, token: None }, thread)
}

fn fetch(target: &Target) -> Result<Vec<u8>, FetchError> {
    let mut fetcher = Fetcher::new(&LargePages::default(), LONG).unwrap();
    fetcher.get((target, Media::Page), None, &|_, _| Some(true)).map(<[u8]>::to_vec)
}

/// What comes of one answer.
fn answered(bytes: impl Into<Vec<u8>>) -> Result<Vec<u8>, FetchError> {
    let bytes = bytes.into();
    let (target, server) = serve(move |stream| stream.write_all(&bytes));
    let page = fetch(&target);
    server.join().unwrap();
    page
}

#[test]
fn a_page_is_what_was_served_and_nothing_compressed_is_asked_for() {
    let text = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\n\r\nup 1\n\xff\n";
    let (target, server) = serve(move |stream| stream.write_all(text));
    assert_eq!(fetch(&target).unwrap(), b"up 1\n\xff\n");
    let lines = server.join().unwrap();
    assert_eq!(lines[0], "GET /metrics HTTP/1.1");
    assert!(lines.contains(&"accept-encoding: identity".to_owned()), "{lines:?}");
    assert!(!lines.iter().any(|line| line.starts_with("authorization")), "{lines:?}");
}

#[test]
fn a_chunked_page_is_whole() {
    let chunks = "4\r\nup 1\r\n1\r\n\n\r\n0\r\n\r\n";
    let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    assert_eq!(answered(format!("{head}{chunks}")).unwrap(), b"up 1\n");
}

#[test]
fn what_is_no_page_is_refused_in_words() {
    let head = |fields: &str| format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\n<html>");
    for (answer, words) in [
        (head("content-type: text/html"), "`text/html`, no page of metrics"),
        (head("content-type: application/json"), "`application/json`"),
        (head("content-encoding: gzip"), "compressed (gzip)"),
        (head("content-length: 8388609"), "more than 8388608 bytes"),
        ("HTTP/1.1 302 Found\r\nlocation: http://10.0.0.1/metrics/\r\n\r\n".into(), "redirects"),
        ("HTTP/1.1 404 Not Found\r\n\r\n".into(), "answers 404"),
        ("SSH-2.0-OpenSSH_9.2\r\n".into(), "no HTTP"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nup".into(), "no HTTP"),
    ] {
        let error = answered(answer).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert_ne!(error.remedy(), "");
    }
}

#[test]
fn only_a_slash_that_is_missing_is_told_of_a_redirect() {
    let redirect = |to: &str| match answered(format!("HTTP/1.1 307 X\r\nlocation: {to}\r\n\r\n")) {
        Err(FetchError::Redirect { adds_slash, .. }) => adds_slash,
        other => panic!("{other:?}"),
    };
    assert!(redirect("http://localhost:8000/metrics/"));
    assert!(!redirect("http://localhost:8000/other"));
}

#[test]
fn a_head_without_end_is_refused() {
    let (target, server) = serve(|stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\n")?;
        loop {
            stream
                .write_all(b"x-more: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n")?;
        }
    });
    assert!(matches!(fetch(&target), Err(FetchError::NotHttp(_))));
    server.join().unwrap();
}

#[test]
fn a_page_without_end_is_refused_at_the_bound() {
    let (target, server) = serve(|stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
        let line = b"a_metric_that_never_ends 1\n".repeat(1000);
        loop {
            stream.write_all(&line)?;
        }
    });
    assert!(matches!(fetch(&target), Err(FetchError::TooLarge(MAX_PAGE))));
    server.join().unwrap();
}

#[test]
fn a_document_about_the_version_is_no_larger_than_real_ones() {
    // `[0,0,...]`: as values in memory it would be thirty-two times as much.
    let document = format!("[{}0]", "0,".repeat(MAX_JSON / 2));
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
    for length in [String::new(), format!("content-length: {}\r\n", document.len())] {
        let answer = format!("{head}{length}\r\n{document}");
        let (target, server) = serve(move |stream| stream.write_all(answer.as_bytes()));
        let mut fetcher = Fetcher::new(&LargePages::default(), LONG).unwrap();
        let got = fetcher.get((&target, Media::Json), None, &|_, _| Some(true)).err();
        assert!(matches!(got, Some(FetchError::TooLarge(MAX_JSON))), "{got:?}");
        server.join().unwrap();
    }
}

#[test]
fn interim_answers_without_end_are_refused_at_the_bound() {
    let (target, server) = serve(|stream| {
        let lines = b"HTTP/1.1 100 Continue\r\n\r\n".repeat(1000);
        loop {
            stream.write_all(&lines)?;
        }
    });
    // Before its time is up.
    assert!(matches!(fetch(&target), Err(FetchError::NotHttp(_))));
    server.join().unwrap();
}

#[test]
fn of_large_pages_one_is_read_at_a_time() {
    let large = LargePages::default();
    let mut fetcher = Fetcher::new(&large, LONG).unwrap();
    let answer = |stream: &mut std::net::TcpStream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
        stream.write_all(&b"up 1\n".repeat(LARGE_PAGE / 4))
    };
    let other = large.0.try_acquire().unwrap();
    let (target, server) = serve(answer);
    let busy = fetcher.get((&target, Media::Page), None, &|_, _| Some(true)).err();
    assert!(matches!(busy, Some(FetchError::Busy)), "{busy:?}");
    server.join().unwrap();
    drop(other);
    let (target, server) = serve(answer);
    assert_eq!(
        fetcher.get((&target, Media::Page), None, &|_, _| Some(true)).unwrap().len(),
        LARGE_PAGE / 4 * 5
    );
    server.join().unwrap();
    assert_eq!(large.0.available_permits(), 0, "held until it is parsed");
    fetcher.finish();
    assert_eq!(large.0.available_permits(), 1, "given back");
    assert!(fetcher.body.capacity() <= KEPT_BYTES, "{}", fetcher.body.capacity());
}

#[test]
fn an_answer_that_never_comes_ends_at_the_deadline() {
    let (ended, wait) = std::sync::mpsc::channel::<()>();
    let (target, server) = serve(move |stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nup 1\n")?;
        // The connection stays open until the client has given up.
        let _ = wait.recv();
        Ok(())
    });
    let within = Duration::from_millis(100);
    let mut fetcher = Fetcher::new(&LargePages::default(), within).unwrap();
    let late = fetcher.get((&target, Media::Page), None, &|_, _| Some(true)).err();
    assert!(matches!(late, Some(FetchError::Late(_))), "{late:?}");
    drop(ended);
    server.join().unwrap();
}

#[test]
fn another_process_than_the_engines_is_sent_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = Place::At(listener.local_addr().unwrap());
    let target = Target { place, path: "/metrics".into(), tls: None, token: None };
    let mut fetcher = Fetcher::new(&LargePages::default(), LONG).unwrap();
    let refused = fetcher.get((&target, Media::Page), None, &|_, _| Some(false)).err();
    assert!(matches!(refused, Some(FetchError::UnknownServer)), "{refused:?}");
    let mut sent = Vec::new();
    listener.accept().unwrap().0.read_to_end(&mut sent).unwrap();
    assert_eq!(sent, Vec::<u8>::new());
}

#[test]
fn who_accepts_late_is_waited_for_and_who_does_only_for_a_request_is_looked_up_again() {
    let page =
        |stream: &mut std::net::TcpStream| stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nup 1\n");
    let looks = std::cell::Cell::new(0);
    let later = |_: &Allowance, _: (SocketAddr, SocketAddr)| {
        looks.set(looks.get() + 1);
        (looks.get() > 3).then_some(true)
    };
    let (target, server) = serve(page);
    let mut fetcher = Fetcher::new(&LargePages::default(), LONG).unwrap();
    fetcher.get((&target, Media::Page), None, &later).unwrap();
    assert_eq!((looks.get(), server.join().unwrap().len() > 1), (4, true));
    // Nobody has accepted it by half the time: then the answer decides.
    let within = Duration::from_secs(1);
    let mut fetcher = Fetcher::new(&LargePages::default(), within).unwrap();
    let (target, server) = serve(page);
    let refused = fetcher.get((&target, Media::Page), None, &|_, _| None).err();
    assert!(matches!(refused, Some(FetchError::UnknownServer)), "{refused:?}");
    server.join().unwrap();
}

#[test]
fn looks_at_long_lists_are_few_and_their_end_is_no_server() {
    let looks = std::cell::Cell::new(0);
    // Nobody ever accepts it, and there are 19,000 sockets.
    let never = |allowance: &Allowance, _: (SocketAddr, SocketAddr)| {
        looks.set(looks.get() + 1);
        allowance.take(19_000);
        None
    };
    let (target, server) = serve(|_| Ok(()));
    let mut fetcher = Fetcher::new(&LargePages::default(), LONG).unwrap();
    let refused = fetcher.get((&target, Media::Page), None, &never).err();
    assert!(matches!(refused, Some(FetchError::NotHttp(_))), "{refused:?}");
    assert_eq!(looks.get(), 4);
    server.join().unwrap();
    // Its processes have more sockets than are looked at: nothing is sent.
    let heavy = |allowance: &Allowance, _: (SocketAddr, SocketAddr)| {
        allowance.take(MAX_LOOKED_AT);
        Some(false)
    };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = Target { place: Place::At(listener.local_addr().unwrap()), ..target };
    let refused = fetcher.get((&target, Media::Page), None, &heavy).err();
    assert!(matches!(refused, Some(FetchError::TooManySockets)), "{refused:?}");
    let mut sent = Vec::new();
    listener.accept().unwrap().0.read_to_end(&mut sent).unwrap();
    assert_eq!(sent, Vec::<u8>::new());
}

#[test]
fn a_host_is_asked_by_its_name_with_the_token_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "s3cret\n").unwrap();
    let (target, server) = serve(|stream| stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nup 1\n"));
    let Place::At(at) = target.place else { panic!() };
    let place = Place::Host("127.0.0.1".into(), at.port());
    let target = Target { place, token: Some(file.clone()), ..target };
    assert_eq!(fetch(&target).unwrap(), b"up 1\n");
    let lines = server.join().unwrap();
    assert!(lines.contains(&"authorization: Bearer s3cret".to_owned()), "{lines:?}");
    assert!(lines.contains(&format!("host: 127.0.0.1:{}", at.port())), "{lines:?}");
    std::fs::remove_file(&file).unwrap();
    let (target, server) = serve(|_| Ok(()));
    let target = Target { token: Some(file), ..target };
    let error = fetch(&target).unwrap_err();
    assert!(matches!(error, FetchError::Token { .. }), "{error}");
    server.join().unwrap();
}

#[test]
fn nobody_who_listens_is_said_so() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let place = Place::At(gone);
    let target = Target { place, path: "/metrics".into(), tls: None, token: None };
    let error = fetch(&target).unwrap_err();
    assert!(matches!(error, FetchError::Connect(_)), "{error}");
}

/// Serves one connection over TLS with a new certificate for `localhost`; gives its CA's file, which
/// goes with the folder, and the request's lines.
fn serve_tls(folder: &Path) -> (u16, PathBuf, JoinHandle<Vec<String>>) {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let names = CertificateParams::new(["localhost".to_owned()]).unwrap();
    let certificate = names.signed_by(&key, &authority).unwrap();
    let ca = folder.join("ca.pem");
    std::fs::write(&ca, authority.pem()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let key = rustls::pki_types::PrivatePkcs8KeyDer::from(key.serialize_der());
    let config = builder.with_single_cert(vec![certificate.der().clone()], key.into()).unwrap();
    let listener = TcpListener::bind(("localhost", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let connection = rustls::ServerConnection::new(Arc::new(config)).unwrap();
        let mut stream = BufReader::new(rustls::StreamOwned::new(connection, stream));
        let lines = stream.by_ref().lines().map_while(Result::ok);
        let lines: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
        // One that does not trust the certificate has hung up.
        let answer =
            b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 5\r\n\r\nup 1\n";
        let _ = stream.get_mut().write_all(answer);
        lines
    });
    (port, ca, thread)
}

#[test]
fn a_page_over_tls_is_read_with_its_ca_and_the_token_is_sent_to_nobody_else() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    std::fs::write(&token, "secret\n").unwrap();
    let target = |port, ca| Target {
        place: Place::Host("localhost".into(), port),
        path: "/metrics".into(),
        tls: Some(TlsFiles { ca: Some(ca), client: None }),
        token: Some(token.clone()),
    };
    let (port, ca, server) = serve_tls(folder.path());
    assert_eq!(fetch(&target(port, ca.clone())).unwrap(), b"up 1\n");
    let lines = server.join().unwrap();
    assert!(lines.contains(&"authorization: Bearer secret".to_owned()), "{lines:?}");
    // Another server, of another CA than the one whose file is kept.
    let kept = std::fs::read(&ca).unwrap();
    let (port, ca, server) = serve_tls(folder.path());
    std::fs::write(&ca, kept).unwrap();
    let refused = fetch(&target(port, ca)).unwrap_err();
    assert!(matches!(refused, FetchError::Tls(_)), "{refused}");
    assert_eq!(server.join().unwrap(), Vec::<String>::new());
}
