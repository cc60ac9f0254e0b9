//! OTLP/gRPC against tonic's own server.

use crate::receiver::{OK, Receiver, times};
use crate::{batch, finish, log, points, raw, sink};
use gpuwho_export::Sink as _;
use gpuwho_export::otlp::settings::RawOtlp;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsPartialSuccess, ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Instant;
use tonic::codec::CompressionEncoding;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Request, Response, Status};

type Script = fn(usize) -> Result<i64, Status>;

/// Answers the n-th call with `script(n)`: the number of rejected points, or a status.
struct Service {
    script: Script,
    calls: AtomicUsize,
    sender: mpsc::Sender<ExportMetricsServiceRequest>,
}

#[tonic::async_trait]
impl MetricsService for Service {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        self.sender.send(request.into_inner()).unwrap();
        let rejected = (self.script)(self.calls.fetch_add(1, Ordering::SeqCst))?;
        let partial = ExportMetricsPartialSuccess {
            rejected_data_points: rejected,
            error_message: "too old".to_owned(),
        };
        let partial_success = (rejected > 0).then_some(partial);
        Ok(Response::new(ExportMetricsServiceResponse { partial_success }))
    }
}

fn start(script: Script) -> (SocketAddr, mpsc::Receiver<ExportMetricsServiceRequest>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, received) = mpsc::channel();
    let service = MetricsServiceServer::new(Service { script, calls: AtomicUsize::new(0), sender })
        .accept_compressed(CompressionEncoding::Gzip);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let incoming = TcpIncoming::from(tokio::net::TcpListener::from_std(listener).unwrap());
            tonic::transport::Server::builder()
                .add_service(service)
                .serve_with_incoming(incoming)
                .await
                .unwrap();
        });
    });
    (address, received)
}

fn grpc(address: SocketAddr) -> RawOtlp {
    RawOtlp { protocol: Some("grpc".to_owned()), ..raw(&format!("http://{address}")) }
}

#[test]
fn batches_arrive_in_order_with_and_without_compression() {
    for compression in ["gzip", "none"] {
        let (address, received) = start(|_| Ok(0));
        let compression = Some(compression.to_owned());
        let mut sink = sink(&RawOtlp { compression, ..grpc(address) });
        sink.export(&batch(1));
        sink.export(&points(2, 3));
        let report = finish(&mut sink);
        assert_eq!((report.accepted, report.requests), (4, 2));
        let times: Vec<_> = received.try_iter().map(|request| times(&request)).collect();
        assert_eq!(times, [vec![1], vec![2, 2, 2]]);
    }
}

#[test]
fn unavailable_receiver_is_tried_again() {
    let (address, received) = start(|n| match n {
        0 => Err(Status::new(Code::Unavailable, "starting")),
        _ => Ok(0),
    });
    let mut sink = sink(&grpc(address));
    sink.export(&batch(1));
    let report = finish(&mut sink);
    assert_eq!((report.accepted, report.requests), (1, 2));
    assert_eq!(received.try_iter().count(), 2);
    log::wait_for(address.port(), "Unavailable: starting");
    log::wait_for(address.port(), "works again");
}

#[test]
fn refusals_are_not_tried_again_and_are_logged_once_with_the_remedy() {
    let cases: [(Script, &str); 3] = [
        (|_| Err(Status::new(Code::ResourceExhausted, "limit 4194304")), "too large"),
        (|_| Err(Status::new(Code::Unauthenticated, "no token")), "check the headers"),
        (|_| Err(Status::new(Code::InvalidArgument, "bad point")), "InvalidArgument: bad point"),
    ];
    for (script, words) in cases {
        let (address, received) = start(script);
        let mut sink = sink(&grpc(address));
        sink.export(&batch(1));
        sink.export(&batch(2));
        let report = finish(&mut sink);
        assert_eq!((report.refused, report.requests), (2, 2), "{words}");
        assert_eq!(received.try_iter().count(), 2);
        let lines = log::wait_for(address.port(), words);
        assert_eq!(lines.len(), 1, "{lines:#?}");
    }
}

#[test]
fn partly_rejected_batch_is_counted() {
    let (address, _received) = start(|_| Ok(2));
    let mut sink = sink(&grpc(address));
    sink.export(&points(1, 5));
    let report = finish(&mut sink);
    assert_eq!((report.accepted, report.refused), (3, 2));
    log::wait_for(address.port(), "too old");
}

#[test]
fn grpc_spoken_to_an_http_port_says_which_protocol_to_set() {
    let receiver = Receiver::start(|_| OK);
    let mut sink = sink(&grpc(receiver.address));
    sink.export(&batch(1));
    log::wait_for(receiver.address.port(), "set protocol = \"http/protobuf\"");
    sink.flush(Instant::now());
    assert_eq!(sink.report().undelivered, 1);
}

#[test]
fn http_spoken_to_a_grpc_port_says_which_protocol_to_set() {
    let (address, _received) = start(|_| Ok(0));
    let mut sink = sink(&RawOtlp {
        protocol: Some("http/protobuf".to_owned()),
        ..raw(&format!("http://{address}"))
    });
    sink.export(&batch(1));
    log::wait_for(address.port(), "set protocol = \"grpc\"");
    sink.flush(Instant::now());
    assert_eq!(sink.report().undelivered, 1);
}
