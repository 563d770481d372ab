//! Computes the CRC-32 of every subchunk, which is gzip's checksum. The kernel is in `crc32.cu`.

use super::crc32c;
use super::spans::{Launch, Lengths, Most, Slots};
use crate::cuda::driver::{DeviceSpan, Driver, DriverError, StreamId};

/// Enqueues a kernel that writes the CRC-32 of each slot's content to `checksums` (a `u32` each). The kernel
/// writes 0 for slots whose flag in `stored` (a `u32` each) is zero.
///
/// # Errors
/// A span is too short or misaligned, [`Lengths::All`] is longer than a slot, or the driver fails.
///
/// # Safety
/// The caller keeps the rules that the module `driver` lists. Each length in [`Lengths::Each`] is at most the
/// stride.
pub(crate) unsafe fn crc32(
    driver: &dyn Driver,
    stream: StreamId,
    slots: Slots,
    lengths: Lengths,
    stored: Option<DeviceSpan>,
    checksums: DeviceSpan,
) -> Result<(), DriverError> {
    let teams = (crc32c::team(driver, slots), crc32c::MOST);
    // SAFETY: this function has the same requirements, which its caller keeps.
    unsafe { by_teams(driver, stream, slots, lengths, stored, checksums, teams) }
}

/// [`crc32`], with the number of warps for each slot, and the most blocks of the launch, in `teams`.
///
/// # Safety
/// As for [`crc32`].
unsafe fn by_teams(
    driver: &dyn Driver,
    stream: StreamId,
    slots: Slots,
    lengths: Lengths,
    stored: Option<DeviceSpan>,
    checksums: DeviceSpan,
    teams: (u32, Most),
) -> Result<(), DriverError> {
    let launch = Launch {
        driver,
        stream,
        kernel: "crc32",
    };
    // SAFETY: the kernel accesses no byte behind a slot's content. The caller promises the rest.
    unsafe { crc32c::run(launch, slots, 0, lengths, stored, Some(checksums), teams) }
}

#[cfg(test)]
pub(crate) mod tests {
    use zarrs_cuda_testing::effort;

    use super::super::spans::testing::*;
    use super::super::testing::run as on;
    use super::*;
    use crate::cuda::driver::simulation::Simulation;
    use proptest::prelude::*;

    /// The lengths of the slots' contents, which slots are stored, and the further room of slots.
    #[derive(Clone, Debug)]
    struct Case {
        lengths: Vec<usize>,
        stored: Vec<bool>,
        room: usize,
        seed: u64,
    }

    impl Case {
        /// Returns slots of one length, all of which are stored.
        fn equal(count: usize, length: usize) -> Self {
            Self {
                lengths: vec![length; count],
                stored: vec![true; count],
                room: 0,
                seed: length as u64,
            }
        }

        fn stride(&self) -> usize {
            let longest = self.lengths.iter().max().copied().unwrap_or(0);
            (longest + self.room).next_multiple_of(16)
        }

        fn slots(&self) -> Vec<u8> {
            noise(self.seed, self.lengths.len() * self.stride())
        }

        fn expected(&self, slots: &[u8]) -> Vec<u32> {
            let stride = self.stride();
            let checksum = |i: usize| libdeflater::crc32(&slots[i * stride..][..self.lengths[i]]);
            let each = self.stored.iter().enumerate();
            each.map(|(i, &stored)| if stored { checksum(i) } else { 0 })
                .collect()
        }
    }

    fn cases(longest: usize) -> impl Strategy<Value = Case> {
        let length = prop_oneof![
            0..40usize,
            0..longest,
            (0..longest / 16).prop_map(|n| n * 16),
            (0..longest / 512).prop_map(|n| n * 512),
        ];
        let slot = (length, proptest::bool::weighted(0.8));
        let slots = proptest::collection::vec(slot, 0..30);
        (slots, 0..40usize, any::<u64>()).prop_map(|(slots, room, seed)| {
            let (lengths, stored) = slots.into_iter().unzip();
            Case {
                lengths,
                stored,
                room,
                seed,
            }
        })
    }

