//! The gzip stage, by libdeflate, which compresses a whole buffer to one gzip member. It also decompresses
//! zlib streams, which have the same compressed data with another header and checksum.

use libdeflater::{CompressionLvl, Compressor, DecompressionError, Decompressor};

use super::not_decoded::{NotDecoded, check_memory};

/// The level of libdeflate for each level of gzip, from 0 to 9.
///
/// zlib's levels and libdeflate's have the same numbers, but not the same effort. Each level above 1 here is
/// the fastest whose members are as small as those of zarrs' codec (flate2 with `miniz_oxide`) on images,
/// floating point numbers and text. Labels were weighed, too. At level 1 no level of libdeflate is always as
/// small and as fast. `benches/results/2026-11-27-gzip-levels.json` has the sizes and the rates.
const LEVELS: [i32; 10] = [0, 1, 2, 6, 6, 6, 7, 7, 8, 9];

/// The contexts of libdeflate.
#[derive(Default)]
pub(super) struct Gzip {
    /// The compressor, and its level of libdeflate.
    compressor: Option<(Compressor, i32)>,
    decompressor: Option<Decompressor>,
}

/// Returns the most bytes that a member with a content of `len` bytes can have.
///
/// This is the bound of libdeflate: stored blocks of at least 5 000 bytes, 5 bytes for each block, one byte
/// of slack, and 18 bytes of header and trailer.
pub(super) fn bound(len: usize) -> usize {
    let blocks = len.div_ceil(5_000).max(1);
    len.saturating_add(5 * blocks + 1 + 18 + 8)
}

impl Gzip {
    /// Compresses `from` into `to`, as one member. Returns the size of the member.
    ///
    /// `level` is 0 to 9, and means the effort of [`LEVELS`]. The member depends on nothing but the level and
    /// the content.
    ///
    /// # Errors
    /// There is no such level, or `to` is shorter than the member.
    pub(super) fn compress(
        &mut self,
        level: u32,
        from: &[u8],
        to: &mut [u8],
    ) -> Result<usize, String> {
        let no_level = || format!("gzip has the levels 0 to 9, and no level {level}");
        let effort = usize::try_from(level)
            .ok()
            .and_then(|level| LEVELS.get(level).copied())
            .ok_or_else(no_level)?;
        let compressor = match &mut self.compressor {
            Some((compressor, kept)) if *kept == effort => compressor,
            other => {
                let valid = CompressionLvl::new(effort).map_err(|_| no_level())?;
                &mut other.insert((Compressor::new(valid), effort)).0
            }
        };
        let len = to.len();
        compressor.gzip_compress(from, to).map_err(|_| {
            let content = from.len();
            format!("the member of {content} bytes does not fit in a buffer of {len} bytes")
        })
    }

    /// Decompresses the member at the start of `from` into `to`. Returns the size of the content.
    ///
    /// # Errors
    /// The member is invalid, its content is longer than `to`, or memory cannot be allocated.
    pub(super) fn decompress(&mut self, from: &[u8], to: &mut [u8]) -> Result<usize, NotDecoded> {
        self.decompressor()?
            .gzip_decompress(from, to)
            .map_err(|error| reason(&error, "gzip member").into())
    }

    /// Decompresses the zlib stream at the start of `from` into `to`. Returns the size of the content.
    ///
    /// # Errors
    /// The errors of [`decompress`](Self::decompress).
    pub(super) fn decompress_zlib(
        &mut self,
        from: &[u8],
        to: &mut [u8],
    ) -> Result<usize, NotDecoded> {
        self.decompressor()?
            .zlib_decompress(from, to)
            .map_err(|error| reason(&error, "zlib stream").into())
    }

    fn decompressor(&mut self) -> Result<&mut Decompressor, NotDecoded> {
        /// The most bytes that a decompressor takes.
        const LEN: usize = 64 << 10;
        Ok(match &mut self.decompressor {
            Some(decompressor) => decompressor,
            none => {
                // Check the memory first: the library panics if its allocation fails.
                check_memory("libdeflate's decompressor", LEN)?;
                none.insert(Decompressor::new())
            }
        })
    }
}

