//! Checks the answers of HTTP servers before their bodies count as the bytes of a file.
//!
//! `object_store` checks only the status of an answer. It would return a web page in place of a file, a
//! compressed body, or a body whose length contradicts its headers. If a connection breaks off within a body,
//! it repeats the request only if the server sends entity tags.

use std::error::Error as StdError;
use std::fmt;
use std::ops::Range;

use futures_util::StreamExt;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};
use object_store::{ClientOptions, Error};

/// Makes HTTP clients that check the answers of servers.
#[derive(Debug)]
pub(crate) struct Checking;

impl HttpConnector for Checking {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(Checked(client)))
    }
}

#[derive(Debug)]
struct Checked(HttpClient);

#[async_trait::async_trait]
impl HttpService for Checked {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let method = request.method().as_str();
        let is_head = method == "HEAD";
        if !is_head && method != "GET" {
            return self.0.execute(request).await;
        }
        let range = request.headers().get("range");
        let range = range.map(|range| range.to_str().unwrap_or_default().to_string());
        if let Ok(identity) = "identity".parse() {
            // The request is signed already. Its signature covers only the headers that it had then, so that
            // this one may be added.
            request.headers_mut().insert("accept-encoding", identity);
        }
        let response = self.0.execute(request).await?;
        if !response.status().is_success() {
            return Ok(response);
        }
        let answer = Answer::of(&response);
        answer.check(range.as_deref()).map_err(Unfit::into_error)?;
        if is_head || answer.is_resumed() {
            return Ok(response);
        }
        whole(response, &answer).await.map_err(Unfit::into_error)
    }
}

/// The status and the headers of an answer.
struct Answer {
    status: u16,
    content_type: String,
    encoding: String,
    length: Option<u64>,
    content_range: Option<String>,
    has_version: bool,
}

impl Answer {
    fn of(response: &HttpResponse) -> Self {
        let header = |name: &str| {
            let value = response.headers().get(name)?;
            Some(String::from_utf8_lossy(value.as_bytes()).trim().to_string())
        };
        Self {
            status: response.status().as_u16(),
            content_type: header("content-type")
                .unwrap_or_default()
                .to_ascii_lowercase(),
            encoding: header("content-encoding")
                .unwrap_or_default()
                .to_ascii_lowercase(),
            length: header("content-length").and_then(|length| length.parse().ok()),
            content_range: header("content-range"),
            has_version: header("etag").is_some(),
        }
    }

    /// Returns whether `object_store` requests the rest of a body that breaks off. For other answers, this
    /// module repeats the whole request.
    fn is_resumed(&self) -> bool {
        /// The size in bytes up to which an answer is requested again as a whole.
        const LONG: u64 = 8 << 20;
        self.has_version && self.length.is_none_or(|length| length > LONG)
    }

    /// Returns the range of bytes in `Content-Range`, and the size of the whole file if the header has it;
    /// `None` if there is no such header.
    fn part(&self) -> Option<(Range<u64>, Option<u64>)> {
        let (range, size) = self
            .content_range
            .as_ref()?
            .strip_prefix("bytes ")?
            .split_once('/')?;
        let (first, last) = range.split_once('-')?;
        let range = first.trim().parse().ok()?..last.trim().parse::<u64>().ok()?.checked_add(1)?;
        Some((range, size.trim().parse().ok()))
    }

    /// Checks the answer to a request with the header `range`, or for the whole file.
    fn check(&self, range: Option<&str>) -> Result<(), Unfit> {
        /// Encodings in which the bytes of an answer are not those of the file.
        const ENCODINGS: [&str; 6] = ["gzip", "x-gzip", "deflate", "br", "zstd", "compress"];
        if self.content_type.starts_with("text/html")
            || self.content_type.starts_with("application/xhtml")
        {
            return Err(Unfit::Page);
        }
        let mut encodings = self.encoding.split(',').map(str::trim);
        if encodings.any(|encoding| ENCODINGS.contains(&encoding)) {
            return Err(Unfit::Encoded(self.encoding.clone()));
        }
        match (range, self.status) {
            (None, 206) => Err(self.other_part("all bytes")),
            (None, _) => Ok(()),
            (Some(asked), 206) => self.check_part(asked),
            (Some(_), _) => Err(Unfit::NoParts),
        }
    }

