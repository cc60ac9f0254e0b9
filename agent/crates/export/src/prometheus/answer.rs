//! The endpoint's answers: `/metrics`, `/healthz`, `/readyz` and a page that names them.

use super::Endpoint;
use super::access::Credentials;
use super::text::Format;
use bytes::Bytes;
use gpuwho_model::heartbeat::Pulse;
use http_body_util::Full;
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, ALLOW, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap,
    HeaderName, HeaderValue, RETRY_AFTER, VARY, WWW_AUTHENTICATE,
};
use hyper::{Method, Request, Response, StatusCode};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

const PLAIN: &str = "text/plain; charset=utf-8";
const INDEX: &str = "gpuwho\n\n/metrics  metrics, for Prometheus\n/healthz  whether the agent works\n\
                     /readyz   whether the first readings are there\n";

/// An answer, and how many points it carries.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) response: Response<Full<Bytes>>,
    pub(super) points: u64,
}

/// Answers a request; its body is not read.
pub(super) async fn answer<B>(
    endpoint: &Arc<Endpoint>,
    client: IpAddr,
    request: &Request<B>,
) -> Answer {
    let method = request.method();
    if method != Method::GET && method != Method::HEAD {
        let answer = text(StatusCode::METHOD_NOT_ALLOWED, "only GET\n");
        return answer.with(ALLOW, "GET, HEAD");
    }
    let mut answer = match request.uri().path() {
        "/metrics" => metrics(endpoint, client, request.headers()).await,
        "/healthz" => health(endpoint.heartbeat.pulse(), true),
        "/readyz" => health(endpoint.heartbeat.pulse(), false),
        "/" => text(StatusCode::OK, INDEX),
        _ => text(StatusCode::NOT_FOUND, "not here: see /\n"),
    };
    if method == Method::HEAD {
        answer.points = 0;
    }
    answer
}

async fn metrics(endpoint: &Arc<Endpoint>, client: IpAddr, headers: &HeaderMap) -> Answer {
    let credentials = headers.get(AUTHORIZATION).map(HeaderValue::as_bytes);
    if !endpoint.access.is_known(credentials) {
        let verdict = match credentials.and_then(Credentials::parse) {
            None => Some(false),
            Some(credentials) => check(endpoint, client, credentials).await,
        };
        match verdict {
            Some(true) => {}
            Some(false) => {
                let answer = text(StatusCode::UNAUTHORIZED, "a name and a password are needed\n");
                return answer.with(WWW_AUTHENTICATE, "Basic realm=\"gpuwho\"");
            }
            None => {
                let reason = "too many passwords wait for their check\n";
                return text(StatusCode::SERVICE_UNAVAILABLE, reason).with(RETRY_AFTER, "1");
            }
        }
    }
    let format = format(headers);
    match endpoint.store.lock().page(format, takes_gzip(headers), Instant::now()) {
        Ok(page) => {
            let body = Full::new(page.body);
            let answer = Answer { response: Response::new(body), points: page.points };
            let answer = answer.with(CONTENT_TYPE, format.content_type());
            let answer = answer.with(VARY, "Accept, Accept-Encoding");
            if page.is_gzip { answer.with(CONTENT_ENCODING, "gzip") } else { answer }
        }
        Err(error) => text(StatusCode::SERVICE_UNAVAILABLE, &format!("{error}\n")),
    }
}

/// Checks credentials on the blocking thread; `None` if too many checks wait there, or were wrong a moment
/// ago. A check that began goes on when its connection ends, so it keeps its place until it is done.
async fn check(endpoint: &Arc<Endpoint>, client: IpAddr, credentials: Credentials) -> Option<bool> {
    let place = Arc::clone(&endpoint.checks).try_acquire_owned().ok()?;
    if !endpoint.access.allows(client, Instant::now()) {
        return None;
    }
    let asked = Arc::clone(endpoint);
    let check = move || {
        let is_right = asked.access.check(client, &credentials);
        drop(place);
        is_right
    };
    // An error means that the runtime ends.
    Some(tokio::task::spawn_blocking(check).await.unwrap_or(false))
}