fn reason(error: &DecompressionError, what: &str) -> String {
    match error {
        DecompressionError::BadData => format!("the data is not a valid {what}"),
        DecompressionError::InsufficientSpace => "the content is too long".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use zarrs::array::codec::GzipCodec; // another writer and reader
    use zarrs_codec::{BytesRepresentation, BytesToBytesCodecTraits, CodecOptions};

    use super::*;

    /// Kinds of contents, by number. The last is a mix of the others.
    const KINDS: u64 = 6;

    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0
        }

        fn below(&mut self, end: usize) -> usize {
            (self.next() % end as u64) as usize
        }
    }

    /// The bytes of a row of labels.
    const ROW: usize = 64;

    /// Returns a row of runs of labels (uint16).
    fn runs(random: &mut Random) -> Vec<u8> {
        let mut row = Vec::with_capacity(2 * ROW);
        while row.len() < ROW {
            let label = [random.next(), random.next()].map(|byte| byte.to_le_bytes()[0]);
            for _ in 0..=random.below(12) {
                row.extend(label);
            }
        }
        row.truncate(ROW);
        row
    }

    /// Returns a copy of a row whose runs begin or end a little earlier or later.
    fn moved(row: &[u8], random: &mut Random) -> Vec<u8> {
        let mut row = row.to_vec();
        for _ in 0..2 {
            let element = 2 * (1 + random.below(ROW / 2 - 1));
            row.copy_within(element - 2..element, element);
        }
        row
    }

    /// Returns `len` bytes of a kind: an image (uint16), a smooth field (float32), rows of labels (uint16),
    /// text, random bytes, or a mix.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "made-up data"
    )]
    fn content(kind: u64, len: usize, random: &mut Random) -> Vec<u8> {
        const WORDS: [&str; 8] = ["a", "shard", "of", "the", "array", "is", "encoded", "here"];
        let mut bytes = Vec::with_capacity(len + 64);
        while bytes.len() < len {
            let at = bytes.len() as f32;
            match kind {
                0 => {
                    let field = ((at / 140.0).sin() + (at / 7000.0).cos()) * 800.0 + 3000.0;
                    let value = (field as u16 & !31) | (random.next() as u16 & 31);
                    bytes.extend(value.to_le_bytes());
                }
                1 => {
                    let noise = (random.next() % 1000) as f32 * 1e-4;
                    let value = 288.0 + 25.0 * (at / 900.0).cos() + noise;
                    bytes.extend(value.to_le_bytes());
                }
                2 => {
                    let row = match bytes.len().checked_sub(ROW) {
                        Some(last) if random.below(20) > 0 => moved(&bytes[last..], random),
                        _ => runs(random),
                    };
                    bytes.extend(row);
                }
                3 => {
                    bytes.extend(WORDS[random.below(WORDS.len())].as_bytes());
                    bytes.push(b' ');
                    if random.below(4) == 0 {
                        bytes.extend(format!("{} ", random.below(4096)).bytes());
                    }
                }
                4 => bytes.extend(random.next().to_le_bytes()),
                _ => {
                    let part = 1 + random.below(20_000);
                    let kind = random.next() % (KINDS - 1);
                    bytes.extend(content(kind, part, random));
                }
            }
        }
        bytes.truncate(len);
        bytes
    }

    fn of_zarrs(level: u32, content: &[u8]) -> Vec<u8> {
        let codec = GzipCodec::new(level).expect("a level");
        codec
            .encode(Cow::Borrowed(content), &CodecOptions::default())
            .expect("encodes")
            .into_owned()
    }

    fn read_by_zarrs(member: &[u8], len: usize) -> Vec<u8> {
        let decoded = BytesRepresentation::FixedSize(len as u64);
        GzipCodec::new(1)
            .expect("a level")
            .decode(Cow::Borrowed(member), &decoded, &CodecOptions::default())
            .expect("decodes")
            .into_owned()
    }

    #[test]
    fn the_bound_is_at_least_libdeflates() {
        for level in LEVELS {
            let mut compressor = Compressor::new(CompressionLvl::new(level).expect("a level"));
            for len in (0..70_000).step_by(97).chain([1 << 20, 1 << 30]) {
                let least = compressor.gzip_compress_bound(len);
                assert!(bound(len) >= least, "{len} bytes at level {level}");
            }
        }
    }

    /// Members of every level fit the bound, and both readers read each other's. A context that made
    /// other members before makes the same bytes as a new one.
    #[test]
    fn members_of_every_level_round_trip() {
        let seed = zarrs_cuda_testing::effort::seed();
        let random = &mut Random(seed | 1);
        let mut kept = Gzip::default();
        let lens = [0, 1, 2, 55, 56, 4999, 5001, 65_535, 65_536, 131_073];
        for case in 0..zarrs_cuda_testing::effort::times(100) {
            let len = match random.below(3) {
                0 => lens[random.below(lens.len())],
                1 => random.below(200),
                _ => random.below(150_000),
            };
            let kind = random.next() % KINDS;
            let level = case % 10;
            let content = content(kind, len, random);
            let what = format!("{len} bytes of kind {kind} at level {level}");
            let mut member = vec![0xaa; bound(len)];
            let size = kept.compress(level, &content, &mut member).expect(&what);
            member.truncate(size);
            assert!(read_by_zarrs(&member, len) == content, "{what}");
            let mut decoded = vec![0; len];
            for member in [&member, &of_zarrs(level, &content)] {
                decoded.fill(0);
                assert_eq!(kept.decompress(member, &mut decoded), Ok(len), "{what}");
                assert!(decoded == content, "{what}");
            }
            let mut exact = vec![0; size];
            let again = Gzip::default().compress(level, &content, &mut exact);
            assert_eq!(again, Ok(size), "{what}");
            assert!(exact == member, "{what}");
            let short = Gzip::default().compress(level, &content, &mut exact[1..]);
            assert!(short.is_err(), "{what}");
        }
    }

    /// Members are as small as zarrs' on images, text and, above level 1, floating point numbers, within 1 %
    /// and the header of a block. On labels they are as small within 4 %.
    #[test]
    fn the_levels_are_as_dense_as_those_of_zarrs() {
        let random = &mut Random(0x9e37_79b9_7f4a_7c15);
        for (kind, levels, percent) in [(0, 0..=9, 1), (1, 2..=9, 1), (2, 0..=9, 4), (3, 0..=9, 1)]
        {
            for len in [16 << 10, 64 << 10, 512 << 10] {
                let content = content(kind, len, random);
                for level in levels.clone() {
                    let mut member = vec![0; bound(len)];
                    let ours = Gzip::default().compress(level, &content, &mut member);
                    let ours = ours.expect("encodes");
                    let zarrs = of_zarrs(level, &content).len();
                    let what = format!("{len} bytes of kind {kind} at level {level}");
                    assert!(
                        ours <= zarrs + zarrs * percent / 100 + 100,
                        "{what}: {ours}, {zarrs}"
                    );
                }
            }
        }
    }

    #[test]
    fn other_levels_are_refused() {
        for level in [10, 12, u32::MAX] {
            let refused = Gzip::default().compress(level, b"content", &mut [0; 100]);
            let reason = refused.expect_err("refused");
            assert!(reason.contains(&level.to_string()), "{reason}");
        }
    }
}
