//! The webhook sinks as a row, and their section `[webhook]`.

use super::{Wanted, WebhookSink, sign};
use crate::Sink;
use crate::def::{NamedSink, OpenError, Receiver, SinkContext, SinkDef, sink_name};
use crate::delivery::secrets::HeaderFiles;
use crate::delivery::settings::{
    Endpoint, MAX_ALSO, RawHeaders, RawProxy, RawReceiver, Setting, Settings, is_name,
};
use crate::delivery::trust::RawUser;
use crate::filter::{Filter, RawFilter};
use crate::resource::{Resource, attributes};
use crate::spool;
use gpuwho_collect::tls;
use gpuwho_model::config::{self, ConfigError, Resolving, Section, checks};
use gpuwho_model::finding::Finding;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// The row.
pub const WEBHOOK: SinkDef =
    SinkDef { name: NAME, section: Some(SECTION), flag: None, configure: |with| configure(with) };

const NAME: &str = "sink:webhook";
const WEBHOOK_WORD: &str = "webhook";
const SECTION: Section = Section::of::<RawWebhook>(
    WEBHOOK_WORD,
    r#"# Events by POST as JSON, signed after the Standard Webhooks specification: headers webhook-id,
# webhook-timestamp and webhook-signature. Without a URL nothing is posted.
#: url = "https://alerts.example/gpuwho"
# A file with the key of the signature, which is not in this file: whsec_ and base64, or 16 characters or
# more. Two lines are two keys, both of which sign. A changed file is read again. Without it nothing is signed.
#: secret_file = "/etc/gpuwho/webhook.key"
#: events = true
#: metrics = false
# What is posted; the keys are those of otlp.filter.
#: filter = { events = ["gpu.xid", "gpu.health.*"] }
# Milliseconds for one attempt.
#: timeout_ms = 10000
# Sent with each request; values are never logged. headers_file has a line NAME: VALUE for each.
#: headers = { x-team = "gpu" }
#: headers_file = "/etc/gpuwho/webhook.headers"
# Without TLS a signature or another secret goes only to a process on this host: of root, of the agent's
# user, or of this one; until then everything waits. true: to whoever is there. As in [otlp].
#: receiver_user = 998
#: insecure_secrets = false
# http://HOST:PORT of a proxy; default: HTTPS_PROXY, HTTP_PROXY and NO_PROXY. "none": none.
#: proxy = "none"
# PEM files for TLS: the CAs to trust instead of the system's, and the agent's own certificate and key.
#: certificate = "/etc/gpuwho/ca.pem"
#: client_certificate = "/etc/gpuwho/client.pem"
#: client_key = "/etc/gpuwho/client.key"
# Bytes that wait in memory; the oldest are dropped beyond it.
#: queue_bytes = 8388608
# Further webhooks by name, each with the keys above.
#: also = { pager = { url = "https://pager.example/hook", filter = { events = ["gpu.lost"] } } }
"#,
);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawWebhook {
    url: Option<String>,
    secret_file: Option<PathBuf>,
    events: Option<bool>,
    metrics: Option<bool>,
    filter: Option<RawFilter>,
    timeout_ms: Option<u64>,
    headers: Option<RawHeaders>,
    headers_file: Option<PathBuf>,
    receiver_user: Option<RawUser>,
    insecure_secrets: Option<bool>,
    proxy: Option<RawProxy>,
    certificate: Option<PathBuf>,
    client_certificate: Option<PathBuf>,
    client_key: Option<PathBuf>,
    queue_bytes: Option<usize>,
    also: BTreeMap<String, Self>,
}

#[derive(Debug)]
struct Webhooks {
    all: Vec<One>,
    /// `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME`.
    resource: Vec<(String, String)>,
    passwd: PathBuf,
    spool: spool::settings::Settings,
    interval: Duration,
}

#[derive(Debug)]
struct One {
    name: &'static str,
    settings: Settings,
    secret: Option<PathBuf>,
    wanted: Wanted,
    filter: Filter,
}

impl Receiver for Webhooks {
    fn open(&self, context: &SinkContext<'_>) -> Result<Option<Box<dyn Sink>>, OpenError> {
        let first = self.all.iter().find(|one| one.name == NAME);
        first.map(|one| self.start(one, context)).transpose()
    }

    fn open_more(&self, context: &SinkContext<'_>) -> Result<Vec<NamedSink>, OpenError> {
        let more = self.all.iter().filter(|one| one.name != NAME);
        more.map(|one| Ok((one.name, self.start(one, context)?))).collect()
    }

    fn is_exclusive(&self) -> bool {
        self.spool.is_used(true)
    }

    fn check(&self) -> Result<(), OpenError> {
        for one in &self.all {
            if one.settings.endpoint.is_tls() {
                tls::check(&one.settings.tls)?;
            }
            one.settings.header_files.read()?;
            one.secret.as_deref().map(sign::read).transpose()?;
        }
        Ok(())
    }

