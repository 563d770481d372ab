//! Places that are no directories: objects of S3, and files of HTTP servers.
//!
//! Requests wait on a runtime of this module; nothing else of the command is asynchronous.

use std::error::Error as _;
use std::io;
use std::sync::{Arc, OnceLock};

use futures_util::{StreamExt, TryStreamExt};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{
    ClientConfigKey, ClientOptions, Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
    RetryConfig, UpdateVersion, WriteMultipart,
};
use tokio::runtime::{Builder, Runtime};
use zarrs_cuda::storage::within;
use zarrs_cuda::writer::{ConditionalStore, ValueVersion};
use zarrs_storage::byte_range::ByteRangeIterator;
use zarrs_storage::{
    Bytes, ListableStorageTraits, MaybeBytes, MaybeBytesIterator, OffsetBytesIterator,
    ReadableStorageTraits, StorageError, StoreKey, StoreKeys, StoreKeysPrefixes, StorePrefix,
    WritableStorageTraits, store_set_partial_many,
};

use crate::failure::Failure;
use crate::http::{self, Checking};
use crate::open::{Place, is_http, without_user};

/// Longer values are sent in parts: S3 takes 5 GiB at once, and parts go up side by side.
const LONG: usize = 64 << 20;

/// How long a request may take. `object_store` has 30 seconds, too few for a large shard on a slow line.
const TIMEOUT: &str = "600s";

/// How often the first request is tried again: a wrong address should not take minutes to be told.
const FIRST_RETRIES: usize = 3;

/// Settings of S3 that hide what they hold, by a part of their names.
const SECRETS: [&str; 4] = ["KEY", "TOKEN", "SECRET", "CREDENTIALS"];

type Result<T, E = StorageError> = std::result::Result<T, E>;

static RUNTIME: OnceLock<Runtime> = OnceLock::new();

fn runtime() -> Result<&'static Runtime, Failure> {
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    // The thread that asks does most of the work: these take what arrives.
    let made = Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("requests")
        .enable_all()
        .build();
    let made = made
        .map_err(|error| Failure::failed(format!("cannot start threads for requests: {error}")))?;
    Ok(RUNTIME.get_or_init(|| made))
}

