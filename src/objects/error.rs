//! Makes zarrs' errors from errors of object stores: in one line, with their kind and their source.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::io;

use object_store::Error;
use zarrs_storage::StorageError;

/// An error of an object store, with a message for people.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
struct RequestError {
    message: String,
    source: Error,
}

/// Returns `error` as an error of zarrs, whose message is changed by `words`.
pub(super) fn storage_error(error: Error, words: fn(String) -> String) -> StorageError {
    let kind = if has_no_answer(&error) {
        io::ErrorKind::TimedOut
    } else if is_refused(&error) {
        io::ErrorKind::PermissionDenied
    } else if is_unknown(&error) {
        io::ErrorKind::Unsupported
    } else {
        io::ErrorKind::Other
    };
    let message = words(message(&error));
    let source = error;
    io::Error::new(kind, RequestError { message, source }).into()
}

/// Returns the error of a listing: [`StorageError::Unsupported`] if the server lists nothing for this
/// process. In many public buckets, everybody may read objects, but not list them.
pub(super) fn listing(error: Error, words: fn(String) -> String) -> StorageError {
    // `object_store` has no own kind of error for these answers to a listing.
    let no_listing = ["404 Not Found", "405 Method Not Allowed"];
    if is_refused(&error) || is_unknown(&error) || has_status(&error, &no_listing) {
        let message = words(message(&error));
        return StorageError::Unsupported(format!("the server lists no objects: {message}"));
    }
    storage_error(error, words)
}

/// Returns the error of a request with a condition: [`StorageError::Unsupported`] if the server does not
/// support such requests.
pub(super) fn conditional(error: Error, words: fn(String) -> String) -> StorageError {
    if is_unknown(&error) {
        return StorageError::Unsupported(words(message(&error)));
    }
    storage_error(error, words)
}

/// Returns whether the server was not reached.
pub(super) fn has_no_answer(error: &Error) -> bool {
    // The causes have types of the HTTP client, so only their text tells whether there was no answer.
    causes(error).any(|cause| {
        let text = cause.to_string();
        text.contains("timed out") || text.contains("error sending request")
    })
}

/// Returns whether the server does not permit the request to this process.
fn is_refused(error: &Error) -> bool {
    matches!(
        error,
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. }
    ) || has_status(error, &["401 Unauthorized", "403 Forbidden"])
}

/// Returns whether the object store or its server does not support the request.
fn is_unknown(error: &Error) -> bool {
    matches!(
        error,
        Error::NotImplemented { .. } | Error::NotSupported { .. }
    ) || has_status(error, &["501 Not Implemented"])
}

/// Returns whether a server answered with one of these statuses, in the form that `object_store` has in
/// messages.
fn has_status(error: &Error, statuses: &[&str]) -> bool {
    let text = error.to_string();
    statuses.iter().any(|status| text.contains(status))
}

