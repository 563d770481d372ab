//! Prints to standard output.

use std::io::{self, Write as _};

use crate::exit::Exit;

/// Prints `text` to standard output. It is no error if the reader has gone, as `head` does.
pub(crate) fn print(text: &str) {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    match written {
        Ok(()) => {}
        // The work goes on, and its result decides the exit code.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        Err(error) => {
            tell!("error: cannot write to standard output: {error}");
            std::process::exit(i32::from(Exit::Failed.code()));
        }
    }
}
