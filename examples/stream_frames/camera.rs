//! A simulated camera.

use zarrs_cuda::writer::{ArrayWriter, WriterError};

/// The number of different pictures, after which the camera repeats.
const PICTURES: usize = 8;
/// The number of elements at the start of each frame that hold its number, least significant first.
const STAMP: usize = 4;

/// Frames of uint16: a smooth field that moves, noise in the lowest bits, and the number of the
/// frame in the first elements. They are generated beforehand, so that the camera is never the
/// bottleneck.
pub(crate) struct Camera {
    pictures: Vec<Vec<u16>>,
    /// The number of the next frame, which is the number of earlier exposures.
    number: u64,
    /// The picture that the writer accepted in part, and the start of the rest.
    rest: Option<(usize, usize)>,
}

impl Camera {
    /// A camera whose frames have `shape` elements along y and x. `number` is the number of the
    /// first frame.
    pub(crate) fn new([height, width]: [u64; 2], number: u64) -> Self {
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        let mut noise = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u16 & 0x1F
        };
        let mut picture = |time: usize| {
            let wave = |position: u64, length: f64| (position as f64 / length + time as f64).sin();
            let columns: Vec<f64> = (0..width).map(|x| wave(x, 70.0)).collect();
            let rows = (0..height).map(|y| wave(y, 55.0));
            let mut frame = Vec::with_capacity((height * width) as usize);
            for row in rows {
                let line = columns.iter().map(|column| {
                    let field = (row + column).mul_add(1200.0, 3000.0) as u16;
                    (field & !0x1F) | noise()
                });
                frame.extend(line);
            }
            frame
        };
        Self {
            pictures: (0..PICTURES).map(&mut picture).collect(),
            number,
            rest: None,
        }
    }

    /// Writes the number of the next frame into its picture, and returns which picture that is.
    fn expose(&mut self) -> usize {
        let picture = (self.number % PICTURES as u64) as usize;
        for (part, element) in self.pictures[picture].iter_mut().take(STAMP).enumerate() {
            *element = (self.number >> (16 * part)) as u16;
        }
        self.number += 1;
        picture
    }

    /// Returns the next frame.
    pub(crate) fn frame(&mut self) -> &[u16] {
        let picture = self.expose();
        &self.pictures[picture]
    }

    /// Exposes a frame, and offers it to `writer`. The writer may accept none of it, all, or a
    /// part. After a part the rest must follow. Returns whether the frame was accepted; otherwise
    /// it is dropped.
    pub(crate) fn offer_frame(&mut self, writer: &mut ArrayWriter) -> Result<bool, WriterError> {
        self.offer_rest(writer)?;
        if self.rest.is_some() {
            // The rest of the last frame still has no space, so this frame has none either.
            self.number += 1;
            return Ok(false);
        }
        let picture = self.expose();
        let frame = &self.pictures[picture];
        let left = writer.try_append(frame)?.len();
        self.rest = (0 < left && left < frame.len()).then_some((picture, frame.len() - left));
        Ok(left < frame.len())
    }

    /// Offers the rest of a frame that was accepted in part.
    pub(crate) fn offer_rest(&mut self, writer: &mut ArrayWriter) -> Result<(), WriterError> {
        if let Some((picture, at)) = self.rest {
            let frame = &self.pictures[picture];
            let left = writer.try_append(&frame[at..])?.len();
            self.rest = (left > 0).then_some((picture, frame.len() - left));
        }
        Ok(())
    }

    /// Appends the rest of a frame that was accepted in part, and waits for space.
    pub(crate) fn deliver_rest(&mut self, writer: &mut ArrayWriter) -> Result<(), WriterError> {
        if let Some((picture, at)) = self.rest {
            writer.append(&self.pictures[picture][at..])?;
            self.rest = None;
        }
        Ok(())
    }
}