    fn check_part(&self, asked: &str) -> Result<(), Unfit> {
        let Some((part, size)) = self.part() else {
            return Err(self.other_part(asked));
        };
        if !is_asked(asked, &part, size) {
            return Err(self.other_part(asked));
        }
        match self.length {
            Some(length) if part.end.checked_sub(part.start) != Some(length) => {
                Err(Unfit::Lengths {
                    part: self.content_range.clone().unwrap_or_default(),
                    length,
                })
            }
            _ => Ok(()),
        }
    }

    fn other_part(&self, asked: &str) -> Unfit {
        let sent = self.content_range.clone();
        Unfit::OtherPart {
            asked: asked.to_string(),
            sent: sent.unwrap_or_else(|| "no Content-Range".to_string()),
        }
    }
}

/// Returns whether `part`, of a file of `size` bytes, is the range that the header `asked` requests.
fn is_asked(asked: &str, part: &Range<u64>, size: Option<u64>) -> bool {
    let Some((first, last)) = asked
        .strip_prefix("bytes=")
        .and_then(|asked| asked.split_once('-'))
    else {
        return false;
    };
    let [first, last] = [first, last].map(|number| number.parse::<u64>().ok());
    match (first, last, size) {
        // The end of the file bounds the range.
        (Some(first), Some(last), size) => {
            let end = last.saturating_add(1);
            part.start == first && part.end == size.map_or(end, |size| end.min(size))
        }
        (Some(first), None, size) => {
            part.start == first && size.is_none_or(|size| part.end == size)
        }
        (None, Some(count), Some(size)) => *part == (size.saturating_sub(count)..size),
        (None, Some(count), None) => part.end.checked_sub(part.start) == Some(count),
        (None, None, _) => false,
    }
}

/// Waits for the whole body: if the body breaks off, the error makes `object_store` repeat the request.
async fn whole(response: HttpResponse, answer: &Answer) -> Result<HttpResponse, Unfit> {
    let (head, body) = response.into_parts();
    let mut bytes = Vec::new();
    let length = answer.length;
    let reserved = usize::try_from(length.unwrap_or(0)).ok();
    let reserved = reserved.and_then(|length| bytes.try_reserve_exact(length).ok());
    reserved.ok_or(Unfit::Memory(length.unwrap_or(0)))?;
    let mut parts = body.bytes_stream();
    while let Some(part) = parts.next().await {
        let part = part.map_err(|error| Unfit::Cut {
            after: bytes.len(),
            length,
            is_late: error.kind() == HttpErrorKind::Timeout,
        })?;
        let room = bytes.try_reserve(part.len());
        room.map_err(|_| Unfit::Memory(part.len() as u64))?;
        bytes.extend_from_slice(&part);
    }
    if length.is_some_and(|length| bytes.len() as u64 != length) {
        return Err(Unfit::Cut {
            after: bytes.len(),
            length,
            is_late: false,
        });
    }
    let begins = answer.part().is_none_or(|(part, _)| part.start == 0);
    if begins && is_page(&bytes) {
        return Err(Unfit::Page);
    }
    Ok(HttpResponse::from_parts(head, bytes.into()))
}

/// Returns whether `bytes` are a web page, whatever the header `Content-Type` says.
fn is_page(bytes: &[u8]) -> bool {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let bytes = bytes.trim_ascii_start();
    [&b"<!doctype html"[..], b"<html"].iter().any(|begin| {
        bytes
            .get(..begin.len())
            .is_some_and(|bytes| bytes.eq_ignore_ascii_case(begin))
    })
}

