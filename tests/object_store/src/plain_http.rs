//! The client's HTTP, without TLS. Each request has its own connection, so that a store is not
//! bound to a runtime.

use std::error::Error;

use http_body_util::BodyExt;
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderValue};
use hyper_util::rt::TokioIo;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService,
};
use tokio::net::TcpStream;

#[derive(Clone, Copy, Debug)]
pub(crate) struct PlainHttp;

impl HttpConnector for PlainHttp {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Self))
    }
}

fn failed<E: Error + Send + Sync + 'static>(kind: HttpErrorKind) -> impl Fn(E) -> HttpError {
    move |error| HttpError::new(kind, error)
}

#[async_trait::async_trait]
impl HttpService for PlainHttp {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let address = request.uri().authority().unwrap().to_string();
        let host = HeaderValue::try_from(&address).unwrap();
        request.headers_mut().insert(HOST, host);
        let path = request.uri().path_and_query().unwrap().clone();
        *request.uri_mut() = path.into();
        let stream = TcpStream::connect(address).await;
        let stream = stream.map_err(failed(HttpErrorKind::Connect))?;
        let connection = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = connection.map_err(failed(HttpErrorKind::Connect))?;
        // The connection ends with the response; its errors appear in the request's result.
        tokio::spawn(connection);
        let response = sender.send_request(request).await;
        let response = response.map_err(failed(HttpErrorKind::Request))?;
        let body = |body: hyper::body::Incoming| {
            HttpResponseBody::new(body.map_err(failed(HttpErrorKind::Interrupted)))
        };
        Ok(response.map(body))
    }
}