/// Where an array or a group is.
enum Address<'a> {
    S3 { bucket: &'a str, path: Path },
    Http(&'a str),
}

impl<'a> Address<'a> {
    fn of(place: &Place, url: &'a str) -> Result<Self, Failure> {
        let wrong = |why: &str| Failure::usage(format!("cannot open {place}: {why}"));
        let (scheme, rest) = url.split_once("://").unwrap_or((url, ""));
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        if host.contains('@') {
            return Err(wrong(
                "it has a user name or password, which other programs of this machine can see",
            )
            .with_remedy(
                "leave it out; credentials of S3 are read from AWS_ACCESS_KEY_ID and others",
            ));
        }
        if host.is_empty() {
            return Err(wrong("it names no host or bucket")
                .with_remedy("write s3://BUCKET/PATH or https://HOST/PATH"));
        }
        if is_http(url) {
            if rest.contains(['?', '#']) {
                return Err(wrong("a query or fragment has no place in front of a key")
                    .with_remedy("leave out what begins with ? or #"));
            }
            return Ok(Self::Http(url));
        }
        if scheme.eq_ignore_ascii_case("s3") {
            let path = Path::parse(path.trim_end_matches('/'))
                .map_err(|error| wrong(&error.to_string()))?;
            return Ok(Self::S3 { bucket: host, path });
        }
        Err(wrong(&format!("{scheme}:// is not known"))
            .with_remedy("name a directory, or an address that begins with s3:// or https://"))
    }

    /// The store of what is below the address. It connects when it is first asked.
    fn store(&self, retries: usize) -> object_store::Result<Arc<dyn ObjectStore>> {
        let retry = RetryConfig {
            max_retries: retries,
            ..RetryConfig::default()
        };
        match self {
            Self::S3 { bucket, path } => {
                let mut builder = AmazonS3Builder::from_env()
                    .with_http_connector(Checking)
                    .with_bucket_name(*bucket)
                    .with_retry(retry);
                let timeout = AmazonS3ConfigKey::Client(ClientConfigKey::Timeout);
                if std::env::var_os("AWS_TIMEOUT").is_none() {
                    builder = builder.with_config(timeout, TIMEOUT);
                }
                Ok(Arc::new(PrefixStore::new(builder.build()?, path.clone())))
            }
            Self::Http(url) => {
                let options = ClientOptions::new()
                    .with_config(ClientConfigKey::Timeout, TIMEOUT)
                    .with_allow_http(url.as_bytes()[4] == b':'); // it is not https
                let builder = HttpBuilder::new()
                    .with_http_connector(Checking)
                    .with_url(*url)
                    .with_client_options(options)
                    .with_retry(retry);
                Ok(Arc::new(builder.build()?))
            }
        }
    }

    /// Why the first request failed, and what to do.
    fn failure(&self, place: &Place, error: &Error) -> Failure {
        let mut text = error.to_string();
        // The reason of a failed connection is in the last one alone.
        let mut cause = error.source();
        while let Some(deeper) = cause.and_then(|cause| cause.source()) {
            cause = Some(deeper);
        }
        if let Some(cause) = cause.map(ToString::to_string)
            && !text.contains(&cause)
        {
            text += &format!(": {cause}");
        }
        let failure = Failure::failed(format!("cannot open {place}: {}", tidy(&text)));
        let is_refused = matches!(
            error,
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. }
        );
        if !is_refused && let Some(remedy) = http::remedy(error, &text) {
            return failure.with_remedy(remedy);
        }
        match self {
            Self::S3 { bucket, .. } if text.contains("NoSuchBucket") => Failure::failed(format!(
                "cannot open {place}: there is no bucket {bucket}"
            ))
            .with_remedy("AWS_ENDPOINT_URL and AWS_REGION say where buckets are looked for"),
            Self::S3 { .. } if is_refused || !has_credentials() => failure.with_remedy(
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN), or \
                 AWS_SKIP_SIGNATURE=true for what everybody may read",
            ),
            Self::S3 { .. } => failure.with_remedy(
                "AWS_ENDPOINT_URL names the server, AWS_REGION its region, and AWS_ALLOW_HTTP=true \
                 allows http://",
            ),
            Self::Http(_) if is_refused => failure.with_remedy(
                "name an address that everybody may read; some servers answer so if there is no such file",
            ),
            Self::Http(_) => {
                failure.with_remedy("look whether the address is right, and this machine reaches it")
            }
        }
    }
}

/// Whether the environment says how requests are signed, or that they are not.
fn has_credentials() -> bool {
    ["ACCESS_KEY_ID", "SKIP_SIGNATURE", "WEB_IDENTITY_TOKEN_FILE"]
        .iter()
        .any(|name| std::env::var_os(format!("AWS_{name}")).is_some())
}

/// The store of a place. Requests to write and list are refused where HTTP is the protocol.
pub(crate) struct Remote {
    is_http: bool,
    objects: Arc<dyn ObjectStore>,
    runtime: &'static Runtime,
}

impl Remote {
    /// Opens the place with this address, whether something is there or not.
    ///
    /// # Errors
    /// The server cannot be reached, has no such bucket, or does not let this process read.
    pub(crate) fn open(place: &Place, url: &str) -> Result<Self, Failure> {
        let address = Address::of(place, url)?;
        let runtime = runtime()?;
        let cannot = |error| address.failure(place, &error);
        let first = address.store(FIRST_RETRIES).map_err(cannot)?;
        match runtime.block_on(first.get(&Path::from_iter(["zarr.json"]))) {
            Ok(_) => {}
            Err(Error::NotFound { source, .. }) if !source.to_string().contains("NoSuchBucket") => {
            }
            Err(error) => return Err(cannot(error)),
        }
        let retries = RetryConfig::default().max_retries;
        let objects = address.store(retries).map_err(cannot)?;
        Ok(Self {
            is_http: matches!(address, Address::Http(_)),
            objects,
            runtime,
        })
    }

