//! From an HTTP request of a service to the function that answers it, as generated code does it.

use crate::state::State;
use prost::Message;
use std::pin::Pin;
use std::sync::Arc;
use tokio_stream::Stream;
use tonic::body::Body;
use tonic::codegen::http::{self, HeaderValue, header};
use tonic::server::Grpc;
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;

/// A service under its name, whose requests this function answers.
macro_rules! service {
    ($(#[$doc:meta])* $service:ident, $name:literal, $answer:path) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        pub(crate) struct $service(pub(crate) Arc<State>);

        impl tonic::server::NamedService for $service {
            const NAME: &'static str = $name;
        }

        impl tonic::codegen::Service<http::Request<Body>> for $service {
            type Response = http::Response<Body>;
            type Error = std::convert::Infallible;
            type Future = tonic::codegen::BoxFuture<Self::Response, Self::Error>;

            fn poll_ready(
                &mut self,
                _: &mut std::task::Context<'_>,
            ) -> std::task::Poll<Result<(), Self::Error>> {
                std::task::Poll::Ready(Ok(()))
            }

            fn call(&mut self, request: http::Request<Body>) -> Self::Future {
                let state = Arc::clone(&self.0);
                Box::pin(async move { Ok($answer(request, state).await) })
            }
        }
    };
}
pub(crate) use service;

/// What a stream of answers is made of.
pub(crate) type Answers<A> = Pin<Box<dyn Stream<Item = Result<A, Status>> + Send>>;

/// One question, one answer.
pub(crate) async fn unary<Q, A, F>(
    request: http::Request<Body>,
    state: Arc<State>,
    answer: impl Fn(Arc<State>, Q) -> F,
) -> http::Response<Body>
where
    Q: Message + Default + 'static,
    A: Message + 'static,
    F: Future<Output = Result<A, Status>>,
{
    let method = tower::service_fn(|request: Request<Q>| {
        let answer = answer(Arc::clone(&state), request.into_inner());
        async { answer.await.map(Response::new) }
    });
    Grpc::new(ProstCodec::default()).unary(method, request).await
}

/// One question, answers as they come.
pub(crate) async fn streaming<Q, A, F>(
    request: http::Request<Body>,
    state: Arc<State>,
    answer: impl Fn(Arc<State>, Q) -> F,
) -> http::Response<Body>
where
    Q: Message + Default + 'static,
    A: Message + 'static,
    F: Future<Output = Result<Answers<A>, Status>>,
{
    let method = tower::service_fn(|request: Request<Q>| {
        let answer = answer(Arc::clone(&state), request.into_inner());
        async { answer.await.map(Response::new) }
    });
    Grpc::new(ProstCodec::default()).server_streaming(method, request).await
}

/// What a server says of a method it does not have.
pub(crate) fn unimplemented() -> http::Response<Body> {
    let mut response = http::Response::new(Body::default());
    let headers = response.headers_mut();
    headers.insert(Status::GRPC_STATUS, (Code::Unimplemented as i32).into());
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}
