//! Places of arrays and hierarchies, as users write them.

use std::convert::Infallible;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::failure::Failure;

/// The scheme of addresses in zip files.
const ZIP: &str = "zip://";
/// The ends of the names of zip files.
const SUFFIXES: [&str; 2] = ["zip", "ozx"];
/// The place of an array or of a hierarchy, as the user wrote it. `Display` leaves out credentials.
#[derive(Clone, Debug)]
pub enum Place {
    /// A directory of this machine.
    Directory(PathBuf),
    /// An address, as `https://…` and `s3://…`; or `zip://FILE/PATH`, in a zip file of this machine.
    Url(String),
}

impl FromStr for Place {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(text.into())
    }
}

/// Takes text with a scheme, as `s3://bucket/path`, for an address, and other text for a path.
impl From<&str> for Place {
    fn from(text: &str) -> Self {
        if text.contains("://") {
            Self::Url(text.to_string())
        } else {
            Self::from(PathBuf::from(text))
        }
    }
}

/// Takes a path for a directory, unless a zip file is there, or the path leads into one.
impl From<PathBuf> for Place {
    fn from(path: PathBuf) -> Self {
        match address_in_zip(&path) {
            Some(address) => Self::Url(address),
            None => Self::Directory(path),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path) => path.display().fmt(f),
            Self::Url(url) if let Some(path) = path_in_zip(url) => path.fmt(f),
            Self::Url(url) => {
                // A query may contain a signature. In an address of S3, a question mark belongs to the key.
                let is_s3 = url.to_ascii_lowercase().starts_with("s3://");
                let query = url.find('?').filter(|_| !is_s3);
                without_user(&url[..query.unwrap_or(url.len())]).fmt(f)
            }
        }
    }
}

/// Returns the path without `..` and symbolic links, even if nothing exists there.
pub(crate) fn canonical(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    match (path.canonicalize(), path.parent(), path.file_name()) {
        (Ok(path), _, _) => path,
        (Err(_), Some(parent), Some(name)) => canonical(parent).join(name),
        _ => path,
    }
}

/// Returns the address of `path` if it is a zip file, or leads into one.
fn address_in_zip(path: &Path) -> Option<String> {
    let path = path.to_str()?;
    let is_zip = |file: &&Path| {
        let suffix = file.extension().and_then(|suffix| suffix.to_str());
        let suffix = suffix.map(str::to_ascii_lowercase);
        suffix.is_some_and(|suffix| SUFFIXES.contains(&&*suffix)) && file.is_file()
    };
    Path::new(path).ancestors().find(is_zip)?;
    Some(format!("{ZIP}{}", path.trim_end_matches('/')))
}

/// Returns the path that people see for the address of a place in a zip file; `None` for another address.
pub(super) fn path_in_zip(url: &str) -> Option<&str> {
    url.strip_prefix(ZIP)
}

/// Returns whether the address `url` belongs to an HTTP server.
pub(crate) fn is_http(url: &str) -> bool {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https")
}

/// Returns the address `url` without the name and password of a user.
fn without_user(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_string();
    };
    let host = rest.find('/').unwrap_or(rest.len());
    match rest[..host].rfind('@') {
        Some(at) => format!("{scheme}://***{}", &rest[at..]),
        None => url.to_string(),
    }
}

impl Place {
    /// Returns the place of a member of a group. `path` is relative to the group, and empty for the group
    /// itself.
    #[must_use]
    pub fn join(&self, path: &str) -> Self {
        match self {
            _ if path.is_empty() => self.clone(),
            Self::Directory(directory) => Self::Directory(directory.join(path)),
            Self::Url(url) => Self::Url(format!("{}/{path}", url.trim_end_matches('/'))),
        }
    }

    /// Returns the place above this one, and the name of this place in it; `None` at the root. A bucket is a
    /// root.
    pub fn above(&self) -> Option<(Self, String)> {
        match self {
            Self::Directory(path) => {
                let path = std::path::absolute(path).ok()?;
                let name = path.file_name()?.to_str()?.to_string();
                Some((Self::Directory(path.parent()?.to_path_buf()), name))
            }
            Self::Url(url) => {
                let (above, name) = url.trim_end_matches('/').rsplit_once('/')?;
                let (_, path) = above.split_once("://")?;
                (!path.is_empty()).then(|| (Self::Url(above.to_string()), name.to_string()))
            }
        }
    }

    /// Returns this place and the places above it, the nearest first, each with the path of this place in it. Symbolic
    /// links are followed before.
    pub(crate) fn itself_and_above(&self) -> impl Iterator<Item = (Self, String)> {
        let itself = match self {
            Self::Directory(directory) => Self::Directory(canonical(directory)),
            Self::Url(_) => self.clone(),
        };
        std::iter::successors(Some((itself, String::new())), |(place, path)| {
            let (above, name) = place.above()?;
            let path = match &**path {
                "" => name,
                path => format!("{name}/{path}"),
            };
            Some((above, path))
        })
    }

    /// Returns whether the place is on an HTTP server, whose files can be neither listed nor written.
    pub fn is_http(&self) -> bool {
        matches!(self, Self::Url(url) if is_http(url))
    }

    /// Returns whether the place is a zip file, or in one.
    pub(crate) fn is_zip(&self) -> bool {
        matches!(self, Self::Url(url) if path_in_zip(url).is_some())
    }

    /// Checks that the objects of this place can be listed. `doing` is the work that lists them.
    pub fn must_be_listed(&self, doing: &str, remedy: &str) -> Result<(), Failure> {
        if self.is_http() {
            return Err(Failure::failed(format!(
                "cannot {doing} {self}: that needs a listing, and HTTP has none"
            ))
            .with_remedy(remedy));
        }
        Ok(())
    }

    /// Checks that objects of this place can be written. `doing` is the work that writes them.
    pub fn must_be_written(&self, doing: &str) -> Result<(), Failure> {
        if self.is_http() {
            return Err(Failure::failed(format!(
                "cannot {doing} {self}: files of an HTTP server can only be read"
            ))
            .with_remedy("name a directory, or s3://BUCKET/PATH"));
        }
        if self.is_zip() {
            return Err(
                Failure::failed(format!("cannot {doing} {self}: zip files are only read"))
                    .with_remedy("name a directory; `zarrs-cuda reencode` makes one of a zip file"),
            );
        }
        Ok(())
    }

    /// Returns the directory. Subcommands that work on files alone call it.
    pub fn directory(&self) -> Result<&Path, Failure> {
        match self {
            Self::Directory(path) => Ok(path),
            Self::Url(_) => Err(Failure::failed(format!(
                "{self} is not a directory, and this subcommand works on directories alone"
            ))
            .with_remedy("copy the array to this machine first")),
        }
    }
}

/// Checks that `path`, which has to be on this machine, is no address. The message calls it `what`.
pub fn must_be_local(path: &Path, what: &str) -> Result<(), Failure> {
    let shown = path.to_string_lossy();
    if shown.contains("://") {
        let shown = Place::Url(shown.into_owned()); // `Display` leaves out credentials
        return Err(
            Failure::usage(format!("{shown} is an address, and {what} on this machine"))
                .with_remedy("name a path of this machine"),
        );
    }
    Ok(())
}