fn health(pulse: Pulse, is_starting_fine: bool) -> Answer {
    match pulse {
        Pulse::Ticking => text(StatusCode::OK, "ok\n"),
        Pulse::Starting if is_starting_fine => text(StatusCode::OK, "starting\n"),
        Pulse::Starting => text(StatusCode::SERVICE_UNAVAILABLE, "starting: no reading yet\n"),
        Pulse::Stalled(age) => {
            let reason = format!("stalled: no reading for {} s; see the log\n", age.as_secs());
            text(StatusCode::SERVICE_UNAVAILABLE, &reason)
        }
    }
}

fn text(status: StatusCode, text: &str) -> Answer {
    let mut response = Response::new(Full::new(Bytes::copy_from_slice(text.as_bytes())));
    *response.status_mut() = status;
    Answer { response, points: 0 }.with(CONTENT_TYPE, PLAIN)
}

impl Answer {
    fn with(mut self, name: HeaderName, value: &'static str) -> Self {
        self.response.headers_mut().insert(name, HeaderValue::from_static(value));
        self
    }
}

/// The format that the client prefers; the older one where it accepts both alike, or names none.
fn format(headers: &HeaderMap) -> Format {
    let [mut metrics, mut plain] = [0.0_f32, 0.0];
    for (media, parameters) in weighted(headers, &ACCEPT) {
        let version = parameters.iter().find_map(|part| part.strip_prefix("version="));
        let is_known =
            matches!(version.map(|v| v.trim_matches('"')), None | Some("1.0.0" | "0.0.1"));
        let weight = weight(&parameters);
        match media {
            "application/openmetrics-text" if is_known => metrics = weight.max(metrics),
            "text/plain" | "text/*" | "*/*" => plain = weight.max(plain),
            _ => {}
        }
    }
    if metrics > plain { Format::OpenMetrics } else { Format::Text }
}

fn takes_gzip(headers: &HeaderMap) -> bool {
    weighted(headers, &ACCEPT_ENCODING)
        .any(|(coding, parameters)| coding == "gzip" && weight(&parameters) > 0.0)
}

/// The entries of a header like `Accept`, each with its parameters.
fn weighted<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = (&'a str, Vec<&'a str>)> {
    let lines = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(|entry| {
        let mut parts = entry.split(';').map(str::trim);
        (parts.next().unwrap_or_default(), parts.collect())
    })
}

fn weight(parameters: &[&str]) -> f32 {
    let weight = parameters.iter().find_map(|part| part.strip_prefix("q="));
    weight.map_or(1.0, |weight| weight.parse().unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: HeaderName, value: &'static str) -> HeaderMap {
        [(name, HeaderValue::from_static(value))].into_iter().collect()
    }

    #[test]
    fn the_format_is_the_one_that_the_client_prefers() {
        let of = |accept| format(&headers(ACCEPT, accept));
        let prometheus_2 = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let prometheus_3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,*/*;q=0.2";
        assert_eq!(of(prometheus_2), Format::OpenMetrics);
        assert_eq!(of(prometheus_3), Format::OpenMetrics);
        assert_eq!(of("application/openmetrics-text"), Format::OpenMetrics);
        assert_eq!(of("application/openmetrics-text;version=9"), Format::Text);
        assert_eq!(of("application/openmetrics-text;q=0, */*"), Format::Text);
        assert_eq!(of("text/html, */*;q=0.8"), Format::Text);
        assert_eq!(format(&HeaderMap::new()), Format::Text);
    }

    #[test]
    fn gzip_only_for_those_who_take_it() {
        let of = |accept| takes_gzip(&headers(ACCEPT_ENCODING, accept));
        assert!(of("gzip") && of("deflate, gzip;q=0.5"));
        assert!(!of("identity") && !of("gzip;q=0") && !of("x-gzip2"));
        assert!(!takes_gzip(&HeaderMap::new()));
    }

    #[test]
    fn health_is_that_of_the_pipeline() {
        let status = |pulse, healthz| health(pulse, healthz).response.status().as_u16();
        assert_eq!(status(Pulse::Starting, true), 200);
        assert_eq!(status(Pulse::Starting, false), 503);
        assert_eq!(status(Pulse::Ticking, false), 200);
        let stalled = Pulse::Stalled(std::time::Duration::from_mins(1));
        assert_eq!((status(stalled, true), status(stalled, false)), (503, 503));
    }
}