    /// The keys of all objects, and their sizes in bytes.
    ///
    /// # Errors
    /// The errors of listings of the store.
    pub(crate) fn sizes(&self) -> Result<Vec<(String, u64)>> {
        self.objects_below(&StorePrefix::root())
    }

    /// The keys of the objects below `prefix`, and their sizes in bytes. One request answers for a thousand.
    fn objects_below(&self, prefix: &StorePrefix) -> Result<Vec<(String, u64)>> {
        self.must_list()?;
        let below = path_below(prefix)?;
        let listed = self.objects.list(below.as_ref());
        let sizes = listed.map_ok(|object| (object.location.to_string(), object.size));
        let sizes = self.runtime.block_on(sizes.try_collect());
        sizes.map_err(|error| not_listed(&error))
    }

    /// Calls `on_object` with the key of each object, its size in bytes, and what changes with its contents: the entity
    /// tag, or the time of its last change.
    ///
    /// # Errors
    /// The errors of listings of the store.
    pub(crate) fn versions(&self, mut on_object: impl FnMut(&str, u64, &str)) -> Result<()> {
        self.must_list()?;
        let listed = self.objects.list(None).try_for_each(|object| {
            let time = || object.last_modified.to_rfc3339();
            let version = object.e_tag.clone().unwrap_or_else(time);
            on_object(object.location.as_ref(), object.size, &version);
            std::future::ready(Ok(()))
        });
        let listed = self.runtime.block_on(listed);
        listed.map_err(|error| not_listed(&error))
    }

    fn must_list(&self) -> Result<()> {
        if self.is_http {
            return Err(StorageError::Unsupported("HTTP has no listing".to_string()));
        }
        Ok(())
    }

    fn must_write(&self) -> Result<()> {
        if self.is_http {
            let reason = "files of an HTTP server can only be read";
            return Err(StorageError::Unsupported(reason.to_string()));
        }
        Ok(())
    }

    async fn send(&self, path: &Path, value: Bytes) -> object_store::Result<()> {
        /// The largest number of parts that S3 takes for one object.
        const MOST: usize = 10_000;
        let part = (LONG / 4).max(value.len().div_ceil(MOST));
        let upload = self.objects.put_multipart(path).await?;
        let mut upload = WriteMultipart::new_with_chunk_size(upload, part);
        let mut rest = value;
        while !rest.is_empty() {
            if let Err(error) = upload.wait_for_capacity(8).await {
                // The first error is the one to report.
                let _ = upload.abort().await;
                return Err(error);
            }
            upload.put(rest.split_to(part.min(rest.len())));
        }
        // It aborts the upload if a part fails.
        upload.finish().await?;
        Ok(())
    }
}

/// The path of an object. Its characters stay as they are: `Path::from` would encode some of them, so that
/// a key would have one name here and another where a path is parsed.
fn path_of(key: &str) -> Result<Path> {
    Path::parse(key.trim_end_matches('/')).map_err(|error| {
        StorageError::Other(format!("no object can have the name {key:?}: {error}"))
    })
}

/// The path below which objects with the prefix lie; `None` for all objects.
fn path_below(prefix: &StorePrefix) -> Result<Option<Path>> {
    let path = path_of(prefix.as_str())?;
    Ok((!path.is_root()).then_some(path))
}

/// A value, or `None` if there is none.
fn found<T>(result: object_store::Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(told(&error)),
    }
}