    /// Checks slots that have a length and a flag of their own.
    fn check_each(driver: &dyn Driver, case: &Case, teams: (u32, Most)) {
        let mut bytes = case.slots();
        let expected = case.expected(&bytes);
        let lengths: Vec<u64> = case.lengths.iter().map(|&n| n as u64).collect();
        let flags: Vec<u32> = case.stored.iter().map(|&p| 9 * u32::from(p)).collect();
        let (mut lengths, mut flags) = (u64s(&lengths), u32s(&flags));
        let mut checksums = vec![0xcc; 4 * case.lengths.len()];
        let buffers = &mut [&mut bytes, &mut lengths, &mut flags, &mut checksums];
        on(driver, buffers, |stream, spans| {
            let slots = slots(spans[0], case.stride(), case.lengths.len());
            let (lengths, stored) = (Lengths::Each(spans[1]), Some(spans[2]));
            // SAFETY: the stride has room for the longest.
            unsafe { by_teams(driver, stream, slots, lengths, stored, spans[3], teams) }
        })
        .expect("launches");
        assert_eq!(to_u32s(&checksums), expected, "{case:?}");
    }

    /// Checks slots that have the same length, by the public function.
    fn check_all(driver: &dyn Driver, count: usize, length: usize) {
        let case = Case::equal(count, length);
        let mut bytes = case.slots();
        let expected = case.expected(&bytes);
        let mut checksums = vec![0xcc; 4 * count];
        on(
            driver,
            &mut [&mut bytes, &mut checksums],
            |stream, spans| {
                let slots = slots(spans[0], case.stride(), count);
                let lengths = Lengths::All(length);
                // SAFETY: the stride has room for them.
                unsafe { crc32(driver, stream, slots, lengths, None, spans[1]) }
            },
        )
        .expect("launches");
        assert!(
            to_u32s(&checksums) == expected,
            "{count} slots of {length} bytes"
        );
    }

    pub(crate) fn check_crc32(driver: &dyn Driver, tries: u32) {
        let teams = proptest::sample::select(vec![1, 2, 4, 8]);
        let teams = (teams, few_or(crc32c::MOST));
        effort::property(tries, &(cases(9000), teams), |(case, teams)| {
            check_each(driver, &case, teams);
            Ok(())
        });
        for (count, length) in [
            (0, 0),
            (1, 0),
            (1, 1),
            (3, 3),
            (3, 4),
            (3, 15),
            (3, 16),
            (3, 17),
            (1, 512),
            (3, 65_535),
            (3, 65_536),
            (3, 65_537),
            (1, (1 << 20) + 5),
            (300, 4096 + 15),
            (100_000, 9),
        ] {
            check_all(driver, count, length);
        }
    }

    #[test]
    fn checksums_are_those_of_gzip() {
        check_crc32(&Simulation::eager(), 32);
    }

    #[test]
    fn the_checksum_of_the_check_string_is_the_published_one() {
        // "check" of CRC-32/ISO-HDLC in the catalogue of parametrised CRC algorithms.
        let driver = Simulation::eager();
        let (mut bytes, mut checksum) = (b"123456789-------".to_vec(), vec![0; 4]);
        on(
            &driver,
            &mut [&mut bytes, &mut checksum],
            |stream, spans| {
                let (slots, length) = (slots(spans[0], 16, 1), Lengths::All(9));
                // SAFETY: the slot has 16 bytes.
                unsafe { crc32(&driver, stream, slots, length, None, spans[1]) }
            },
        )
        .expect("launches");
        assert_eq!(to_u32s(&checksum), [0xcbf4_3926]);
    }

    #[test]
    fn wrong_geometry_is_an_error() {
        let driver = Simulation::eager();
        let fits = (32, 2, 32, 64, 8);
        for (stride, count, length, at, len) in [
            (32, 2, 33, 64, 8), // longer than a slot
            (24, 2, 4, 64, 8),  // stride
            (32, 3, 4, 64, 12), // beyond the end
            (32, 2, 4, 64, 7),  // short checksums
            (32, 2, 4, 66, 8),  // misaligned checksums
            fits,
        ] {
            let mut bytes = vec![0; 80];
            let result = on(&driver, &mut [&mut bytes], |stream, spans| {
                let part = |offset, len| DeviceSpan {
                    offset,
                    len,
                    ..spans[0]
                };
                let slots = slots(part(0, 64), stride, count);
                let lengths = Lengths::All(length);
                // SAFETY: spans that do not fit are refused, which is what is tested.
                unsafe { crc32(&driver, stream, slots, lengths, None, part(at, len)) }
            });
            let all = (stride, count, length, at, len);
            assert_eq!(result.is_ok(), all == fits, "{all:?}");
        }
    }

    #[test]
    fn each_byte_is_loaded_once() {
        let driver = counting();
        let (count, length) = (8, 65_536);
        check_all(&driver, count, length);
        let (moved, _) = sectors(&driver);
        let data = (count * length / 32) as u64;
        // Besides, only the checksums are written.
        assert!(
            (data..=data + count as u64).contains(&moved),
            "{moved} sectors for {data}"
        );
    }
}
