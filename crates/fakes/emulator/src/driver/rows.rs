//! Copies of rows: what their parameters must be.

use cudarc::driver::sys::{CUDA_MEMCPY3D, CUmemorytype};

use super::codes;
use super::device::{Action, Device, Ends, Rows, RowsShape};
use super::{Failure, wrong};
use crate::device::Kind;

/// One end of a copy, as the parameters have it.
struct End {
    name: &'static str,
    x: usize,
    y: usize,
    z: usize,
    level: usize,
    kind: CUmemorytype,
    host: u64,
    device: u64,
    is_reserved_null: bool,
    pitch: usize,
    height: usize,
}

/// Checks the parameters of a copy, and returns the copy.
pub(super) fn action(copy: &CUDA_MEMCPY3D, device: &Device) -> Result<Action, Failure> {
    let shape = RowsShape {
        planes: copy.Depth,
        rows: copy.Height,
        row: copy.WidthInBytes,
    };
    if [shape.planes, shape.rows, shape.row].contains(&0) {
        return wrong(
            codes::INVALID_VALUE,
            &format!("nothing is copied: {shape:?}"),
        );
    }
    let from = End {
        name: "source",
        x: copy.srcXInBytes,
        y: copy.srcY,
        z: copy.srcZ,
        level: copy.srcLOD,
        kind: copy.srcMemoryType,
        host: copy.srcHost.addr() as u64,
        device: copy.srcDevice,
        is_reserved_null: copy.reserved0.is_null(),
        pitch: copy.srcPitch,
        height: copy.srcHeight,
    };
    let to = End {
        name: "destination",
        x: copy.dstXInBytes,
        y: copy.dstY,
        z: copy.dstZ,
        level: copy.dstLOD,
        kind: copy.dstMemoryType,
        host: copy.dstHost.addr() as u64,
        device: copy.dstDevice,
        is_reserved_null: copy.reserved1.is_null(),
        pitch: copy.dstPitch,
        height: copy.dstHeight,
    };
    let (from_kind, from) = from.rows(shape, device)?;
    let (to_kind, to) = to.rows(shape, device)?;
    if (from_kind, to_kind) == (Kind::Pinned, Kind::Pinned) {
        return wrong(
            codes::NOT_SUPPORTED,
            "copies within the host are not emulated",
        );
    }
    if overlap(shape, from, to) {
        return wrong(codes::INVALID_VALUE, "the two ends of the copy overlap");
    }
    let ends = Ends {
        from: from_kind,
        to: to_kind,
    };
    Ok(Action::CopyRows {
        ends,
        shape,
        from,
        to,
    })
}

impl End {
    /// Returns the rows of this end, which are in one allocation.
    fn rows(self, shape: RowsShape, device: &Device) -> Result<(Kind, Rows), Failure> {
        let name = self.name;
        let no = |reason: &str| wrong(codes::INVALID_VALUE, &format!("the {name} {reason}"));
        let (kind, base) = match self.kind {
            CUmemorytype::CU_MEMORYTYPE_HOST => (Kind::Pinned, self.host),
            CUmemorytype::CU_MEMORYTYPE_DEVICE => (Kind::Device, self.device),
            kind => {
                let message = format!("the {name} is of {kind:?}, which is not emulated");
                return wrong(codes::NOT_SUPPORTED, &message);
            }
        };
        if self.level != 0 || !self.is_reserved_null {
            return no("has a level of detail, or a reserved field is not null");
        }
        let width = self.x.checked_add(shape.row);
        let rows = self.y.checked_add(shape.rows);
        let (Some(width), Some(rows)) = (width, rows) else {
            return no("has an offset that is too large");
        };
        // One row needs no pitch, and one plane no height.
        let has_one_row = shape.planes == 1 && shape.rows == 1 && self.y == 0 && self.z == 0;
        let pitch = match self.pitch {
            0 if has_one_row => width,
            pitch => pitch,
        };
        let height = match self.height {
            0 if shape.planes == 1 && self.z == 0 => rows,
            height => height,
        };
        if pitch < width {
            return no(&format!(
                "has a pitch of {pitch} bytes, and rows of {width} bytes with their offset"
            ));
        }
        let largest = device.config.largest_pitch as usize;
        if pitch > largest {
            return no(&format!(
                "has a pitch of {pitch} bytes, and the device takes {largest} at most"
            ));
        }
        if height < rows {
            return no(&format!(
                "has planes of {height} rows, and {rows} rows with their offset"
            ));
        }
        let start = (self.z.checked_mul(height))
            .and_then(|row| row.checked_add(self.y)?.checked_mul(pitch))
            .and_then(|bytes| base.checked_add(bytes.checked_add(self.x)? as u64));
        let Some(first) = start else {
            return no("has an offset that is too large");
        };
        let rows = Rows {
            first,
            pitch,
            height,
        };
        let Some(span) = rows.span(shape) else {
            return no("has more bytes than an address can count");
        };
        device.bytes(first, span, kind)?;
        Ok((kind, rows))
    }
}

/// Returns whether a row of `from` shares a byte with a row of `to`. Both have their rows in the order
/// of their addresses.
fn overlap(shape: RowsShape, from: Rows, to: Rows) -> bool {
    let addresses = |rows: Rows| {
        let starts = rows.starts(shape);
        starts.map(move |start| rows.first + start as u64)
    };
    let (mut sources, mut targets) = (addresses(from).peekable(), addresses(to).peekable());
    while let (Some(&source), Some(&target)) = (sources.peek(), targets.peek()) {
        let row = shape.row as u64;
        if source < target + row && target < source + row {
            return true;
        }
        if source < target {
            sources.next();
        } else {
            targets.next();
        }
    }
    false
}
