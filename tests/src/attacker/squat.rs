//! A tenant who listens where the agent or its receiver should.

use super::{Attack, become_nobody};
use crate::worker::act::become_user;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Request, Response, server, service};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use tokio::runtime::Builder;

/// The attacks, by name.
pub(super) const ATTACKS: &[Attack] = &[
    Attack { name: "squat", run: squat },
    Attack { name: "squat-grpc", run: squat_grpc },
    Attack { name: "words", run: words },
];

/// A refusal with words that would move a terminal's cursor and turn its direction round.
const REFUSAL: &str = "{\"partialSuccess\":{\"rejectedDataPoints\":\"1\",\"errorMessage\":\
                       \"\\u202eodd \\u001b[2Jrefusal\\r\\nWARN forged\"}}";

/// A message of gRPC's without content.
const EMPTY: &[u8] = &[0; 5];

/// `ADDRESS SECRET`: answers every request as a receiver does. Writes `listening`, and then a line for each read:
/// `secret` where it has the secret, `bytes` otherwise.
fn squat(arguments: &[String]) -> io::Result<()> {
    let [address, secret] = arguments else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "squat ADDRESS SECRET"));
    };
    listen(address, secret, "")
}

/// `ADDRESS`: the same, and refuses in words ([`REFUSAL`]).
fn words(arguments: &[String]) -> io::Result<()> {
    let [address] = arguments else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "words ADDRESS"));
    };
    listen(address, "nothing is a secret here", REFUSAL)
}

fn listen(address: &str, secret: &str, body: &'static str) -> io::Result<()> {
    become_nobody()?;
    let listener = TcpListener::bind(address)?;
    println!("listening");
    for stream in listener.incoming() {
        let (stream, secret) = (stream?, secret.to_owned());
        thread::spawn(move || serve(stream, secret.as_bytes(), body));
    }
    Ok(())
}

fn serve(mut stream: TcpStream, secret: &[u8], body: &str) {
    let length = body.len();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ";
    let answer = format!("{head}{length}\r\n\r\n{body}");
    let mut bytes = vec![0; 1 << 20];
    let mut request = Vec::new();
    while let Ok(read @ 1..) = stream.read(&mut bytes) {
        request.extend_from_slice(&bytes[..read]);
        let has_secret = bytes[..read].windows(secret.len()).any(|window| window == secret);
        println!("{}", if has_secret { "secret" } else { "bytes" });
        if is_whole(&request) {
            request.clear();
            // Who has gone away needs no answer.
            let _ = stream.write_all(answer.as_bytes());
        }
    }
}

/// Whether a request has its body.
fn is_whole(request: &[u8]) -> bool {
    let end = request.windows(4).position(|window| window == b"\r\n\r\n");
    let whole = end.and_then(|end| {
        let head = String::from_utf8_lossy(request.get(..end)?).to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "))?;
        Some(end + 4 + length.trim().parse::<usize>().ok()? <= request.len())
    });
    whole.unwrap_or(false)
}

/// `ADDRESS SECRET USER`: the same by gRPC, as any user; also a connection's first bytes are `bytes`.
fn squat_grpc(arguments: &[String]) -> io::Result<()> {
    let [address, secret, user] = arguments else {
        let usage = "squat-grpc ADDRESS SECRET USER";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, usage));
    };
    become_user(Some(user.parse().map_err(io::Error::other)?))?;
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    println!("listening");
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        loop {
            let (stream, _) = listener.accept().await?;
            let secret = secret.clone();
            tokio::spawn(async move {
                if stream.peek(&mut [0]).await? > 0 {
                    println!("bytes");
                }
                let service = service::service_fn(move |request| {
                    let secret = secret.clone();
                    async move { Ok::<_, Infallible>(answer_grpc(request, secret).await) }
                });
                let serving = server::conn::http2::Builder::new(TokioExecutor::new());
                // A client that goes away is what is tried.
                let _ = serving.serve_connection(TokioIo::new(stream), service).await;
                Ok::<_, io::Error>(())
            });
        }
    })
}

async fn answer_grpc(
    request: Request<Incoming>,
    secret: String,
) -> Response<impl hyper::body::Body<Data = Bytes, Error = Infallible>> {
    let (head, body) = request.into_parts();
    let has_secret = head.headers.values().any(|value| {
        value.as_bytes().windows(secret.len()).any(|window| window == secret.as_bytes())
    });
    println!("{}", if has_secret { "secret" } else { "bytes" });
    // Who has gone away needs no answer.
    let _ = body.collect().await;
    let status = HeaderName::from_static("grpc-status");
    let trailers = HeaderMap::from_iter([(status, HeaderValue::from_static("0"))]);
    let body = Full::new(Bytes::from_static(EMPTY)).with_trailers(async { Some(Ok(trailers)) });
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}
