//! An S3-compatible server for tests, and zarrs stores that use it.
//!
//! ```no_run
//! let server = zarrs_cuda_object_store_tests::Server::start();
//! let store = server.store(); // asynchronous
//! let blocking = server.blocking_store();
//! ```

#![allow(
    clippy::missing_panics_doc,
    clippy::unwrap_used,
    reason = "a test fails by panicking, and says where"
)]

mod blocking;
mod plain_http;
mod server;

pub use blocking::{BlockingStore, TokioBlockOn};
pub use server::{Server, Store};
