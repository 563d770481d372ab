//! The server: S3 by `s3s` over a directory, on a free port of this machine.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::TokioIo;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use s3s::auth::SimpleAuth;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s_fs::FileSystem;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use zarrs_object_store::AsyncObjectStore;

use crate::blocking::{BlockingStore, blocking};
use crate::plain_http::PlainHttp;

/// zarrs' store of an object store.
pub type Store = AsyncObjectStore<AmazonS3>;

const BUCKET: &str = "arrays";

/// The requests in order: the method, or `LIST` for a listing.
type Requests = Arc<Mutex<Vec<String>>>;

/// A server with an empty bucket. Dropping it stops the server and deletes the objects.
pub struct Server {
    address: SocketAddr,
    requests: Requests,
    directory: TempDir,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a server, which is ready when this returns.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(None)
    }

    /// Starts a server that checks the signature of each request: a key's name, and its secret.
    #[must_use]
    pub fn start_signed(key: &str, secret: &str) -> Self {
        Self::start_with(Some(SimpleAuth::from_single(key, secret)))
    }

    fn start_with(auth: Option<SimpleAuth>) -> Self {
        let directory = TempDir::new().unwrap();
        std::fs::create_dir(directory.path().join(BUCKET)).unwrap();
        let mut service = S3ServiceBuilder::new(FileSystem::new(directory.path()).unwrap());
        if let Some(auth) = auth {
            service.set_auth(auth);
        }
        let service = service.build();
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let requests = Requests::default();
        let asked = requests.clone();
        // The server has its own thread and runtime, so that it answers while a test blocks.
        let thread = std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).unwrap();
                tokio::select! {
                    () = serve(listener, service, asked) => {}
                    _ = stopped => {}
                }
            });
            // The end of the runtime closes all connections.
        });
        Self {
            address,
            requests,
            directory,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// The address on which the server listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the requests since the last call, in order: `GET`, `HEAD`, `PUT`, `DELETE` or
    /// `LIST`.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.requests.lock().unwrap())
    }

    /// The folder with the objects as files, named by their keys.
    #[must_use]
    pub fn bucket(&self) -> std::path::PathBuf {
        self.directory.path().join(Path::new(BUCKET))
    }

    /// The objects of the bucket, by a client of S3.
    #[must_use]
    pub fn objects(&self) -> AmazonS3 {
        let s3 = AmazonS3Builder::new()
            .with_endpoint(format!("http://{}", self.address))
            .with_allow_http(true)
            .with_virtual_hosted_style_request(false)
            .with_region("us-east-1")
            .with_bucket_name(BUCKET)
            .with_skip_signature(true)
            // Bulk deletion would be signed all the same, with another library that only it needs.
            .with_disable_bulk_delete(true)
            .with_http_connector(PlainHttp)
            .build();
        s3.unwrap()
    }

    /// An asynchronous store on the bucket, for use in a tokio runtime.
    #[must_use]
    pub fn store(&self) -> Store {
        AsyncObjectStore::new(self.objects())
    }

    /// A blocking store on the bucket.
    #[must_use]
    pub fn blocking_store(&self) -> BlockingStore {
        blocking(self.store())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // An error means that the server has already stopped.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let served = thread.join();
            assert!(
                served.is_ok() || std::thread::panicking(),
                "the server has panicked"
            );
        }
    }
}

/// Answers all connections, for ever.
async fn serve(listener: TcpListener, service: S3Service, requests: Requests) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (service, requests) = (service.clone(), requests.clone());
        let service = service_fn(move |request: Request<Incoming>| {
            let lists = request
                .uri()
                .query()
                .is_some_and(|query| query.contains("list-type"));
            let method = if lists {
                "LIST"
            } else {
                request.method().as_str()
            };
            requests.lock().unwrap().push(method.to_owned());
            Service::call(&service, request)
        });
        tokio::spawn(async move {
            let stream = TokioIo::new(stream);
            // A client that hangs up is not a server error.
            let _ = http1::Builder::new()
                .serve_connection(stream, service)
                .await;
        });
    }
}