fn causes(error: &Error) -> impl Iterator<Item = &(dyn StdError + 'static)> {
    let first: &(dyn StdError + 'static) = error;
    std::iter::successors(Some(first), |&cause| cause.source())
}

/// Returns the message of an error in one line, with its last cause.
///
/// The XML of a server is replaced by its code and its message, and a page in HTML is left out, because
/// servers repeat parts of requests in both. User names and passwords in addresses are left out, and so is
/// the number of attempts.
///
/// ```
/// use zarrs_cuda::objects::{message, object_store};
///
/// let answer = "error sending request for url (https://me:secret@example.org/c/0)";
/// let error = object_store::Error::Generic { store: "S3", source: answer.into() };
/// let line = message(&error); // for a log
/// assert!(line.contains("example.org/c/0") && !line.contains("secret"));
/// ```
#[must_use]
pub fn message(error: &Error) -> String {
    let mut text = error.to_string();
    // Only the last cause tells why a connection failed.
    if let Some(cause) = causes(error).last().map(ToString::to_string)
        && !text.contains(&cause)
    {
        text = format!("{text}: {cause}");
    }
    tidy(&text)
}

fn tidy(text: &str) -> String {
    let (head, body) = text.split_at(text.find('<').unwrap_or(text.len()));
    let within = |name: &str| {
        let (_, rest) = body.split_once(&format!("<{name}>"))?;
        Some(rest.split_once("</")?.0.trim()).filter(|part| !part.is_empty())
    };
    let body: Vec<_> = ["Code", "Message"].into_iter().filter_map(within).collect();
    let text = format!("{head}{}", body.join(": "));
    let words: Vec<_> = text.split_whitespace().map(without_user).collect();
    let text = words.join(" ");
    let mut text = text.trim_end_matches([':', ' ']);
    // The name of the store is not needed, because the message has the address or the key.
    if let Some((store, rest)) = text.split_once(" error: ")
        && store.starts_with("Generic ")
    {
        text = rest;
    }
    match text.split_once(", after ") {
        Some((before, rest)) if rest.contains("max_retries") => {
            let after = rest.split_once(" - ").map_or("", |(_, after)| after);
            format!("{before} - {after}")
        }
        _ => text.to_owned(),
    }
}

/// Returns `word` without user name and password, if it is an address that has them.
fn without_user(word: &str) -> Cow<'_, str> {
    let user = word.split_once("://").and_then(|(scheme, rest)| {
        let host = rest.split('/').next().unwrap_or(rest);
        Some((scheme, &rest[host.rfind('@')?..]))
    });
    user.map_or(word.into(), |(scheme, rest)| {
        format!("{scheme}://***{rest}").into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_of_a_server_is_one_line() {
        let xml = "failed: <?xml version=\"1.0\"?>\n<Error><Code>NoSuchBucket</Code>\
                   <Message>There is none</Message><AWSAccessKeyId>AK</AWSAccessKeyId></Error>";
        assert_eq!(tidy(xml), "failed: NoSuchBucket: There is none");
        assert_eq!(tidy("failed: <html><h1>no</h1></html>"), "failed");
        assert_eq!(
            tidy("at http://me:secret@host/a now"),
            "at http://***@host/a now"
        );
        assert_eq!(tidy("http://host/a@b"), "http://host/a@b");
        assert_eq!(tidy("plain"), "plain");
        assert_eq!(tidy("plain, after all"), "plain, after all");
        let tried = "Generic S3 error: Error performing GET http://host/a in 4ms, after 3 retries, \
                     max_retries: 3, retry_timeout: 180s  - HTTP error: no";
        assert_eq!(
            tidy(tried),
            "Error performing GET http://host/a in 4ms - HTTP error: no"
        );
    }

    /// An error of the store, with a status in its message.
    fn generic(message: &str) -> Error {
        Error::Generic {
            store: "S3",
            source: message.into(),
        }
    }

    #[test]
    fn errors_keep_their_kind_and_source() {
        use io::ErrorKind::{Other, PermissionDenied, TimedOut, Unsupported};
        let path = || "a".to_owned();
        let source = || "no".into();
        for (error, kind) in [
            (generic("operation timed out"), TimedOut),
            (generic("error sending request for url"), TimedOut),
            (generic("403 Forbidden"), PermissionDenied),
            (generic("501 Not Implemented"), Unsupported),
            (generic("500 Internal Server Error"), Other),
            (
                Error::PermissionDenied {
                    path: path(),
                    source: source(),
                },
                PermissionDenied,
            ),
            (Error::NotSupported { source: source() }, Unsupported),
            (
                Error::AlreadyExists {
                    path: path(),
                    source: source(),
                },
                Other,
            ),
        ] {
            let text = message(&error);
            let StorageError::IOError(found) = storage_error(error, |text| text + "!") else {
                panic!("{text} is no error of the system")
            };
            assert_eq!(found.kind(), kind, "{text}");
            assert_eq!(found.to_string(), format!("{text}!"));
            let request = found.get_ref().unwrap();
            let source = request.source().unwrap();
            assert!(source.downcast_ref::<Error>().is_some(), "{text}");
        }
    }

    #[test]
    fn listings_and_conditions_that_a_server_has_not() {
        let words: fn(String) -> String = |text| text;
        for (status, has_listing, has_conditions) in [
            ("401 Unauthorized", false, true),
            ("403 Forbidden", false, true),
            ("404 Not Found", false, true),
            ("405 Method Not Allowed", false, true),
            ("501 Not Implemented", false, false),
            ("500 Internal Server Error", true, true),
        ] {
            let is_unsupported = |error| matches!(error, StorageError::Unsupported(_));
            let listing = listing(generic(status), words);
            assert_eq!(is_unsupported(listing), !has_listing, "{status}");
            let conditional = conditional(generic(status), words);
            assert_eq!(is_unsupported(conditional), !has_conditions, "{status}");
        }
    }
}