/// The error of a listing: [`StorageError::Unsupported`] if the server has none for this process. Everybody may
/// read the objects of many public buckets, and nobody list them.
fn not_listed(error: &Error) -> StorageError {
    /// Statuses as `object_store` names them. It has no kind of error for them in listings.
    const REFUSED: [&str; 5] = [
        "401 Unauthorized",
        "403 Forbidden",
        "404 Not Found",
        "405 Method Not Allowed",
        "501 Not Implemented",
    ];
    match told(error) {
        StorageError::Other(text) if REFUSED.iter().any(|status| text.contains(status)) => {
            StorageError::Unsupported(format!("the server lists no objects: {text}"))
        }
        error => error,
    }
}

/// The error for people, without credentials.
fn told(error: &Error) -> StorageError {
    StorageError::Other(tidy(&error.to_string()))
}

/// Returns the message of a server in one line, without credentials. XML is replaced by its code and its
/// message. An HTML page is left out.
fn tidy(text: &str) -> String {
    let (head, body) = text.split_at(text.find('<').unwrap_or(text.len()));
    let within = |name: &str| {
        let (_, rest) = body.split_once(&format!("<{name}>"))?;
        Some(rest.split_once("</")?.0.trim())
    };
    let body: Vec<_> = [within("Code"), within("Message")]
        .into_iter()
        .flatten()
        .filter(|part| !part.is_empty())
        .collect();
    // Servers repeat what they were sent.
    let secrets = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.to_str()?.to_ascii_uppercase();
        let is_secret = SECRETS.iter().any(|part| name.contains(part));
        let value = value.into_string().ok()?;
        (name.starts_with("AWS_") && is_secret && !value.is_empty()).then_some(value)
    });
    let text = secrets.fold(format!("{head}{}", body.join(": ")), |text, secret| {
        text.replace(&secret, "…")
    });
    let words: Vec<_> = text.split_whitespace().map(without_user).collect();
    let text = words.join(" ");
    if let Some(text) = http::in_words(&text) {
        return text.into();
    }
    let mut text = text.trim_end_matches([':', ' ']);
    // The address says already whose error this is. Users do not need the number of attempts.
    for whose in ["Generic S3 error: ", "Generic HTTP error: "] {
        text = text.strip_prefix(whose).unwrap_or(text);
    }
    match text.split_once(", after ") {
        Some((before, rest)) if rest.contains("max_retries") => {
            let after = rest.split_once(" - ").map_or("", |(_, after)| after);
            format!("{before} - {after}")
        }
        _ => text.to_string(),
    }
}

impl ReadableStorageTraits for Remote {
    fn get(&self, key: &StoreKey) -> Result<MaybeBytes> {
        let path = path_of(key.as_str())?;
        let value = async { self.objects.get(&path).await?.bytes().await };
        found(self.runtime.block_on(value))
    }

    fn get_partial_many<'a>(
        &'a self,
        key: &StoreKey,
        byte_ranges: ByteRangeIterator<'a>,
    ) -> Result<MaybeBytesIterator<'a>> {
        let Some(size) = self.size_key(key)? else {
            return Ok(None);
        };
        let path = path_of(key.as_str())?;
        let ranges: Result<Vec<_>> = byte_ranges.map(|range| within(range, size)).collect();
        let ranges = ranges?;
        let parts = self.objects.get_ranges(&path, &ranges);
        let Some(parts) = found(self.runtime.block_on(parts))? else {
            return Ok(None);
        };
        let parts = ranges.into_iter().zip(parts).map(|(range, bytes)| {
            let wanted = range.end.saturating_sub(range.start);
            if bytes.len() as u64 == wanted {
                return Ok(bytes);
            }
            Err(StorageError::Other(format!(
                "the server sent {} bytes, and {wanted} were asked for",
                bytes.len()
            )))
        });
        Ok(Some(Box::new(parts)))
    }

    fn size_key(&self, key: &StoreKey) -> Result<Option<u64>> {
        let path = path_of(key.as_str())?;
        let object = found(self.runtime.block_on(self.objects.head(&path)))?;
        Ok(object.map(|object| object.size))
    }

    fn supports_get_partial(&self) -> bool {
        true
    }
}

