//! An HTTP receiver that answers badly as it is asked to, and counts what it gets by the content of the
//! requests: of OTLP in JSON and of the webhook.

use flate2::read::GzDecoder;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// How a request is answered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Answer {
    Status(u16),
    /// 200, after a while.
    Late(Duration),
    /// The request is taken, and the connection closed in the middle of the answer.
    CutShort,
    /// The connection is closed without an answer, and the request is not taken.
    Closed,
}

/// A request as it came.
#[derive(Debug)]
struct Request {
    content: u64,
    path: String,
    points: u64,
    /// The first time in it.
    time: u64,
    answer: Answer,
}

#[derive(Debug, Default)]
struct Shared {
    requests: Vec<Request>,
    /// The times of the points that were taken, by metric.
    metrics: BTreeMap<String, Vec<u64>>,
    starts_late: usize,
    answers_well: bool,
}

/// What became of all requests.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Points in requests whose last answer was good.
    pub(super) accepted: u64,
    /// Points in those whose last answer was a refusal.
    pub(super) refused: u64,
    /// Requests that were taken once more than once.
    pub(super) repeated: usize,
    /// Answers that were cut short.
    pub(super) cut_short: usize,
    /// Points whose series began after them.
    pub(super) starts_late: usize,
    /// Whether requests of metrics came in the order of their times, apart from repetitions.
    pub(super) is_in_order: bool,
}

/// A running receiver.
#[derive(Debug)]
pub(super) struct Receiver {
    address: SocketAddr,
    shared: Arc<Mutex<Shared>>,
}

impl Receiver {
    /// Answers the n-th request with `script(n)`.
    pub(super) fn start(script: fn(usize) -> Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::<Mutex<Shared>>::default();
        let theirs = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&theirs);
                // A connection that the agent's end cuts is over.
                thread::spawn(move || serve(stream, script, &shared).unwrap_or_default());
            }
        });
        Self { address, shared }
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Requests so far.
    pub(super) fn count(&self) -> usize {
        self.shared().requests.len()
    }

    /// From now on every answer is 200.
    pub(super) fn answer_well(&self) {
        self.shared().answers_well = true;
    }

    /// Names of all metrics that came.
    pub(super) fn metrics(&self) -> BTreeSet<String> {
        self.shared().metrics.keys().cloned().collect()
    }

    /// The times of all points of a metric that were taken.
    pub(super) fn times(&self, metric: &str) -> Vec<u64> {
        self.shared().metrics.get(metric).cloned().unwrap_or_default()
    }

    pub(super) fn outcome(&self) -> Outcome {
        let shared = self.shared();
        let mut last: BTreeMap<u64, (u64, Answer)> = BTreeMap::new();
        let mut final_answers: BTreeMap<u64, usize> = BTreeMap::new();
        let mut times: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for request in &shared.requests {
            let is_new = last.insert(request.content, (request.points, request.answer)).is_none();
            if is_new {
                times.entry(&request.path).or_default().push(request.time);
            }
            if is_taken(request.answer) || is_refused(request.answer) {
                *final_answers.entry(request.content).or_default() += 1;
            }
        }
        let points = |is: fn(Answer) -> bool| {
            last.values().filter(|(_, answer)| is(*answer)).map(|(points, _)| points).sum()
        };
        Outcome {
            accepted: points(is_taken),
            refused: points(is_refused),
            repeated: final_answers.values().map(|count| count - 1).sum(),
            cut_short: shared.requests.iter().filter(|r| r.answer == Answer::CutShort).count(),
            starts_late: shared.starts_late,
            is_in_order: times.get("/v1/metrics").is_none_or(|times| times.is_sorted()),
        }
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_taken(answer: Answer) -> bool {
    matches!(answer, Answer::Status(200) | Answer::Late(_) | Answer::CutShort)
}

fn is_refused(answer: Answer) -> bool {
    matches!(answer, Answer::Status(400 | 413))
}

fn serve(stream: TcpStream, script: fn(usize) -> Answer, shared: &Mutex<Shared>) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    while let Some((path, body)) = read(&mut reader)? {
        let answer = {
            let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
            let answer = if shared.answers_well {
                Answer::Status(200)
            } else {
                script(shared.requests.len())
            };
            take(&mut shared, path, &body, answer);
            answer
        };
        let text = match answer {
            Answer::Status(code) => {
                format!(
                    "HTTP/1.1 {code} As asked\r\nretry-after: 0\r\ncontent-length: 2\r\n\r\n{{}}"
                )
            }
            Answer::Late(wait) => {
                thread::sleep(wait);
                "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}".to_owned()
            }
            Answer::CutShort => "HTTP/1.1 200 OK\r\ncontent-length: 200\r\n\r\n{".to_owned(),
            Answer::Closed => return Ok(()),
        };
        stream.write_all(text.as_bytes())?;
        if answer == Answer::CutShort {
            return Ok(());
        }
    }
    Ok(())
}

/// One request: its path, and its body as it was before compression.
fn read(reader: &mut BufReader<TcpStream>) -> io::Result<Option<(String, Vec<u8>)>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let (mut length, mut is_gzip) = (0, false);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let line = line.trim().to_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
        is_gzip |= line == "content-encoding: gzip";
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    if is_gzip {
        let mut raw = Vec::new();
        GzDecoder::new(&body[..]).read_to_end(&mut raw)?;
        body = raw;
    }
    Ok(Some((path, body)))
}

fn take(shared: &mut Shared, path: String, body: &[u8], answer: Answer) {
    let json: Value = serde_json::from_slice(body).unwrap_or_default();
    let mut hasher = DefaultHasher::new();
    body.hash(&mut hasher);
    let (mut times, mut metrics) = (Vec::new(), BTreeMap::new());
    shared.starts_late += collect(&json, &mut times, &mut metrics);
    if is_taken(answer) {
        for (name, times) in metrics {
            shared.metrics.entry(name).or_default().extend(times);
        }
    }
    let points = times.len() as u64;
    // In the order of their requests; the points of one have several times.
    let time = times.into_iter().max().unwrap_or_default();
    shared.requests.push(Request { content: hasher.finish(), path, points, time, answer });
}

/// The times of all points and records, those of points by metric, and how many starts are later than
/// their point.
fn collect(json: &Value, times: &mut Vec<u64>, metrics: &mut BTreeMap<String, Vec<u64>>) -> usize {
    match json {
        Value::Array(all) => all.iter().map(|one| collect(one, times, metrics)).sum(),
        Value::Object(keys) => {
            // A point or record of OTLP, or of the webhook.
            let nanoseconds = |key| keys.get(key)?.as_str()?.parse::<u64>().ok();
            let (start, time) = (nanoseconds("startTimeUnixNano"), nanoseconds("timeUnixNano"));
            let of_webhook = keys.get("time").and_then(Value::as_str).map(|_| 0);
            times.extend(time.or(of_webhook));
            let before = times.len();
            let within: usize = keys.values().map(|one| collect(one, times, metrics)).sum();
            let is_metric =
                ["gauge", "sum", "histogram"].iter().any(|kind| keys.contains_key(*kind));
            if let Some(name) = keys.get("name").and_then(Value::as_str).filter(|_| is_metric) {
                let own = metrics.entry(name.to_owned()).or_default();
                own.extend(&times[before..]);
            }
            within + usize::from(time.is_some() && start > time)
        }
        _ => 0,
    }
}