/// The reason why an answer does not fit the request.
#[derive(Debug, PartialEq, Eq)]
enum Unfit {
    Page,
    Encoded(String),
    NoParts,
    OtherPart {
        asked: String,
        sent: String,
    },
    Lengths {
        part: String,
        length: u64,
    },
    Cut {
        after: usize,
        length: Option<u64>,
        is_late: bool,
    },
    Memory(u64),
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Page => f.write_str("the server sent a web page in place of the file"),
            Self::Encoded(encoding) => write!(
                f,
                "the server sent the file with Content-Encoding: {encoding}, so these are not its bytes"
            ),
            Self::NoParts => f.write_str(NO_PARTS),
            Self::OtherPart { asked, sent } => {
                write!(f, "the server was asked for {asked}, and sent {sent}")
            }
            Self::Lengths { part, length } => write!(
                f,
                "the server sent {length} bytes, and says that they are {part}"
            ),
            Self::Cut {
                after,
                length,
                is_late,
            } => {
                let how = if *is_late {
                    "took too long"
                } else {
                    "was cut off"
                };
                write!(f, "the answer {how} after {after} ")?;
                match length {
                    Some(length) => write!(f, "of {length} bytes"),
                    None => f.write_str("bytes"),
                }
            }
            Self::Memory(bytes) => write!(f, "out of memory: {bytes} bytes for an answer"),
        }
    }
}

impl StdError for Unfit {}

impl Unfit {
    fn into_error(self) -> HttpError {
        let kind = match self {
            // `object_store` repeats a request after a timeout.
            Self::Cut { is_late: true, .. } => HttpErrorKind::Timeout,
            Self::Cut { .. } => HttpErrorKind::Interrupted,
            _ => HttpErrorKind::Unknown,
        };
        HttpError::new(kind, self)
    }

    fn remedy(&self) -> &'static str {
        match self {
            Self::Page => {
                "name the address of the array itself; a server that wants a login, or sends a page \
                 where it has no file, cannot be read"
            }
            Self::Encoded(_) => "have the server send files as they are, without compressing them",
            Self::NoParts | Self::OtherPart { .. } | Self::Lengths { .. } => {
                "have the array served by a server that answers Range as RFC 9110 says, or copy it to \
                 this machine first"
            }
            Self::Cut { .. } => AGAIN,
            Self::Memory(_) => "give the process more memory",
        }
    }
}

const NO_PARTS: &str = "the server does not send parts of files, as a server of Zarr arrays has to";

const AGAIN: &str = "try again later; if it stays so, look at the server and the way to it";

/// Returns a clearer text for a message of `object_store` about an answer; `None` if the message is not
/// known.
pub(crate) fn in_words(text: &str) -> Option<&'static str> {
    [
        ("Range request not supported", NO_PARTS),
        ("Received non-partial response", NO_PARTS),
        (
            "Content-Length Header missing",
            "the server does not say how long the file is: its answer has no Content-Length",
        ),
    ]
    .into_iter()
    .find_map(|(theirs, ours)| text.contains(theirs).then_some(ours))
}

