use super::*;
use crate::delivery::secrets::HeaderFiles;
use crate::delivery::settings::{Endpoint, RawHeaders, RawProxy, RawReceiver};
use std::fs;
use std::net::TcpListener;

fn resolve(endpoint: &str, raw: RawReceiver<'_>) -> Result<Settings, String> {
    let folder = tempfile::tempdir().unwrap();
    let passwd = folder.path().join("passwd");
    fs::write(&passwd, "root:x:0:0::/:/bin/sh\notel:x:998:998::/:/bin/sh\n").unwrap();
    let settings = Settings::resolve(Endpoint::exact(endpoint).unwrap(), raw, &|_| None);
    let settings = settings.and_then(|settings| settings.with_trust("otlp", &passwd));
    settings.map_err(|error| error.to_string())
}

fn with_token() -> RawReceiver<'static> {
    let header_files = HeaderFiles { token: Some("/token".into()), headers: None };
    RawReceiver { header_files, ..RawReceiver::default() }
}

fn with_header(name: &str) -> RawReceiver<'static> {
    let headers = RawHeaders([(name.to_owned(), "s3cret".to_owned())].into());
    RawReceiver { headers: headers.read("otlp.headers").unwrap(), ..RawReceiver::default() }
}

#[test]
fn a_secret_to_another_host_without_tls_is_refused_and_the_key_named() {
    let header_files = HeaderFiles { headers: Some("/h".into()), token: None };
    let with_file = RawReceiver { header_files, ..RawReceiver::default() };
    let proxies = ["http://127.0.0.1:3128", "http://u:s3cret@proxy:3128"];
    let proxies = proxies.map(|proxy| RawProxy(proxy.to_owned()));
    let through = |proxy| RawReceiver { proxy: Some(proxy), ..with_token() };
    let from_env = RawReceiver { headers_variable: Some("A_VARIABLE"), ..with_header("x-tenant") };
    let query = "http://10.0.0.5:4318/base?key=s3cret";
    for (endpoint, raw, secret) in [
        ("http://10.0.0.5:4318", with_token(), "token_file"),
        ("http://collector:4318", with_file, "headers_file"),
        ("http://10.0.0.5:4318", with_header("authorization"), "headers"),
        ("http://10.0.0.5:4318", with_header("x-api-key"), "headers"),
        ("http://10.0.0.5:4318", from_env, "A_VARIABLE"),
        (query, RawReceiver::default(), "the query of its URL"),
        ("http://127.0.0.1:4318", through(&proxies[0]), "token_file"),
        ("https://a:4318", through(&proxies[1]), "the proxy's password"),
    ] {
        let insecure = RawReceiver { insecure_secrets: Some(true), ..raw.clone() };
        let error = resolve(endpoint, raw).unwrap_err();
        assert!(error.contains(&format!("otlp: {secret} would go to ")), "{error}");
        assert!(error.contains("otlp.insecure_secrets = true"), "{error}");
        assert!(!error.contains("s3cret"), "{error}");
        assert!(resolve(endpoint, insecure).unwrap().guard().is_none());
    }
    for (endpoint, fine) in [
        ("http://10.0.0.5:4318", with_header("x-scope-orgid")),
        ("http://10.0.0.5:4318", RawReceiver::default()),
        ("https://a:4318", with_token()),
    ] {
        let guard = resolve(endpoint, fine).unwrap().guard();
        assert!(!guard.is_some_and(|guard| guard.must));
    }
}

#[test]
fn the_receivers_user_is_a_number_or_a_name_of_the_host() {
    let user = |user: RawUser| {
        let raw = RawReceiver { receiver_user: Some(user), ..with_token() };
        resolve("http://localhost:4318", raw).map(|settings| settings.trust.user)
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
    let settings = resolve("http://127.0.0.1:4318", with_token()).unwrap();
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
