//! Opens places that are no directories: objects of S3, and files of HTTP servers.

use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{
    ClientConfigKey, ClientOptions, Error, ObjectStore, ObjectStoreExt, RetryConfig,
};
use zarrs_cuda::objects::{BlockingObjectStore, message};

use crate::failure::Failure;
use crate::http::{self, Checking};
use crate::open::{Place, is_http};

/// The time that one request may take. `object_store` has 30 seconds, too few for a large shard on a slow
/// line.
const TIMEOUT: &str = "600s";

/// The number of times that the first request is repeated: the error for a wrong address should not take
/// minutes.
const FIRST_RETRIES: usize = 3;

/// Parts of the names of S3 settings whose values are secret, and are left out of messages.
const SECRETS: [&str; 4] = ["KEY", "TOKEN", "SECRET", "CREDENTIALS"];

/// The address of an array or a group, in parts.
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

    /// Returns the store of the objects below the address. The store connects with its first request.
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
                    .with_allow_http(url.as_bytes()[4] == b':'); // with http, and not https
                let builder = HttpBuilder::new()
                    .with_http_connector(Checking)
                    .with_url(*url)
                    .with_client_options(options)
                    .with_retry(retry);
                Ok(Arc::new(builder.build()?))
            }
        }
    }

    /// Returns the reason why the first request failed, and a remedy.
    fn failure(&self, place: &Place, error: &Error) -> Failure {
        let text = in_words(message(error));
        let failure = Failure::failed(format!("cannot open {place}: {text}"));
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

/// Returns whether environment variables say how to sign requests, or not to sign them.
fn has_credentials() -> bool {
    ["ACCESS_KEY_ID", "SKIP_SIGNATURE", "WEB_IDENTITY_TOKEN_FILE"]
        .iter()
        .any(|name| std::env::var_os(format!("AWS_{name}")).is_some())
}

/// Opens the store at the address `url`, even if it is empty. For HTTP, the store refuses requests to write
/// and to list.
///
/// # Errors
/// The server cannot be reached, has no such bucket, or does not let this process read.
pub(crate) fn open(place: &Place, url: &str) -> Result<BlockingObjectStore, Failure> {
    let address = Address::of(place, url)?;
    let cannot = |error| address.failure(place, &error);
    let first = BlockingObjectStore::new(address.store(FIRST_RETRIES).map_err(cannot)?);
    let path = Path::from_iter(["zarr.json"]);
    let got = first.run(|store| async move { store.get(&path).await });
    match got.map_err(|error| Failure::failed(format!("cannot open {place}: {error}")))? {
        Ok(_) => {}
        Err(Error::NotFound { source, .. }) if !source.to_string().contains("NoSuchBucket") => {}
        Err(error) => return Err(cannot(error)),
    }
    let retries = RetryConfig::default().max_retries;
    let store = address.store(retries).map_err(cannot)?;
    let store = BlockingObjectStore::new(store).with_words(in_words);
    Ok(match &address {
        Address::S3 { .. } => store,
        Address::Http(_) => store
            .without_listings("HTTP has no listing")
            .without_writes("files of an HTTP server can only be read"),
    })
}

/// Returns `message` without credentials, which servers may repeat, and with a clearer text for known errors.
fn in_words(message: String) -> String {
    let secrets = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.to_str()?.to_ascii_uppercase();
        let is_secret = SECRETS.iter().any(|part| name.contains(part));
        let value = value.into_string().ok()?;
        (name.starts_with("AWS_") && is_secret && !value.is_empty()).then_some(value)
    });
    let text = secrets.fold(message, |text, secret| text.replace(&secret, "…"));
    http::in_words(&text).map_or(text, str::to_string)
}

#[cfg(test)]
mod tests {
    use super::Address;
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
}
