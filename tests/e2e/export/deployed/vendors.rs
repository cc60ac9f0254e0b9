//! What arrives where a vendor would be: paths, keys, and counters as deltas where the vendor wants them.

use super::{VARIABLES, WITHIN, agent};
use gpuwho_tests::collector::Collector;
use gpuwho_tests::collector::deployed::Deployed;
use gpuwho_tests::or_skip;
use gpuwho_tests::until::until;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// OTLP's numbers for it.
const DELTA: u64 = 1;
const CUMULATIVE: u64 = 2;

/// A vendor's exporter.
struct Vendor {
    name: &'static str,
    /// The variable of its address, and what its users' addresses end with.
    address: (&'static str, &'static str),
    /// The headers that say who sends.
    headers: &'static [(&'static str, &'static str)],
    /// Of counters.
    temporality: u64,
}

const VENDORS: &[Vendor] = &[
    Vendor {
        name: "datadog",
        // Its file makes the address of the site's name.
        address: ("", ""),
        headers: &[
            ("dd-api-key", "key"),
            ("dd-otel-metric-config", r#"{"resource_attributes_as_tags": true}"#),
        ],
        temporality: DELTA,
    },
    Vendor {
        name: "grafana-cloud",
        address: ("GRAFANA_CLOUD_URL", "/otlp"),
        headers: &[("authorization", "Basic key")],
        temporality: CUMULATIVE,
    },
    Vendor {
        name: "last9",
        address: ("LAST9_URL", ""),
        headers: &[("authorization", "Basic key")],
        temporality: CUMULATIVE,
    },
    Vendor {
        name: "new-relic",
        address: ("NEW_RELIC_URL", ""),
        headers: &[("api-key", "key")],
        temporality: DELTA,
    },
];

/// A request as it came.
#[derive(Clone, Debug)]
struct Request {
    path: String,
    headers: BTreeMap<String, String>,
    body: Value,
}

impl Request {
    /// The temporality of a counter in it.
    fn temporality(&self, metric: &str) -> Option<u64> {
        let each = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
        let resources = each(&self.body, "resourceMetrics").into_iter();
        let scopes = resources.flat_map(|resource| each(&resource, "scopeMetrics"));
        let mut metrics = scopes.flat_map(|scope| each(&scope, "metrics"));
        metrics.find(|found| found["name"] == metric)?["sum"]["aggregationTemporality"].as_u64()
    }
}

/// Takes every request and keeps it.
fn receiver() -> (String, Arc<Mutex<Vec<Request>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let requests = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&requests);
    // Ends with the test's process.
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let kept = Arc::clone(&kept);
            thread::spawn(move || {
                let mut stream = BufReader::new(stream);
                while let Ok(request) = read(&mut stream) {
                    kept.lock().unwrap().push(request);
                    let answer = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\
                        Content-Length: 2\r\n\r\n{}";
                    stream.get_mut().write_all(answer.as_bytes()).unwrap();
                }
            });
        }
    });
    (url, requests)
}

fn read(stream: &mut BufReader<TcpStream>) -> io::Result<Request> {
    let mut line = || {
        let mut line = String::new();
        stream.read_line(&mut line)?;
        io::Result::Ok(line.trim_end().to_owned())
    };
    let first = line()?;
    let path = first.split(' ').nth(1).ok_or(io::ErrorKind::UnexpectedEof)?.to_owned();
    let mut headers = BTreeMap::new();
    while let Some((key, value)) = line()?.split_once(": ") {
        headers.insert(key.to_lowercase(), value.to_owned());
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok());
    let mut body = vec![0; length.ok_or(io::ErrorKind::InvalidData)?];
    stream.read_exact(&mut body)?;
    Ok(Request { path, headers, body: serde_json::from_slice(&body)? })
}

#[test]
fn each_vendor_gets_metrics_and_events_at_its_paths_with_its_key() {
    let folder = tempfile::tempdir().unwrap();
    // Whether there is a Collector at all.
    drop(or_skip!(Collector::start(&folder.path().join("received"))));
    let (url, requests) = receiver();
    let mut files = vec!["gateway.yaml".to_owned()];
    let mut variables = VARIABLES.to_vec();
    let address = |vendor: &Vendor| format!("{url}/{}{}", vendor.name, vendor.address.1);
    let addresses: Vec<_> = VENDORS.iter().map(address).collect();
    for (vendor, address) in VENDORS.iter().zip(&addresses) {
        files.push(format!("to-{}.yaml", vendor.name));
        // Text, so that the receiver can read it.
        let mut options = vec!["encoding: json".to_owned(), "compression: none".to_owned()];
        match vendor.address.0 {
            "" => options.push(format!("endpoint: {address}")),
            variable => variables.push((variable, address)),
        }
        let option = |option| format!("yaml:exporters::otlp_http/{}::{option}", vendor.name);
        files.extend(options.into_iter().map(option));
    }
    let files: Vec<_> = files.iter().map(String::as_str).collect();
    let gateway = Deployed::start(&folder.path().join("gateway"), &files, &variables).unwrap();
    let sent = folder.path().join("sent.jsonl");
    let (_agent, nvml) = agent(folder.path(), gateway.http_endpoint(), &sent);
    nvml.edit(|text| text + "\n[[event]]\ndevice = 0\ndata = 79\n").unwrap();
    for Vendor { name, address: (_, end), headers, temporality } in VENDORS {
        let find = |signal: &str, is_it: &dyn Fn(&Request) -> bool| {
            let path = format!("/{name}{end}/v1/{signal}");
            let look = || {
                let requests = requests.lock().unwrap();
                requests.iter().find(|request| request.path == path && is_it(request)).cloned()
            };
            until(WITHIN, look).unwrap_or_else(|| panic!("no {path}: {}", gateway.log()))
        };
        let metrics = find("metrics", &|request| request.temporality("gpu.energy").is_some());
        assert_eq!(metrics.temporality("gpu.energy"), Some(*temporality), "{name}");
        let logs = find("logs", &|request| request.body.to_string().contains("gpu.xid"));
        for request in [metrics, logs] {
            for (key, value) in *headers {
                let found = request.headers.get(*key).map(String::as_str);
                assert_eq!(found, Some(*value), "{name}: {key}");
            }
        }
    }
}
