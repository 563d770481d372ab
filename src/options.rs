//! Runtime options: they never reach array metadata.

use std::fmt;

/// Where shards are encoded and decoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backend {
    /// Whatever is best for the shard at hand. Never fails for want of a GPU.
    #[default]
    Auto,
    /// This machine's CPU.
    Host,
    /// An NVIDIA GPU, or an error that names what is missing.
    ///
    /// This release has no CUDA engine: it is always that error. The choice governs writing, and
    /// reading of whole shards; parts of shards are read on the host.
    Cuda,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Host => "host",
            Self::Cuda => "CUDA",
        })
    }
}

/// How the codec works: given to [`register`](crate::register) for every array, or to one array
/// through zarrs' [`CodecSpecificOptions`](zarrs_codec::CodecSpecificOptions).
///
/// ```
/// use zarrs_cuda::{Backend, Options};
///
/// let options = Options::default().with_backend(Backend::Host);
/// assert_eq!(options.backend(), Backend::Host);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    backend: Backend,
    huge_pages: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            backend: Backend::default(),
            huge_pages: true,
        }
    }
}

impl Options {
    /// Where shards are encoded and decoded. Default: [`Backend::Auto`].
    #[must_use]
    pub fn with_backend(mut self, backend: Backend) -> Self {
        self.backend = backend;
        self
    }

    /// Where shards are encoded and decoded.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.backend
    }

    /// Whether to ask the operating system for huge pages behind outputs of several MiB
    /// (`madvise` on Linux; elsewhere this changes nothing). Default: `true`.
    #[must_use]
    pub fn with_huge_pages(mut self, huge_pages: bool) -> Self {
        self.huge_pages = huge_pages;
        self
    }

    /// Whether to ask the operating system for huge pages.
    #[must_use]
    pub fn huge_pages(&self) -> bool {
        self.huge_pages
    }
}
