//! What a cloud's metadata service says of this host: AWS (IMDSv2), Google Cloud, Azure.
//!
//! Asked once at the start, and only where `resource.cloud_metadata` names the cloud. The service is
//! a link-local address that anything on the network may answer: the whole exchange has 2 s, an
//! answer 64 KiB and a head of 16 KiB, no redirect is followed, and an answer that is not the
//! service's own form is an error, after which the agent starts without these facts.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;

/// For all requests of a cloud together: the services answer in milliseconds.
const TIMEOUT: Duration = Duration::from_secs(2);
/// An instance's document has a few KiB.
const MAX_ANSWER_BYTES: usize = 64 << 10;
const MAX_HEAD_BYTES: usize = 16 << 10;
/// A zone, a machine type; longer is no name.
const MAX_NAME_LEN: usize = 128;
/// The metadata services' common address.
const ADDRESS: ([u8; 4], u16) = ([169, 254, 169, 254], 80);

/// A cloud with a metadata service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cloud {
    /// Amazon, by IMDSv2.
    Aws,
    /// Google.
    Gcp,
    /// Microsoft.
    Azure,
}

/// What a cloud says of a host; the words of OpenTelemetry's `cloud.*` and `host.type`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// `cloud.region`.
    pub region: Option<String>,
    /// `cloud.availability_zone`.
    pub zone: Option<String>,
    /// `host.type`.
    pub machine: Option<String>,
}

/// Why there are no facts.
#[derive(Debug, thiserror::Error)]
pub enum CloudError {
    /// No connection, or it broke.
    #[error("no connection to the metadata service ({0})")]
    Connect(#[from] io::Error),
    /// Not HTTP, or too long a head.
    #[error("the metadata service does not answer in HTTP ({0})")]
    Http(#[from] hyper::Error),
    /// It refused, or sends somewhere else.
    #[error("the metadata service answered {0}")]
    Status(StatusCode),
    /// Too long a body, or broken off.
    #[error("the metadata service's answer is cut off or longer than {MAX_ANSWER_BYTES} bytes")]
    Body,
    /// Not this cloud's answer.
    #[error("the answer is not that of {0:?}'s metadata service")]
    Foreign(Cloud),
    /// Nothing in time.
    #[error("the metadata service did not answer within {TIMEOUT:?}")]
    TimedOut,
    /// A token that no header can carry.
    #[error("the metadata service's token is not text")]
    Token(#[from] hyper::http::Error),
}

impl Cloud {
    /// Every cloud.
    pub const ALL: [Self; 3] = [Self::Aws, Self::Gcp, Self::Azure];

    /// The word of `cloud.provider`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Aws => "aws",
            Self::Gcp => "gcp",
            Self::Azure => "azure",
        }
    }

    /// Asks the cloud's service; blocks for at most 2 s.
    pub fn ask(self) -> Result<Facts, CloudError> {
        self.ask_at(ADDRESS.into())
    }

    fn ask_at(self, at: SocketAddr) -> Result<Facts, CloudError> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        runtime.block_on(async {
            let facts = tokio::time::timeout(TIMEOUT, self.facts(at)).await;
            facts.map_err(|_| CloudError::TimedOut)?
        })
    }

    async fn facts(self, at: SocketAddr) -> Result<Facts, CloudError> {
        match self {
            Self::Aws => {
                let seconds = [("x-aws-ec2-metadata-token-ttl-seconds", "60")];
                let token = get(at, Method::PUT, "/latest/api/token", &seconds).await?;
                let token = String::from_utf8_lossy(&token.body);
                let path = "/latest/dynamic/instance-identity/document";
                let token = [("x-aws-ec2-metadata-token", &*token)];
                let answer = get(at, Method::GET, path, &token).await?;
                let read: AwsDocument = self.parse(&answer.body)?;
                Ok(facts(read.region, read.availability_zone, read.instance_type))
            }
            Self::Gcp => {
                let path = "/computeMetadata/v1/instance/?recursive=true";
                let flavor = [("metadata-flavor", "Google")];
                let answer = get(at, Method::GET, path, &flavor).await?;
                if !answer.is_google {
                    return Err(CloudError::Foreign(self));
                }
                let read: GcpInstance = self.parse(&answer.body)?;
                // projects/NUMBER/zones/ZONE, whose region is the part before its last dash.
                let last = |path: Option<String>| {
                    path.and_then(|path| path.rsplit('/').next().map(str::to_owned))
                };
                let zone = last(read.zone);
                let region = zone.as_deref().and_then(|zone| zone.rsplit_once('-'));
                let region = region.map(|(region, _)| region.to_owned());
                Ok(facts(region, zone, last(read.machine_type)))
            }
            Self::Azure => {
                let path = "/metadata/instance/compute?api-version=2021-02-01&format=json";
                let answer = get(at, Method::GET, path, &[("metadata", "true")]).await?;
                let read: AzureCompute = self.parse(&answer.body)?;
                // A number within the region, as Kubernetes' topology label has it: eastus-1.
                let zone = read.zone.filter(|zone| !zone.is_empty());
                let zone = zone.zip(read.location.clone());
                let zone = zone.map(|(zone, region)| format!("{region}-{zone}"));
                Ok(facts(read.location, zone, read.vm_size))
            }
        }
    }

    fn parse<'a, T: Deserialize<'a>>(self, body: &'a [u8]) -> Result<T, CloudError> {
        serde_json::from_slice(body).map_err(|_| CloudError::Foreign(self))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AwsDocument {
    region: Option<String>,
    availability_zone: Option<String>,
    instance_type: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GcpInstance {
    zone: Option<String>,
    machine_type: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AzureCompute {
    location: Option<String>,
    zone: Option<String>,
    vm_size: Option<String>,
}

fn facts(region: Option<String>, zone: Option<String>, machine: Option<String>) -> Facts {
    let is_name = |text: &String| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !text.is_empty() && text.len() <= MAX_NAME_LEN && text.chars().all(is_plain)
    };
    let [region, zone, machine] = [region, zone, machine].map(|fact| fact.filter(is_name));
    Facts { region, zone, machine }
}

struct Answer {
    pub body: Bytes,
    is_google: bool,
}

async fn get(
    at: SocketAddr,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
) -> Result<Answer, CloudError> {
    let stream = TcpStream::connect(at).await?;
    let mut http = http1::Builder::new();
    http.max_buf_size(MAX_HEAD_BYTES);
    let (mut sender, connection) = http.handshake(TokioIo::new(stream)).await?;
    let mut request = Request::builder().method(method).uri(path).header(HOST, at.ip().to_string());
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.header(CONNECTION, "close").body(Empty::<Bytes>::new())?;
    let exchange = async {
        let answer = sender.send_request(request).await?;
        let status = answer.status();
        if status != StatusCode::OK {
            return Err(CloudError::Status(status));
        }
        let flavor = answer.headers().get("metadata-flavor");
        let is_google = flavor.is_some_and(|flavor| flavor == "Google");
        let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect().await;
        let body = body.map_err(|_| CloudError::Body)?.to_bytes();
        Ok(Answer { body, is_google })
    };
    tokio::pin!(exchange);
    tokio::select! {
        answer = &mut exchange => answer,
        // The connection's end is the end of the exchange, which says what came of it.
        _ = connection => exchange.await,
    }
}

#[cfg(test)]
mod tests;
