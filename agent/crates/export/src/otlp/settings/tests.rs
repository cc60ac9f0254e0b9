//! The rules at the top of `settings`, one by one.

use super::*;
use crate::resource::Resource;
use gpuwho_model::catalog::attributes::AttrSet;
use std::time::Duration;

fn resolve(file: &str, env: &[(&str, &str)]) -> Result<Settings, ConfigError> {
    let file: RawOtlp = toml::from_str(file).unwrap();
    let env = |name: &str| {
        env.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    };
    Settings::resolve(Signal::Metrics, &RawOtlp::default(), &file, &env)
}

fn endpoint(env: &[(&str, &str)]) -> (String, Protocol) {
    let settings = resolve("", env).unwrap();
    (settings.receiver.endpoint.to_string(), settings.protocol)
}

const GENERAL: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const SPECIFIC: &str = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT";
const GRPC: &str = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";

#[test]
fn nothing_set_is_the_local_collector_over_http() {
    let settings = resolve("", &[]).unwrap();
    assert_eq!(settings.receiver.endpoint.to_string(), "http://localhost:4318/v1/metrics");
    assert_eq!(settings.protocol, Protocol::Http);
    assert_eq!(settings.receiver.timeout, Duration::from_secs(10));
    assert_eq!(settings.compression, Compression::Gzip);
    assert_eq!(settings.receiver.queue_bytes, 8 << 20);
}

#[test]
fn path_is_appended_to_the_general_endpoint_only() {
    for (variable, value, expected) in [
        (GENERAL, "http://c:4318", "http://c:4318/v1/metrics"),
        (GENERAL, "http://c:4318/base/", "http://c:4318/base/v1/metrics"),
        (GENERAL, "http://c/v1/metrics", "http://c/v1/metrics/v1/metrics"),
        (SPECIFIC, "http://c:4318/base", "http://c:4318/base"),
        (SPECIFIC, "http://c:4318", "http://c:4318/"),
    ] {
        assert_eq!(
            endpoint(&[(variable, value)]),
            (expected.to_owned(), Protocol::Http),
            "{value}"
        );
    }
}

#[test]
fn scheme_and_port_are_completed_by_the_stated_rule() {
    for (value, expected, protocol) in [
        ("collector:4317", format!("https://collector:4317{GRPC}"), Protocol::Grpc),
        ("collector:4318", "https://collector:4318/v1/metrics".to_owned(), Protocol::Http),
        ("collector", "https://collector:4318/v1/metrics".to_owned(), Protocol::Http),
        ("127.0.0.1:4317", format!("http://127.0.0.1:4317{GRPC}"), Protocol::Grpc),
        ("[::1]:9", "http://[::1]:9/v1/metrics".to_owned(), Protocol::Http),
        ("http://collector:4317", format!("http://collector:4317{GRPC}"), Protocol::Grpc),
        ("https://host", "https://host/v1/metrics".to_owned(), Protocol::Http),
    ] {
        assert_eq!(endpoint(&[(GENERAL, value)]), (expected, protocol), "{value}");
    }
}

#[test]
fn insecure_decides_the_scheme_only_where_there_is_none() {
    let insecure = ("OTEL_EXPORTER_OTLP_INSECURE", "true");
    let (url, _) = endpoint(&[(GENERAL, "collector:4317"), insecure]);
    assert_eq!(url, format!("http://collector:4317{GRPC}"));
    let (url, _) = endpoint(&[(GENERAL, "https://collector:4317"), insecure]);
    assert_eq!(url, format!("https://collector:4317{GRPC}"));
}

#[test]
fn protocol_decides_the_default_port() {
    let (url, _) =
        endpoint(&[(GENERAL, "collector"), ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "grpc")]);
    assert_eq!(url, format!("https://collector:4317{GRPC}"));
}

#[test]
fn flags_win_over_the_environment_and_that_over_the_file() {
    let raw =
        |endpoint: &str| RawOtlp { endpoint: Some(endpoint.to_owned()), ..RawOtlp::default() };
    let env = |name: &str| (name == GENERAL).then(|| "http://env:1".to_owned());
    let resolve = |flags: &RawOtlp, env: &dyn Fn(&str) -> Option<String>| {
        let settings = Settings::resolve(Signal::Metrics, flags, &raw("http://file:1"), env);
        settings.unwrap().receiver.endpoint.uri().host().unwrap().to_owned()
    };
    assert_eq!(resolve(&raw("http://flag:1"), &env), "flag");
    assert_eq!(resolve(&RawOtlp::default(), &env), "env");
    assert_eq!(resolve(&RawOtlp::default(), &|_| None), "file");
}

#[test]
fn signal_s_own_variable_wins_and_an_empty_one_is_unset() {
    let settings = resolve(
        "timeout_ms = 5",
        &[
            ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "7000"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "8000"),
            ("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", ""),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "none"),
        ],
    );
    let settings = settings.unwrap();
    assert_eq!(settings.receiver.timeout, Duration::from_secs(7));
    assert_eq!(settings.compression, Compression::None);
}

