//! Standard output.

use std::io::{self, Write as _};

use crate::exit::Exit;

/// Prints to standard output. A reader that went away, as `head` does, is no error.
pub(crate) fn print(text: &str) {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    match written {
        Ok(()) => {}
        // The work goes on, and the exit code says how it ended.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        Err(error) => {
            tell!("error: cannot write to standard output: {error}");
            std::process::exit(i32::from(Exit::Failed.code()));
        }
    }
}
