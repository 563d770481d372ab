//! Counts the bytes of buffers by the kind of their memory.

use std::fmt;

/// The bytes of buffers, by the kind of their memory. `Display` leaves out kinds with 0 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BufferBytes {
    /// The bytes of pageable host memory.
    pub host: usize,
    /// The bytes of page-locked host memory.
    pub pinned: usize,
    /// The bytes of device memory.
    pub device: usize,
}

impl fmt::Display for BufferBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds = [
            (self.device, "on the device"),
            (self.pinned, "page-locked"),
            (self.host, "on the host"),
        ];
        let mut taken = kinds.iter().filter(|(bytes, _)| *bytes > 0);
        let Some((bytes, kind)) = taken.next() else {
            return f.write_str("0 bytes");
        };
        write!(f, "{bytes} bytes {kind}")?;
        taken.try_for_each(|(bytes, kind)| write!(f, ", {bytes} bytes {kind}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_taken_is_not_named() {
        let mut memory = BufferBytes::default();
        assert_eq!(memory.to_string(), "0 bytes");
        memory.host = 1;
        assert_eq!(memory.to_string(), "1 bytes on the host");
        (memory.device, memory.pinned) = (3, 2);
        let all = "3 bytes on the device, 2 bytes page-locked, 1 bytes on the host";
        assert_eq!(memory.to_string(), all);
    }
}