impl WritableStorageTraits for Remote {
    fn set(&self, key: &StoreKey, value: Bytes) -> Result<()> {
        self.must_write()?;
        let path = path_of(key.as_str())?;
        let stored = if value.len() < LONG {
            let stored = self.runtime.block_on(self.objects.put(&path, value.into()));
            stored.map(|_| ())
        } else {
            self.runtime.block_on(self.send(&path, value))
        };
        stored.map_err(|error| told(&error))
    }

    fn set_partial_many(&self, key: &StoreKey, parts: OffsetBytesIterator) -> Result<()> {
        store_set_partial_many(self, key, parts)
    }

    fn erase(&self, key: &StoreKey) -> Result<()> {
        self.must_write()?;
        let path = path_of(key.as_str())?;
        found(self.runtime.block_on(self.objects.delete(&path))).map(drop)
    }

    fn erase_prefix(&self, prefix: &StorePrefix) -> Result<()> {
        self.must_write()?;
        let below = path_below(prefix)?;
        let below = self.objects.list(below.as_ref());
        let below = below.map_ok(|object| object.location).boxed();
        let erased = self.objects.delete_stream(below);
        let erased = erased.try_for_each(|_| std::future::ready(Ok(())));
        self.runtime.block_on(erased).map_err(|error| told(&error))
    }

    fn supports_set_partial(&self) -> bool {
        false
    }
}

impl ListableStorageTraits for Remote {
    fn list(&self) -> Result<StoreKeys> {
        self.list_prefix(&StorePrefix::root())
    }

    fn list_prefix(&self, prefix: &StorePrefix) -> Result<StoreKeys> {
        let keys = self.objects_below(prefix)?;
        let keys = keys.into_iter().map(|(key, _)| StoreKey::new(key));
        let mut keys: StoreKeys = keys.collect::<std::result::Result<_, _>>()?;
        keys.sort();
        Ok(keys)
    }

    fn list_dir(&self, prefix: &StorePrefix) -> Result<StoreKeysPrefixes> {
        self.must_list()?;
        let below = path_below(prefix)?;
        let listed = self.objects.list_with_delimiter(below.as_ref());
        let listed = self.runtime.block_on(listed);
        let listed = listed.map_err(|error| not_listed(&error))?;
        let keys = listed.objects.iter();
        let keys = keys.map(|object| StoreKey::new(object.location.as_ref()));
        let mut keys: StoreKeys = keys.collect::<std::result::Result<_, _>>()?;
        let prefixes = listed.common_prefixes.iter();
        let prefixes = prefixes.map(|path| StorePrefix::new(format!("{path}/")));
        let mut prefixes: Vec<_> = prefixes.collect::<std::result::Result<_, _>>()?;
        keys.sort();
        prefixes.sort();
        Ok(StoreKeysPrefixes::new(keys, prefixes))
    }

    fn size_prefix(&self, prefix: &StorePrefix) -> Result<u64> {
        let objects = self.objects_below(prefix)?;
        Ok(objects.iter().map(|(_, size)| size).sum())
    }
}

impl ConditionalStore for Remote {
    fn get_with_version(&self, key: &StoreKey) -> Result<Option<(Bytes, ValueVersion)>> {
        let path = path_of(key.as_str())?;
        let got = self.runtime.block_on(async {
            let got = self.objects.get(&path).await?;
            let version = (got.meta.e_tag.clone(), got.meta.version.clone());
            Ok((got.bytes().await?, version))
        });
        let Some((value, (e_tag, version))) = found(got)? else {
            return Ok(None);
        };
        Ok(Some((value, told_version(e_tag, version)?)))
    }

