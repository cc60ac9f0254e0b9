//! The agent's own log at a receiver.

use crate::receiver::{OK, Receiver};
use crate::{TIMEOUT, raw};
use gpuwho_export::delivery::settings::RawHeaders;
use gpuwho_export::otlp::settings::{RawOtlp, Settings, Signal};
use gpuwho_export::resource::Resource;
use gpuwho_export::telemetry;
use gpuwho_model::catalog::attributes::AttrSet;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use prost::Message as _;
use std::collections::BTreeMap;
use tracing_subscriber::layer::SubscriberExt as _;

fn settings(raw: &RawOtlp) -> Settings {
    Settings::resolve(Signal::Logs, raw, &RawOtlp::default(), &|_| None).unwrap()
}

#[test]
fn own_warning_arrives_as_a_log_record_and_others_stay_here() {
    let receiver = Receiver::start(|_| OK);
    let headers = Some(RawHeaders(BTreeMap::from([("x-tenant".to_owned(), "a".to_owned())])));
    let settings = settings(&RawOtlp { headers, ..raw(&receiver.url()) });
    let resource = Resource::new(&AttrSet::new(), &settings.resource_attributes);
    let (telemetry, layer) = telemetry::logs(&settings, &resource).unwrap();
    tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
        tracing::warn!(target: "gpuwho::collect", device = 3, "device lost");
        tracing::warn!(target: "hyper::proto", "not the agent's");
    });
    telemetry.shutdown(TIMEOUT).unwrap();
    let request = receiver.next();
    assert_eq!(
        (request.path.as_str(), &request.headers["x-tenant"]),
        ("/v1/logs", &"a".parse().unwrap())
    );
    let request = ExportLogsServiceRequest::decode(request.raw.as_slice()).unwrap();
    let [logs] = request.resource_logs.as_slice() else { panic!("{request:?}") };
    let service =
        logs.resource.as_ref().unwrap().attributes.iter().find(|pair| pair.key == "service.name");
    assert!(service.is_some(), "{logs:?}");
    let records: Vec<_> = logs.scope_logs.iter().flat_map(|scope| &scope.log_records).collect();
    let [record] = records.as_slice() else { panic!("{records:?}") };
    assert_eq!(record.severity_text, "WARN");
    let body = record.body.as_ref().unwrap().value.as_ref();
    assert_eq!(body, Some(&Value::StringValue("device lost".to_owned())));
    let device = record.attributes.iter().find(|pair| pair.key == "device").unwrap();
    assert_eq!(device.value.as_ref().unwrap().value, Some(Value::IntValue(3)));
}

#[test]
fn grpc_is_refused_with_the_remedy() {
    let settings = settings(&RawOtlp { protocol: Some("grpc".to_owned()), ..raw("localhost") });
    let resource = Resource::new(&AttrSet::new(), &settings.resource_attributes);
    let error =
        telemetry::logs::<tracing_subscriber::Registry>(&settings, &resource).err().unwrap();
    assert!(
        error.to_string().contains("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL=http/protobuf"),
        "{error}"
    );
}
