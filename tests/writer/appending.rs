//! Appends data in the pieces of a case, and checks the writer's progress and report.

use std::time::Duration;

use zarrs_cuda::writer::{ArrayWriter, Progress};

use super::case::{Case, Piece};

/// A writer, and the appended data.
pub(crate) struct Appending<'a> {
    case: &'a Case,
    data: &'a [u8],
    writer: ArrayWriter,
    /// The number of appended bytes.
    taken: usize,
    last: Option<Progress>,
}

/// Converts bytes to elements of one of zarrs' types.
fn parse<const N: usize, T>(bytes: &[u8], from: impl Fn([u8; N]) -> T) -> Vec<T> {
    let elements = bytes.chunks(N);
    elements
        .map(|bytes| from(bytes.try_into().unwrap()))
        .collect()
}

/// Evaluates `$body` with `$elements` of the case's type, or `$otherwise` for other types.
macro_rules! with_elements {
    ($size:expr, $name:expr, $bytes:expr, |$elements:ident| $body:expr, $otherwise:expr) => {
        match $name {
            "uint8" => {
                let $elements = $bytes;
                $body
            }
            "uint16" => {
                let $elements = &parse($bytes, u16::from_ne_bytes)[..];
                $body
            }
            "float32" => {
                let $elements = &parse($bytes, f32::from_ne_bytes)[..];
                $body
            }
            "float64" => {
                let $elements = &parse($bytes, f64::from_ne_bytes)[..];
                $body
            }
            "bool" => {
                let $elements = &parse($bytes, |byte: [u8; 1]| byte[0] != 0)[..];
                $body
            }
            "r24" => {
                let $elements = &parse($bytes, |bytes: [u8; 3]| bytes)[..];
                $body
            }
            _ => $otherwise,
        }
    };
}

impl<'a> Appending<'a> {
    pub(crate) fn new(case: &'a Case, data: &'a [u8], writer: ArrayWriter) -> Self {
        Self {
            case,
            data,
            writer,
            taken: 0,
            last: None,
        }
    }

    fn element(&self) -> usize {
        self.case.shards.fill.len()
    }