    fn set_if(
        &self,
        key: &StoreKey,
        value: Bytes,
        version: Option<&ValueVersion>,
    ) -> Result<Option<ValueVersion>> {
        self.must_write()?;
        let path = path_of(key.as_str())?;
        let mode = version.cloned().map_or(PutMode::Create, |version| {
            PutMode::Update(UpdateVersion {
                e_tag: version.e_tag,
                version: version.version,
            })
        });
        let put = self
            .objects
            .put_opts(&path, value.into(), PutOptions::from(mode));
        match self.runtime.block_on(put) {
            Ok(put) => told_version(put.e_tag, put.version).map(Some),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(None),
            Err(error @ (Error::PermissionDenied { .. } | Error::Unauthenticated { .. })) => {
                let text = tidy(&error.to_string());
                Err(io::Error::new(io::ErrorKind::PermissionDenied, text).into())
            }
            Err(error) => Err(match told(&error) {
                StorageError::Other(text) if is_not_implemented(&error, &text) => {
                    StorageError::Unsupported(text)
                }
                error => error,
            }),
        }
    }
}

/// The version of an object.
///
/// # Errors
/// [`StorageError::Unsupported`] if the server tells none.
fn told_version(e_tag: Option<String>, version: Option<String>) -> Result<ValueVersion> {
    if e_tag.is_none() && version.is_none() {
        let reason = "the server does not tell versions of objects";
        return Err(StorageError::Unsupported(reason.to_string()));
    }
    Ok(ValueVersion { e_tag, version })
}

/// Whether a server has no requests with conditions. `object_store` has no kind of error for its answer.
fn is_not_implemented(error: &Error, text: &str) -> bool {
    matches!(
        error,
        Error::NotImplemented { .. } | Error::NotSupported { .. }
    ) || text.contains("501 Not Implemented")
}

#[cfg(test)]
mod tests {
    use super::{Address, tidy};
    use crate::open::Place;

    #[test]
    fn addresses_that_make_no_sense() {
        for wrong in [
            "s3://",
            "s3:///path",
            "s3://bucket/a//b",
            "s3://bucket/a/../b",
            "https://",
            "https:///array",
            "https://host/array?version=1",
            "https://host/array#part",
            "https://user:password@host/array",
            "s3://key:secret@bucket/array",
            "gs://bucket/array",
            "file:///array",
        ] {
            let place: Place = wrong.parse().unwrap();
            let Err(failure) = Address::of(&place, wrong) else {
                panic!("{wrong} was taken")
            };
            let text = format!("{failure:?}");
            assert!(
                !text.contains("password") || text.contains("or password"),
                "{text}"
            );
            assert!(
                !text.contains("user:") && !text.contains("secret"),
                "{text}"
            );
            assert!(!text.contains("version=1"), "{text}");
        }
    }

    #[test]
    fn addresses() {
        for (url, is_s3) in [
            ("s3://bucket", true),
            ("S3://bucket/", true),
            ("s3://bucket/a b/c.zarr/", true),
            ("https://host", false),
            ("HTTP://host:80/a/b", false),
        ] {
            let place: Place = url.parse().unwrap();
            let address = Address::of(&place, url).unwrap();
            assert_eq!(matches!(address, Address::S3 { .. }), is_s3, "{url}");
        }
    }

    #[test]
    fn what_servers_say_is_one_line() {
        let xml = "failed: <?xml version=\"1.0\"?>\n<Error><Code>NoSuchBucket</Code>\
                   <Message>There is none</Message><AWSAccessKeyId>AK</AWSAccessKeyId></Error>";
        assert_eq!(tidy(xml), "failed: NoSuchBucket: There is none");
        assert_eq!(tidy("failed: <html><h1>no</h1></html>"), "failed");
        assert_eq!(
            tidy("at http://me:secret@host/a now"),
            "at http://***@host/a now"
        );
        assert_eq!(tidy("plain"), "plain");
        assert_eq!(tidy("plain, after all"), "plain, after all");
        let tried = "Generic S3 error: Error performing GET http://host/a in 4ms, after 3 retries, \
                     max_retries: 3, retry_timeout: 180s  - HTTP error: no";
        assert_eq!(
            tidy(tried),
            "Error performing GET http://host/a in 4ms - HTTP error: no"
        );
    }
}
