//! An object store that does something before each request, and changes answers.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::stream::{self, BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use zarrs_cuda::objects::object_store;

type Before = dyn Fn(&'static str) -> Result<()> + Send + Sync;
type Answer = dyn Fn(&mut ObjectMeta) + Send + Sync;

/// The object store `inner`, with other answers.
pub(crate) struct Double {
    pub(crate) inner: Arc<dyn ObjectStore>,
    /// Fails requests, or does something before them. Called with `GET`, `SUFFIX`, `HEAD`, `PUT`, `UPLOAD`, `DELETE`
    /// or `LIST`.
    pub(crate) before: Box<Before>,
    /// Changes what an answer says of an object.
    pub(crate) answer: Box<Answer>,
    /// The number of requests that are made now, and the largest number so far.
    pub(crate) now: AtomicUsize,
    pub(crate) most: AtomicUsize,
}

impl Double {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>) -> Self {
        Self {
            inner,
            before: Box::new(|_| Ok(())),
            answer: Box::new(|_| {}),
            now: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
        }
    }
}

impl fmt::Debug for Double {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Double {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a double")
    }
}

/// An error with a status, as that of a server.
pub(crate) fn with_status(status: &str) -> Error {
    Error::Generic {
        store: "S3",
        source: format!("the server answered {status}").into(),
    }
}

#[async_trait::async_trait]
impl ObjectStore for Double {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        (self.before)("PUT")?;
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        (self.before)("UPLOAD")?;
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let kind = match options {
            GetOptions { head: true, .. } => "HEAD",
            GetOptions {
                range: Some(object_store::GetRange::Suffix(_)),
                ..
            } => "SUFFIX",
            _ => "GET",
        };
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(now, Ordering::Relaxed);
        let before = (self.before)(kind);
        // Requests that are made at once have all begun before one of them ends.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        let got = match before {
            Ok(()) => self.inner.get_opts(location, options).await,
            Err(error) => Err(error),
        };
        self.now.fetch_sub(1, Ordering::Relaxed);
        let mut got = got?;
        (self.answer)(&mut got.meta);
        Ok(got)
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        match (self.before)("DELETE") {
            Ok(()) => self.inner.delete_stream(locations),
            Err(error) => stream::iter([Err(error)]).boxed(),
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match (self.before)("LIST") {
            Ok(()) => self.inner.list(prefix),
            Err(error) => stream::iter([Err(error)]).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        (self.before)("LIST")?;
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
