//! Global memory: the buffers of a launch.

use super::shadow::{Shadow, Stamp, Use};

/// How a kernel may use a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// All of it was written before.
    Read,
    /// Nothing is known of what is in it.
    Write,
    /// All of it was written before.
    Update,
}

/// Memory that a launch may use.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    /// The address by which the kernel knows it.
    pub address: u64,
    /// In bytes.
    pub len: usize,
    /// The memory.
    pub host: *mut u8,
    /// How the kernel may use it.
    pub access: Access,
}

impl Buffer {
    fn end(&self) -> u64 {
        self.address + self.len as u64
    }

    fn is_written(&self) -> bool {
        self.access != Access::Read
    }
}

/// Buffers that touch or overlap.
#[derive(Debug)]
struct Region {
    begin: u64,
    end: u64,
    /// The memory at `begin`.
    host: *mut u8,
    buffers: Vec<Buffer>,
    /// The shadow of a region that is written, if there are checks.
    shadow: Option<Shadow>,
}

impl Region {
    /// Whether `buffer` begins in this region or at its end, in addresses and in memory.
    fn continues(&self, buffer: &Buffer) -> bool {
        let offset = buffer.address - self.begin;
        buffer.address <= self.end && buffer.host as u64 == self.host as u64 + offset
    }

    /// Whether one of its buffers has these bytes.
    fn allows(&self, address: u64, len: u64, write: bool) -> bool {
        self.buffers.iter().any(|buffer| {
            buffer.address <= address
                && address + len <= buffer.end()
                && (!write || buffer.is_written())
        })
    }
}

/// The memory of a launch.
#[derive(Debug)]
pub(super) struct Global {
    regions: Vec<Region>,
    /// The region that was used last.
    last: usize,
}

impl Global {
    pub(super) fn new(buffers: &[Buffer], checks: bool) -> Result<Self, String> {
        let mut buffers: Vec<Buffer> = buffers.iter().filter(|b| b.len > 0).copied().collect();
        buffers.sort_by_key(|buffer| buffer.address);
        let mut regions: Vec<Region> = Vec::new();
        for buffer in buffers {
            match regions.last_mut() {
                Some(region) if region.continues(&buffer) || buffer.address < region.end => {
                    if !region.continues(&buffer) {
                        return Err(format!(
                            "two buffers have the address {:#x}, and different memory",
                            buffer.address
                        ));
                    }
                    region.end = region.end.max(buffer.end());
                    region.buffers.push(buffer);
                }
                _ => regions.push(Region {
                    begin: buffer.address,
                    end: buffer.end(),
                    host: buffer.host,
                    buffers: vec![buffer],
                    shadow: None,
                }),
            }
        }
        if checks {
            for region in &mut regions {
                if region.buffers.iter().any(Buffer::is_written) {
                    let mut shadow = Shadow::new((region.end - region.begin) as usize, true);
                    // Where buffers overlap, what one of them holds is there.
                    for holds in [false, true] {
                        let is_one = |b: &&Buffer| holds == (b.access != Access::Write);
                        for buffer in region.buffers.iter().filter(is_one) {
                            let offset = (buffer.address - region.begin) as usize;
                            shadow.set_defined(offset, buffer.len, holds);
                        }
                    }
                    region.shadow = Some(shadow);
                }
            }
        }
        Ok(Self { regions, last: 0 })
    }

    /// The memory of `len` bytes at `address`, if it may be used so.
    #[inline]
    pub(super) fn find(
        &mut self,
        address: u64,
        len: u64,
        write: bool,
    ) -> Result<Piece<'_>, String> {
        let is_in = |region: &Region| region.begin <= address && address < region.end;
        if !self.regions.get(self.last).is_some_and(is_in) {
            match self.regions.iter().position(is_in) {
                Some(position) => self.last = position,
                None => return Err(self.outside(address, len, write)),
            }
        }
        let region = &self.regions[self.last];
        let allowed = match &region.buffers[..] {
            [one] => address.saturating_add(len) <= region.end && (!write || one.is_written()),
            _ => region.allows(address, len, write),
        };
        if !allowed {
            return Err(self.outside(address, len, write));
        }
        let region = &mut self.regions[self.last];
        let offset = (address - region.begin) as usize;
        Ok(Piece {
            // SAFETY: the bytes are in the buffers of the region, whose memory is one piece.
            memory: unsafe { region.host.add(offset) },
            shadow: region.shadow.as_mut(),
            offset,
        })
    }

    fn outside(&self, address: u64, len: u64, write: bool) -> String {
        let verb = if write { "writes" } else { "reads" };
        let near = self
            .regions
            .iter()
            .flat_map(|region| &region.buffers)
            .min_by_key(|buffer| {
                address
                    .abs_diff(buffer.address)
                    .min(address.abs_diff(buffer.end()))
            });
        let near = near.map_or("there is none".to_string(), |buffer| {
            format!(
                "the nearest has {:#x}..{:#x}, for {:?}",
                buffer.address,
                buffer.end(),
                buffer.access
            )
        });
        format!("{verb} {len} bytes at {address:#x}, which no buffer allows: {near}")
    }
}

/// Memory that may be used, and what is known of it.
pub(super) struct Piece<'a> {
    pub(super) memory: *mut u8,
    pub(super) shadow: Option<&'a mut Shadow>,
    /// Where the memory is in the shadow.
    pub(super) offset: usize,
}

impl Piece<'_> {
    /// Memory that is defined, and that nobody writes to.
    pub(super) fn known(memory: *mut u8) -> Self {
        Self {
            memory,
            shadow: None,
            offset: 0,
        }
    }

    /// Enter a use of `len` bytes from `at` on. A write leaves the bytes of `undefined` undefined.
    /// Returns a byte of 0xff for each byte that is undefined.
    #[inline]
    pub(super) fn touch(
        &mut self,
        at: usize,
        len: usize,
        stamp: Stamp,
        usage: Use,
        undefined: [u64; 2],
    ) -> Result<[u64; 2], String> {
        let Some(shadow) = &mut self.shadow else {
            return Ok([0; 2]);
        };
        let offset = self.offset + at;
        shadow.enter(offset, len, stamp, usage).map_err(|other| {
            format!("{len} bytes are used, and no barrier is between that and {other}")
        })?;
        let (low, high) = (len.min(8), len.saturating_sub(8));
        if matches!(usage, Use::Write | Use::VolatileWrite) {
            shadow.define(offset, low, undefined[0]);
            if high > 0 {
                shadow.define(offset + low, high, undefined[1]);
            }
            return Ok([0; 2]);
        }
        let first = shadow.undefined(offset, low);
        let second = if high > 0 {
            shadow.undefined(offset + low, high)
        } else {
            0
        };
        Ok([first, second])
    }
}