/// Returns the remedy for an error whose message is `text`; `None` if the error is not known.
pub(crate) fn remedy(error: &Error, text: &str) -> Option<&'static str> {
    let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
    let mut kind = None;
    while let Some(found) = cause {
        if let Some(unfit) = found.downcast_ref::<Unfit>() {
            return Some(unfit.remedy());
        }
        if let Some(error) = found.downcast_ref::<HttpError>() {
            kind = Some(error.kind());
        }
        cause = found.source();
    }
    let status = text.split_once("status code: ").map(|(_, rest)| rest);
    let status = status.and_then(|rest| rest.get(..3)?.parse().ok());
    Some(match (status, kind) {
        (Some(429), _) => "the server wants fewer requests: try again later",
        (Some(500..), _) => "the server has trouble of its own: try again later",
        (Some(300..400), _) => "name the address that it leads to",
        _ if text.contains("ertificate") => {
            "the server has no certificate that this machine trusts: look whether it is the right one"
        }
        _ if text.contains(NO_PARTS) => Unfit::NoParts.remedy(),
        _ if text.contains("no Content-Length") => {
            "have the array served by a server of files, which knows their lengths; one that makes or \
             compresses its answers on the way does not"
        }
        (None, Some(HttpErrorKind::Timeout | HttpErrorKind::Interrupted)) => AGAIN,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, content_range: &str, length: u64) -> Answer {
        Answer {
            status,
            content_type: "application/octet-stream".to_string(),
            encoding: String::new(),
            length: Some(length),
            content_range: (!content_range.is_empty()).then(|| content_range.to_string()),
            has_version: false,
        }
    }

    #[test]
    fn parts_are_those_that_were_asked_for() {
        for (asked, sent, length) in [
            ("bytes=2-5", "bytes 2-5/10", 4),
            ("bytes=2-50", "bytes 2-9/10", 8),
            ("bytes=2-5", "bytes 2-5/*", 4),
            ("bytes=4-", "bytes 4-9/10", 6),
            ("bytes=-3", "bytes 7-9/10", 3),
            ("bytes=-30", "bytes 0-9/10", 10),
        ] {
            assert_eq!(
                answer(206, sent, length).check(Some(asked)),
                Ok(()),
                "{asked} {sent}"
            );
        }
        for (asked, sent, length) in [
            ("bytes=2-5", "bytes 3-6/10", 4),
            ("bytes=2-5", "bytes 2-4/10", 3),
            ("bytes=2-5", "bytes 2-6/10", 5),
            ("bytes=2-50", "bytes 2-8/10", 7),
            ("bytes=4-", "bytes 4-8/10", 5),
            ("bytes=-3", "bytes 0-2/10", 3),
            ("bytes=-3", "bytes 7-9/12", 3),
            ("bytes=2-5", "bytes 5-2/10", 4),
            ("bytes=2-5", "bytes 2-18446744073709551615/10", 4),
            ("bytes=2-5", "items 2-5/10", 4),
            ("bytes=2-5", "", 4),
        ] {
            let checked = answer(206, sent, length).check(Some(asked));
            assert!(
                matches!(checked, Err(Unfit::OtherPart { .. })),
                "{asked} {sent}"
            );
        }
        let checked = answer(206, "bytes 2-5/10", 3).check(Some("bytes=2-5"));
        assert!(matches!(checked, Err(Unfit::Lengths { length: 3, .. })));
        assert_eq!(
            answer(200, "", 10).check(Some("bytes=2-5")),
            Err(Unfit::NoParts)
        );
        assert_eq!(answer(200, "", 10).check(None), Ok(()));
        let checked = answer(206, "bytes 2-5/10", 4).check(None);
        assert!(matches!(checked, Err(Unfit::OtherPart { .. })));
    }

    #[test]
    fn answers_that_are_no_files() {
        for (content_type, encoding, is_fit) in [
            ("text/html; charset=utf-8", "", false),
            ("text/plain", "", true),
            ("application/json", "identity", true),
            ("application/json", "aws-chunked", true),
            ("application/json", "gzip", false),
            ("application/json", "aws-chunked, br", false),
            ("application/zstd", "zstd", false),
        ] {
            let answer = Answer {
                content_type: content_type.to_string(),
                encoding: encoding.to_string(),
                ..answer(200, "", 10)
            };
            assert_eq!(
                answer.check(None).is_ok(),
                is_fit,
                "{content_type} {encoding}"
            );
        }
        for page in ["<!DOCTYPE html><p>", "\u{feff}\n <HTML>", "<html lang=en>"] {
            assert!(is_page(page.as_bytes()), "{page}");
        }
        for file in ["", "{\"html\": 1}", "<?xml?>", "<htm", "<!doctype"] {
            assert!(!is_page(file.as_bytes()), "{file}");
        }
    }
}