#[test]
fn endpoint_of_the_file_may_hold_the_whole_path() {
    let settings = resolve("endpoint = \"https://c/otlp/v1/metrics\"", &[]).unwrap();
    assert_eq!(settings.receiver.endpoint.to_string(), "https://c/otlp/v1/metrics");
}

#[test]
fn log_records_go_to_their_own_path() {
    let raw = RawOtlp::default();
    let env = |name: &str| (name == GENERAL).then(|| "http://c:4318".to_owned());
    let settings = Settings::resolve(Signal::Logs, &raw, &raw, &env).unwrap();
    assert_eq!(settings.receiver.endpoint.to_string(), "http://c:4318/v1/logs");
}

#[test]
fn header_values_are_decoded_and_hidden() {
    let list = "Authorization=Bearer%20s3cret, x-tenant = a=b ,";
    let settings = resolve("", &[("OTEL_EXPORTER_OTLP_HEADERS", list)]).unwrap();
    assert_eq!(settings.receiver.headers["authorization"], "Bearer s3cret");
    assert_eq!(settings.receiver.headers["x-tenant"], "a=b");
    let shown = format!("{settings:?}");
    assert!(!shown.contains("s3cret") && !shown.contains("a=b"), "{shown}");
    let raw: RawOtlp = toml::from_str("headers = { token = \"s3cret\" }").unwrap();
    let shown = format!("{raw:?}");
    assert!(shown.contains("token") && !shown.contains("s3cret"), "{shown}");
}

#[test]
fn query_of_the_endpoint_is_sent_but_never_shown() {
    let settings = resolve("", &[(SPECIFIC, "https://c/v1?key=s3cret")]).unwrap();
    assert_eq!(settings.receiver.endpoint.uri().query(), Some("key=s3cret"));
    assert!(!format!("{settings:?} {}", settings.receiver.endpoint).contains("s3cret"));
}

#[test]
fn wrong_settings_say_where_and_what_to_write() {
    for (variable, value, expected) in [
        (
            GENERAL,
            "ftp://c:1",
            "ENDPOINT: not an OTLP endpoint (the scheme is neither http nor https)",
        ),
        (GENERAL, "http://u:s3cret@c:1", "(credentials in the URL; set them as headers)"),
        (GENERAL, "c:99999", "(the port is not a number from 1 to 65535)"),
        (GENERAL, "http://", "(not a URL)"),
        (
            "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL",
            "http/xml",
            "PROTOCOL: unknown value `http/xml`; use `http/protobuf`, `http/json` or `grpc`",
        ),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s", "TIMEOUT: `10s` is not a number of milliseconds"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "0", "TIMEOUT: `0`"),
        (
            "OTEL_EXPORTER_OTLP_COMPRESSION",
            "xz",
            "COMPRESSION: unknown value `xz`; use `gzip`, `zstd` or `none`",
        ),
        ("OTEL_EXPORTER_OTLP_INSECURE", "yes", "INSECURE: unknown value `yes`"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a=1,s3cret", "HEADERS: entry 2 is not a header"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "a=%zzs3cret", "HEADERS: entry 1 is not a header"),
        (
            "OTEL_EXPORTER_OTLP_CLIENT_KEY",
            "/k",
            "CLIENT_KEY: set together with the client certificate",
        ),
        ("OTEL_RESOURCE_ATTRIBUTES", "=1", "OTEL_RESOURCE_ATTRIBUTES: entry 1 is not an attribute"),
    ] {
        let error = resolve("", &[(variable, value)]).unwrap_err().to_string();
        assert!(error.contains(expected), "{variable}={value}: {error}");
        assert!(!error.contains("s3cret"), "{error}");
    }
    let error = resolve("queue_bytes = 10", &[]).unwrap_err().to_string();
    assert!(error.contains("otlp.queue_bytes"), "{error}");
}

#[test]
fn unknown_key_of_the_file_is_named() {
    let error = toml::from_str::<RawOtlp>("endpont = \"x\"").unwrap_err().to_string();
    assert!(error.contains("endpont"), "{error}");
}

#[test]
fn service_name_wins_over_the_resource_attributes() {
    let env =
        [("OTEL_RESOURCE_ATTRIBUTES", "service.name=a,team=x%20y"), ("OTEL_SERVICE_NAME", "b")];
    let settings = resolve("", &env).unwrap();
    let resource = Resource::new(&AttrSet::default(), &settings.resource_attributes);
    let shown: Vec<String> = resource
        .iter()
        .filter(|(key, _)| *key != "service.version")
        .map(|(k, v)| format!("{k}={v}"))
        .collect();
    assert_eq!(shown, ["service.name=b", "team=x y"]);
}