    /// The next `len` bytes, or the remaining ones.
    fn next(&self, len: usize) -> &'a [u8] {
        let rest = &self.data[self.taken..];
        &rest[..len.min(rest.len())]
    }

    pub(crate) fn append_all(&mut self) {
        let mut flushes = 0;
        for piece in self.case.pieces.iter().cycle() {
            if self.taken == self.data.len() {
                break;
            }
            if matches!(piece, Piece::Flush) {
                flushes += 1;
                // A sequence of flushes alone would not end.
                if flushes > 8 {
                    self.append(Piece::Slices(3));
                    continue;
                }
            }
            self.append(*piece);
            self.check();
        }
    }

    fn append(&mut self, piece: Piece) {
        let slice = self.case.slice_bytes();
        let epoch = slice * usize::try_from(self.case.shards.subchunk[0]).unwrap();
        let whole = self.taken.is_multiple_of(self.element());
        let taken = match piece {
            Piece::Bytes(len) => self.append_bytes(len),
            Piece::Slices(slices) => self.append_bytes(slices * slice),
            Piece::Epochs(epochs) => self.append_bytes(epochs * epoch),
            Piece::View(slices) => {
                let within = self.taken % slice;
                if within > 0 {
                    // The slice must be completed first.
                    self.append_bytes(slice - within)
                } else {
                    self.append_view(slices * slice)
                }
            }
            Piece::Elements(elements) if whole => self.append_elements(elements * self.element()),
            Piece::Elements(elements) => self.append_bytes(elements * self.element() + 1),
            Piece::TryElements(elements) if whole => {
                self.try_append_elements(elements * self.element())
            }
            Piece::TryBytes(len) | Piece::TryElements(len) => self.try_append_bytes(len),
            Piece::Flush => {
                self.flush();
                0
            }
        };
        self.taken += taken;
    }

    fn append_bytes(&mut self, len: usize) -> usize {
        let bytes = self.next(len);
        self.writer.append_bytes(bytes).unwrap();
        bytes.len()
    }

    fn append_elements(&mut self, len: usize) -> usize {
        let bytes = self.next(len);
        let name = self.case.type_name();
        with_elements!(
            self.element(),
            name.as_str(),
            bytes,
            |elements| self.writer.append(elements).unwrap(),
            self.writer.append_bytes(bytes).unwrap()
        );
        bytes.len()
    }

    fn append_view(&mut self, len: usize) -> usize {
        let bytes = self.next(len);
        let mut shape = vec![bytes.len() / self.case.slice_bytes()];
        let inner = self.case.inner.iter();
        shape.extend(inner.map(|&extent| usize::try_from(extent).unwrap()));
        let name = self.case.type_name();
        with_elements!(
            self.element(),
            name.as_str(),
            bytes,
            |elements| {
                let view = ndarray::ArrayView::from_shape(shape, elements).unwrap();
                self.writer.append_ndarray(&view).unwrap();
            },
            self.writer.append_bytes(bytes).unwrap()
        );
        bytes.len()
    }

    fn try_append_bytes(&mut self, len: usize) -> usize {
        let bytes = self.next(len);
        let rest = self.writer.try_append_bytes(bytes).unwrap();
        // The rest is the end of the given slice, not a copy.
        assert!(std::ptr::eq(
            rest,
            &raw const bytes[bytes.len() - rest.len()..]
        ));
        let taken = bytes.len() - rest.len();
        if taken == 0 {
            std::thread::sleep(Duration::from_micros(50));
        }
        taken
    }

    fn try_append_elements(&mut self, len: usize) -> usize {
        let bytes = self.next(len);
        let size = self.element();
        let name = self.case.type_name();
        let taken = with_elements!(
            size,
            name.as_str(),
            bytes,
            |elements| {
                let rest = self.writer.try_append(elements).unwrap();
                let taken = elements.len() - rest.len();
                assert!(std::ptr::eq(rest, &raw const elements[taken..]));
                taken * size
            },
            self.try_append_bytes(len)
        );
        if taken == 0 {
            std::thread::sleep(Duration::from_micros(50));
        }
        taken
    }

    fn flush(&mut self) {
        self.writer.flush().unwrap();
        let progress = self.writer.progress();
        let shard = self.case.shards.shape[0];
        let end = self.case.first() + (self.taken / self.case.slice_bytes()) as u64;
        let finished = (end / shard * shard).max(self.case.first());
        assert_eq!(progress.finished_slices, finished, "flushed");
        let covered = finished.max(self.case.existing);
        assert_eq!(progress.covered_slices, covered, "covered");
        assert_eq!(progress.batches_waiting, 0);
    }

    /// Checks the writer's progress.
    fn check(&mut self) {
        let progress = self.writer.progress();
        let (slice, shard) = (self.case.slice_bytes(), self.case.shards.shape[0]);
        assert_eq!(progress.appended_bytes, self.taken as u64);
        assert_eq!(progress.appended_slices, (self.taken / slice) as u64);
        let first = self.case.first();
        let finished = progress.finished_slices - first;
        assert!(finished <= progress.appended_slices);
        assert!(finished == 0 || progress.finished_slices.is_multiple_of(shard));
        let covered = progress.finished_slices.max(self.case.existing);
        assert!(progress.covered_slices <= covered);
        let read_back = (first - self.case.border()) * slice as u64;
        assert!(progress.encoded_bytes <= progress.appended_bytes + read_back);
        let kept = progress.finished_slices.min(progress.covered_slices);
        assert_eq!(progress.at_risk, first + progress.appended_slices - kept);
        if let Some(last) = self.last.replace(progress) {
            assert!(last.finished_slices <= progress.finished_slices);
            assert!(last.shards_stored <= progress.shards_stored);
            assert!(last.shards_empty <= progress.shards_empty);
            assert!(last.stored_bytes <= progress.stored_bytes);
            assert!(last.encoded_bytes <= progress.encoded_bytes);
            assert!(last.waits <= progress.waits && last.waiting <= progress.waiting);
        }
    }

    /// Finishes the writer, and checks its report.
    pub(crate) fn finish(mut self, length: u64) {
        let report = self.writer.finish().unwrap();
        let shards = &self.case.shards;
        let end = self.case.first() + self.case.slices;
        assert_eq!(report.first_slice, self.case.first());
        assert_eq!(report.finished_slices, end);
        assert_eq!(report.raw_bytes, self.data.len() as u64);
        let rewritten = self.case.rewritten();
        let rows = (rewritten.end - rewritten.start).div_ceil(shards.shape[0]);
        let per_row: u64 = std::iter::zip(&self.case.inner, &shards.shape[1..])
            .map(|(extent, shard)| extent.div_ceil(*shard))
            .product();
        assert_eq!(report.shards + report.shards_empty, rows * per_row);
        let progress = self.writer.progress();
        assert_eq!(progress.covered_slices, length);
        assert_eq!(progress.finished_slices, end);
        // A second call changes nothing.
        let again = self.writer.finish().unwrap();
        assert_eq!(again.shards, report.shards);
        assert_eq!(again.stored_bytes, report.stored_bytes);
        assert_eq!(again.finished_slices, report.finished_slices);
    }
}