    fn diagnose(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for one in &self.all {
            let subject = one.name.trim_start_matches("sink:");
            let to = format!("posts to {:?}", one.settings.endpoint);
            let key = subject.replacen("webhook:", "webhook.also.", 1);
            findings.extend(one.settings.diagnose_receiver(subject, &key, &self.passwd));
            findings.push(match one.secret.as_deref().map(sign::read) {
                Some(Err(error)) => {
                    let remedy = "correct webhook.secret_file: nothing is posted without it";
                    Finding::new(subject, "failed", error.to_string(), remedy)
                }
                Some(Ok(_)) => Finding::new(subject, "ok", format!("{to}, signed"), ""),
                None => {
                    let remedy = "set webhook.secret_file, so that the receiver knows who posts";
                    Finding::new(subject, "ok", format!("{to}, not signed"), remedy)
                }
            });
            findings.extend(self.spool.diagnose(one.name, one.wanted.events));
        }
        findings
    }
}

impl Webhooks {
    fn start(&self, one: &One, context: &SinkContext<'_>) -> Result<Box<dyn Sink>, OpenError> {
        let resource = Resource::new(context.host, &self.resource);
        let spool = if one.wanted.events {
            self.spool.of_events(one.name)
        } else {
            self.spool.of_metrics(one.name)
        };
        let thread = one.name.replace("sink:", "export:");
        let receiver = (&one.settings, one.secret.clone());
        let sink = WebhookSink::start(&thread, receiver, &resource, one.wanted, spool)?;
        Ok(one.filter.clone().before(Box::new(sink), self.interval))
    }
}

fn configure(with: &Resolving<'_>) -> Result<Box<dyn Receiver>, ConfigError> {
    let raw: RawWebhook = with.tables.read(WEBHOOK_WORD)?;
    let count = raw.also.len();
    if count > MAX_ALSO {
        let problem = format!("{count} webhooks are too many");
        return Err(checks::wrong("webhook.also", problem, "write 8 or less"));
    }
    let mut all = Vec::new();
    if raw.url.is_some() {
        all.push(one(NAME, WEBHOOK_WORD, &raw, with)?);
    } else if raw.secret_file.is_some() {
        let problem = "there is no webhook to sign for".to_owned();
        return Err(checks::wrong("webhook.secret_file", problem, "set webhook.url as well"));
    }
    for (name, raw) in &raw.also {
        let key = format!("webhook.also.{name}");
        if !is_name(name) {
            let problem = "it is no name".to_owned();
            return Err(checks::wrong(&key, problem, "use up to 32 of a-z, 0-9 and -"));
        }
        if !raw.also.is_empty() {
            let problem = "a further webhook has none of its own".to_owned();
            return Err(checks::wrong(&key, problem, "put it into webhook.also itself"));
        }
        all.push(one(sink_name(NAME, name), &key, raw, with)?);
    }
    let spool = spool::settings::Settings::resolve(with.tables)?;
    let passwd = with.paths.passwd.clone();
    let resource = attributes(with.env)?;
    Ok(Box::new(Webhooks { all, resource, passwd, spool, interval: with.interval }))
}

fn one(
    name: &'static str,
    key: &str,
    raw: &RawWebhook,
    with: &Resolving<'_>,
) -> Result<One, ConfigError> {
    let url = raw.url.as_deref().unwrap_or_default();
    let Some(endpoint) = Endpoint::exact(url) else {
        // A URL may have a token in it.
        let problem = "not a URL with http:// or https://, a host, and no password".to_owned();
        let remedy = "write something like https://alerts.example/gpuwho";
        return Err(checks::wrong(&format!("{key}.url"), problem, remedy));
    };
    let at = |name: &str| format!("{key}.{name}");
    let file = |name: &str, path: &Option<PathBuf>| {
        path.as_ref().map(|path| Setting { value: path.display().to_string(), origin: at(name) })
    };
    let receiver = RawReceiver {
        section: WEBHOOK_WORD,
        headers: raw
            .headers
            .as_ref()
            .map(|all| all.read(&at("headers")))
            .transpose()?
            .unwrap_or_default(),
        header_files: HeaderFiles { headers: raw.headers_file.clone(), token: None },
        receiver_user: raw.receiver_user.clone(),
        insecure_secrets: raw.insecure_secrets,
        proxy: raw.proxy.as_ref(),
        timeout: raw
            .timeout_ms
            .map(|ms| Setting { value: ms.to_string(), origin: at("timeout_ms") }),
        certificate: file("certificate", &raw.certificate),
        client_certificate: file("client_certificate", &raw.client_certificate),
        client_key: file("client_key", &raw.client_key),
        queue_bytes: raw.queue_bytes,
        ..RawReceiver::default()
    };
    let mut settings = Settings::resolve(endpoint, receiver, with.env)?;
    let key_file = raw.secret_file.as_ref().map(|_| "secret_file");
    settings.trust.secret = key_file.or(settings.trust.secret);
    let settings = settings.with_trust(key, &with.paths.passwd)?;
    let paths = [("secret_file", &raw.secret_file), ("headers_file", &raw.headers_file)];
    let paths = paths
        .into_iter()
        .filter_map(|(file, path)| Some((format!("{key}.{file}"), path.as_ref()?)));
    checks::absolute(paths)?;
    let wanted =
        Wanted { metrics: raw.metrics.unwrap_or(false), events: raw.events.unwrap_or(true) };
    let spread = if wanted.metrics { config::spread(with.interval) } else { Duration::ZERO };
    Ok(One {
        name,
        settings: Settings { spread, ..settings },
        secret: raw.secret_file.clone(),
        wanted,
        filter: Filter::resolve(&format!("{key}.filter"), raw.filter.as_ref())?,
    })
}
