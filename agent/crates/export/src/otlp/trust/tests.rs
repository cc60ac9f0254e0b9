use super::*;
use crate::otlp::settings::{HeaderFiles, RawHeaders, RawOtlp, RawProxy, Signal};
use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;

fn raw(endpoint: &str) -> RawOtlp {
    RawOtlp { endpoint: Some(endpoint.to_owned()), ..RawOtlp::default() }
}

fn with_token(endpoint: &str) -> RawOtlp {
    RawOtlp { token_file: Some(PathBuf::from("/token")), ..raw(endpoint) }
}

fn resolve(raw: &RawOtlp, env: &[(&str, &str)]) -> Result<Settings, String> {
    let folder = tempfile::tempdir().unwrap();
    let passwd = folder.path().join("passwd");
    fs::write(&passwd, "root:x:0:0::/:/bin/sh\notel:x:998:998::/:/bin/sh\n").unwrap();
    let env = |name: &str| {
        let found = env.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    let settings = Settings::resolve(Signal::Metrics, &RawOtlp::default(), raw, &env);
    let settings = settings.and_then(|settings| settings.with_trust("otlp", &passwd));
    settings.map_err(|error| error.to_string())
}

#[test]
fn a_secret_to_another_host_without_tls_is_refused_and_the_key_named() {
    let headers = |name: &str| {
        let headers = RawHeaders([(name.to_owned(), "s3cret".to_owned())].into());
        RawOtlp { headers: Some(headers), ..raw("http://10.0.0.5:4318") }
    };
    let files = RawOtlp { headers_file: Some("/h".into()), ..raw("http://collector:4318") };
    let through = |endpoint: &str, proxy: &str| RawOtlp {
        proxy: Some(RawProxy(proxy.to_owned())),
        ..with_token(endpoint)
    };
    for (raw, secret) in [
        (with_token("http://10.0.0.5:4318"), "token_file"),
        (files, "headers_file"),
        (headers("authorization"), "headers"),
        (headers("x-api-key"), "headers"),
        (raw("http://10.0.0.5:4318/base?key=s3cret"), "the query of its URL"),
        (through("http://127.0.0.1:4318", "http://127.0.0.1:3128"), "token_file"),
        (through("https://a:4318", "http://u:s3cret@proxy:3128"), "the proxy's password"),
    ] {
        let error = resolve(&raw, &[]).unwrap_err();
        assert!(error.contains(&format!("otlp: {secret} would go to ")), "{error}");
        assert!(error.contains("otlp.insecure_secrets = true"), "{error}");
        assert!(!error.contains("s3cret"), "{error}");
        let insecure = RawOtlp { insecure_secrets: Some(true), ..raw };
        assert!(resolve(&insecure, &[]).unwrap().guard().is_none());
    }
    let env = [("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=a")];
    let error = resolve(&raw("http://10.0.0.5:4318"), &env).unwrap_err();
    assert!(error.contains("OTEL_EXPORTER_OTLP_HEADERS would go"), "{error}");
    for fine in
        [headers("x-scope-orgid"), raw("http://10.0.0.5:4318"), with_token("https://a:4318")]
    {
        let guard = resolve(&fine, &[]).unwrap().guard();
        assert!(!guard.is_some_and(|guard| guard.must));
    }
}

#[test]
fn the_receivers_user_is_a_number_or_a_name_of_the_host() {
    let user = |user: RawUser| {
        let raw = RawOtlp { receiver_user: Some(user), ..with_token("http://localhost:4318") };
        resolve(&raw, &[]).map(|settings| settings.trust.user)
    };
    assert_eq!(user(RawUser::Number(7)), Ok(Some(7)));
    assert_eq!(user(RawUser::Name("7".into())), Ok(Some(7)));
    assert_eq!(user(RawUser::Name("otel".into())), Ok(Some(998)));
    let error = user(RawUser::Name("nobody-of-ours".into())).unwrap_err();
    assert!(error.contains("otlp.receiver_user: there is no user"), "{error}");
}

#[test]
fn who_has_not_accepted_is_not_trusted_and_who_is_elsewhere_neither() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let settings = resolve(&with_token("http://127.0.0.1:4318"), &[]).unwrap();
    let guard = settings.guard().unwrap();
    assert!(guard.must && settings.header_files != HeaderFiles::default());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    runtime.block_on(async {
        let stream = TcpStream::connect(at).await.unwrap();
        let client = stream.local_addr().unwrap();
        assert_eq!(guard.classify(at, client).await, Err(Untrusted::Unseen { at }));
        let accepted = listener.accept().unwrap();
        assert_eq!(guard.classify(at, client).await, Ok(()));
        drop(accepted);
        let at = SocketAddr::from(([192, 0, 2, 1], 4318));
        assert_eq!(guard.classify(at, client).await, Err(Untrusted::OtherHost { at }));
    });
}
