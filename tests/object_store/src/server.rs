//! The server: S3 as `s3s` speaks it, over a directory, on a port of this machine that was free.

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

/// What was asked, in order: the method, and `LIST` for one that lists.
type Requests = Arc<Mutex<Vec<String>>>;

/// A server with an empty bucket. It goes down, and its objects go with it, when this is dropped.
pub struct Server {
    address: SocketAddr,
    requests: Requests,
    directory: TempDir,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Start one, which is up when this returns.
    #[must_use]
    pub fn start() -> Self {
        let directory = TempDir::new().unwrap();
        std::fs::create_dir(directory.path().join(BUCKET)).unwrap();
        let service = S3ServiceBuilder::new(FileSystem::new(directory.path()).unwrap()).build();
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let requests = Requests::default();
        let asked = requests.clone();
        // A thread and a runtime of its own: it answers while a test blocks.
        let thread = std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).unwrap();
                tokio::select! {
                    () = serve(listener, service, asked) => {}
                    _ = stopped => {}
                }
            });
            // With the runtime end all connections.
        });
        Self {
            address,
            requests,
            directory,
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What was asked since this was called last: `GET`, `HEAD`, `PUT`, `DELETE` or `LIST`, in order.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.requests.lock().unwrap())
    }

    /// Where the objects are files, by their keys.
    #[must_use]
    pub fn bucket(&self) -> std::path::PathBuf {
        self.directory.path().join(Path::new(BUCKET))
    }

    /// The bucket, for those who await it in a runtime of tokio.
    #[must_use]
    pub fn store(&self) -> Store {
        let s3 = AmazonS3Builder::new()
            .with_endpoint(format!("http://{}", self.address))
            .with_allow_http(true)
            .with_virtual_hosted_style_request(false)
            .with_region("us-east-1")
            .with_bucket_name(BUCKET)
            .with_skip_signature(true)
            // Deleting many at once is signed nevertheless, with a library that nothing else needs.
            .with_disable_bulk_delete(true)
            .with_http_connector(PlainHttp)
            .build();
        AsyncObjectStore::new(s3.unwrap())
    }

    /// The bucket, for threads that block.
    #[must_use]
    pub fn blocking_store(&self) -> BlockingStore {
        blocking(self.store())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // It has stopped already if nobody listens.
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

/// Answer whoever connects, for ever.
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
            // A client that hangs up is not an error of the server's.
            let _ = http1::Builder::new()
                .serve_connection(stream, service)
                .await;
        });
    }
}
