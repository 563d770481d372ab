//! Computes the CRC-32C of every subchunk. The kernels are in `crc32c.cu`. The launch that CRC-32 and CRC-32C
//! share is here, too: `crc.h`.

use super::spans::{Launch, Lengths, Most, Slots};
use crate::cuda::driver::{Access, Arg, DeviceSpan, Driver, DriverError, StreamId};

/// The number of threads per block, the same as in the kernel.
const BLOCK: u32 = 256;
/// The number of warps per block.
const WARPS: usize = BLOCK as usize / 32;
/// The number of bytes of a checksum.
pub const CHECKSUM: usize = 4;

/// The numbers by which a launch divides its work.
pub struct ChecksumTuning {
    /// The most blocks of a launch. Each block fills 16 KiB of tables before it starts.
    most: Most,
    /// The number of warps per multiprocessor below which several warps share a slot.
    warps: usize,
    /// The fewest bytes for each warp with which one more warp for a slot makes the kernel faster.
    bytes: usize,
}

/// The most blocks of a launch.
pub(super) const MOST: Most = Most::PerMultiprocessor(8);

const TUNING: ChecksumTuning = ChecksumTuning {
    most: Most::PerMultiprocessor(8),
    warps: 32,
    bytes: 4096,
};

/// Enqueues a kernel that appends a CRC-32C, little-endian, to the content of each slot, and adds 4 to each
/// of `lengths`. Slots whose flag in `present` (a `u32` each) is zero are unchanged, and their lengths are,
/// too.
///
/// # Errors
/// A span is too short or misaligned, a slot has no room behind [`Lengths::All`], or the driver
/// fails.
///
/// # Safety
/// The caller keeps the rules that the module `driver` lists. Each length in [`Lengths::Each`] leaves room
/// for a checksum within the stride.
pub unsafe fn append(
    driver: &dyn Driver,
    stream: StreamId,
    slots: Slots,
    lengths: Lengths,
    present: Option<DeviceSpan>,
) -> Result<(), DriverError> {
    let launch = Launch {
        driver,
        stream,
        kernel: "crc32c_append",
    };
    let team = team(driver, slots);
    // SAFETY: this function has the same requirements, which its caller keeps.
    unsafe {
        run(
            launch,
            slots,
            CHECKSUM,
            lengths,
            present,
            None,
            (team, TUNING.most),
        )
    }
}

/// The verdict of a device on the checksum of a slot. The flags of any two verdicts differ in two bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Right,
    Wrong,
    /// The flag of the slot in `present` is zero.
    Absent,
}

impl Verdict {
    /// Returns the verdict with the flag `flag`, as the kernel writes it; `None` if there is no such verdict.
    pub(crate) fn of_flag(flag: u32) -> Option<Self> {
        match flag {
            1 => Some(Self::Right),
            2 => Some(Self::Wrong),
            4 => Some(Self::Absent),
            _ => None,
        }
    }
}

/// Enqueues a kernel that compares the CRC-32C of each slot's content with the checksum of 4 bytes behind the
/// content. `lengths` counts the bytes before the checksum. A slot's number in `verdicts` (a `u32` each)
/// becomes the flag of its [`Verdict`].
///
/// # Safety
/// As for [`append`].
pub(crate) unsafe fn verify(
    driver: &dyn Driver,
    stream: StreamId,
    slots: Slots,
    lengths: Lengths,
    present: Option<DeviceSpan>,
    verdicts: DeviceSpan,
) -> Result<(), DriverError> {
    let launch = Launch {
        driver,
        stream,
        kernel: "crc32c_verify",
    };
    let team = team(driver, slots);
    // SAFETY: this function has the same requirements, which its caller keeps.
    unsafe {
        run(
            launch,
            slots,
            CHECKSUM,
            lengths,
            present,
            Some(verdicts),
            (team, TUNING.most),
        )
    }
}

/// Launches a kernel that computes CRCs, with `team` warps for each slot and at most `most` blocks. `team` is
/// a power of two and at most [`WARPS`]. The kernel accesses `behind` bytes behind a slot's content. It
/// writes the CRCs to `results` (a `u32` for each slot); without `results`, it writes them to the slots and
/// changes the lengths.
///
/// # Safety
/// The caller keeps the rules that the module `driver` lists. Each length in [`Lengths::Each`] is at most the
/// stride less `behind`.
pub(super) unsafe fn run(
    launch: Launch<'_>,
    slots: Slots,
    behind: usize,
    lengths: Lengths,
    present: Option<DeviceSpan>,
    results: Option<DeviceSpan>,
    (team, most): (u32, Most),
) -> Result<(), DriverError> {
    let span = launch.slots("slots", slots)?;
    let (access, lengths_access) = match results {
        Some(_) => (Access::Read, Access::Read),
        None => (Access::Update, Access::Update),
    };
    let (sizes, length) = match lengths {
        Lengths::Each(sizes) => {
            let sizes = launch.elements("lengths", sizes, slots.count, 8, 8)?;
            (Arg::Span(sizes, lengths_access), 0)
        }
        Lengths::All(length) => {
            let room = slots.stride.checked_sub(behind);
            launch.require(room.is_some_and(|room| length <= room), || {
                format!(
                    "a slot of {} bytes has no room for {length} and {behind} behind them",
                    slots.stride
                )
            })?;
            (Arg::Null, length)
        }
    };
    let present = match present {
        Some(present) => {
            let present = launch.elements("flags", present, slots.count, 4, 4)?;
            Arg::Span(present, Access::Read)
        }
        None => Arg::Null,
    };
    let results = match results {
        Some(results) => {
            let results = launch.elements("results", results, slots.count, 4, 4)?;
            Some(Arg::Span(results, Access::Write))
        }
        None => None,
    };
    if slots.count == 0 {
        return Ok(());
    }
    let mut args = vec![
        Arg::Span(span, access),
        Arg::U64(slots.stride as u64),
        Arg::U64(slots.count as u64),
        sizes,
        Arg::U64(length as u64),
        present,
        Arg::U32(team),
    ];
    args.extend(results);
    let grid = launch.grid(slots.count, WARPS / team as usize, most);
    // SAFETY: each slot's content and the bytes behind the content lie within the span: the stride
    // has room for all lengths, or the caller promises so. All other spans have an element for each
    // slot.
    unsafe { launch.run(grid, BLOCK, &args) }
}

/// Returns the number of warps that share a slot: a power of two, at most [`WARPS`].
pub(super) fn team(driver: &dyn Driver, slots: Slots) -> u32 {
    let wanted = driver.device().multiprocessors as usize * TUNING.warps;
    let mut team = 1;
    while team < WARPS
        && slots.count.saturating_mul(team) < wanted
        && slots.stride / (2 * team) >= TUNING.bytes
    {
        team *= 2;
    }
    u32::try_from(team).unwrap_or(1)
}

#[cfg(test)]
pub(crate) mod tests {
    use zarrs_cuda_testing::effort;

    use super::super::spans::testing::*;
    use super::super::testing::run as on;
    use super::*;
    use crate::cuda::driver::simulation::Simulation;
    use proptest::prelude::*;

    /// The lengths of the slots' contents, which slots are present, the room of slots beyond
    /// content and checksum, and how many warps share a slot.
    #[derive(Clone, Debug)]
    struct Case {
        lengths: Vec<usize>,
        present: Vec<bool>,
        seed: u64,
        room: usize,
        team: u32,
        most: Most,
    }

    impl Case {
        fn stride(&self) -> usize {
            let longest = self.lengths.iter().max().copied().unwrap_or(0);
            (longest + CHECKSUM + self.room).next_multiple_of(16)
        }

        /// Returns the slots before and after their checksums were appended.
        fn slots(&self) -> (Vec<u8>, Vec<u8>) {
            let stride = self.stride();
            let before = noise(self.seed, self.lengths.len() * stride);
            let mut after = before.clone();
            for (i, &length) in self.lengths.iter().enumerate() {
                if self.present[i] {
                    let slot = &mut after[i * stride..][..length + CHECKSUM];
                    let (data, checksum) = slot.split_at_mut(length);
                    checksum.copy_from_slice(&::crc32c::crc32c(data).to_le_bytes());
                }
            }
            (before, after)
        }
    }

    fn cases(slots: usize, longest: usize) -> impl Strategy<Value = Case> {
        let length = prop_oneof![
            0..64usize,
            0..longest,
            (0..longest / 512).prop_map(|n| n * 512)
        ];
        let slot = (length, proptest::bool::weighted(0.8));
        (
            proptest::collection::vec(slot, 0..slots),
            any::<u64>(),
            0..40usize,
            proptest::sample::select(vec![1, 2, 4, 8]),
            few_or(TUNING.most),
        )
            .prop_map(|(slots, seed, room, team, most)| {
                let (lengths, present) = slots.into_iter().unzip();
                Case {
                    lengths,
                    present,
                    seed,
                    room,
                    team,
                    most,
                }
            })
    }

    /// Appends the checksums of `case`, with a length and a flag for each slot.
    fn check_append_case(driver: &dyn Driver, case: &Case) {
        let (mut bytes, expected) = case.slots();
        let count = case.lengths.len();
        let lengths: Vec<u64> = case.lengths.iter().map(|&n| n as u64).collect();
        let flags: Vec<u32> = case.present.iter().map(|&p| 7 * u32::from(p)).collect();
        let (mut sizes, mut present) = (u64s(&lengths), u32s(&flags));
        on(
            driver,
            &mut [&mut bytes, &mut sizes, &mut present],
            |stream, spans| {
                let launch = Launch {
                    driver,
                    stream,
                    kernel: "crc32c_append",
                };
                let slots = slots(spans[0], case.stride(), count);
                // SAFETY: the stride has room for the longest and its checksum.
                unsafe {
                    let lengths = Lengths::Each(spans[1]);
                    let as_told = (case.team, case.most);
                    run(
                        launch,
                        slots,
                        CHECKSUM,
                        lengths,
                        Some(spans[2]),
                        None,
                        as_told,
                    )
                }
            },
        )
        .expect("launches");
        assert!(bytes == expected, "wrong checksums: {case:?}");
        let grown = lengths.iter().zip(&case.present);
        let grown: Vec<u64> = grown.map(|(n, &p)| n + 4 * u64::from(p)).collect();
        assert_eq!(to_u64s(&sizes), grown);
    }

    fn as_verdicts(flags: &[u8]) -> Vec<Option<Verdict>> {
        to_u32s(flags).into_iter().map(Verdict::of_flag).collect()
    }

    /// Verifies the checksums of `case`. Slots whose number is in `broken` have a bit flipped.
    fn check_verify_case(driver: &dyn Driver, case: &Case, broken: &[usize]) {
        let (_, mut bytes) = case.slots();
        let count = case.lengths.len();
        let present = |i: usize| {
            if case.present[i] {
                Verdict::Right
            } else {
                Verdict::Absent
            }
        };
        let mut expected: Vec<Verdict> = (0..count).map(present).collect();
        let mut is_broken = vec![false; count];
        for &number in broken {
            if count > 0 {
                let i = number % count;
                let bit = number % (8 * (case.lengths[i] + CHECKSUM));
                if !is_broken[i] {
                    bytes[i * case.stride() + bit / 8] ^= 1 << (bit % 8);
                    is_broken[i] = true;
                    if case.present[i] {
                        expected[i] = Verdict::Wrong;
                    }
                }
            }
        }
        let lengths: Vec<u64> = case.lengths.iter().map(|&n| n as u64).collect();
        let flags: Vec<u32> = case.present.iter().map(|&p| u32::from(p)).collect();
        let (mut sizes, mut present) = (u64s(&lengths), u32s(&flags));
        let mut verdicts = vec![0xcc; 4 * count];
        let buffers = &mut [&mut bytes, &mut sizes, &mut present, &mut verdicts];
        on(driver, buffers, |stream, spans| {
            let launch = Launch {
                driver,
                stream,
                kernel: "crc32c_verify",
            };
            let slots = slots(spans[0], case.stride(), count);
            let (lengths, results) = (Lengths::Each(spans[1]), Some(spans[3]));
            // SAFETY: the stride has room for the longest and its checksum.
            unsafe {
                let as_told = (case.team, case.most);
                run(
                    launch,
                    slots,
                    CHECKSUM,
                    lengths,
                    Some(spans[2]),
                    results,
                    as_told,
                )
            }
        })
        .expect("launches");
        assert_eq!(
            as_verdicts(&verdicts),
            expected.into_iter().map(Some).collect::<Vec<_>>(),
            "{case:?}"
        );
        assert_eq!(to_u64s(&sizes), lengths);
    }

    /// Checks slots that all hold `length` bytes and are present, by the public functions.
    fn check_equal_lengths(driver: &dyn Driver, count: usize, length: usize) {
        let case = Case {
            lengths: vec![length; count],
            present: vec![true; count],
            seed: length as u64,
            room: 0,
            team: 0, // unused: the launch chooses it
            most: TUNING.most,
        };
        let (mut bytes, expected) = case.slots();
        let mut verdicts = vec![0xcc; 4 * count];
        on(driver, &mut [&mut bytes, &mut verdicts], |stream, spans| {
            let slots = slots(spans[0], case.stride(), count);
            let length = Lengths::All(length);
            // SAFETY: the stride has room for a checksum.
            unsafe {
                append(driver, stream, slots, length, None)?;
                verify(driver, stream, slots, length, None, spans[1])
            }
        })
        .expect("launches");
        assert!(bytes == expected, "{count} slots of {length} bytes");
        assert_eq!(as_verdicts(&verdicts), vec![Some(Verdict::Right); count]);
    }

    pub(crate) fn check_append(driver: &dyn Driver, tries: u32) {
        effort::property(tries, &cases(40, 9000), |case| {
            check_append_case(driver, &case);
            Ok(())
        });
    }

    pub(crate) fn check_verify(driver: &dyn Driver, tries: u32) {
        let broken = proptest::collection::vec(0..100_000usize, 0..5);
        effort::property(tries, &(cases(40, 9000), broken), |(case, broken)| {
            check_verify_case(driver, &case, &broken);
            Ok(())
        });
    }

    pub(crate) fn check_shapes(driver: &dyn Driver) {
        for (count, length) in [
            (0, 10),
            (1, 0),
            (1, 1),
            (3, 3),
            (2, 4),
            (1, 512),
            (1, 1 << 20),
            (3, 65_536),
            (300, 4096 + 15),
            (100_000, 9),
        ] {
            check_equal_lengths(driver, count, length);
        }
        // Teams of warps, in several rounds.
        for team in [2, 8] {
            let case = Case {
                lengths: (0..20).map(|n| n * 611).collect(),
                present: (0..20).map(|n| n % 5 != 3).collect(),
                seed: 3,
                room: 0,
                team,
                most: Most::InAll(1),
            };
            check_append_case(driver, &case);
            check_verify_case(driver, &case, &[1, 1007]);
        }
    }

    #[test]
    fn appends() {
        check_append(&Simulation::eager(), 32);
    }

    /// A launch like one before it is answered from memory by the simulation: here each is.
    #[test]
    fn appends_again() {
        for round in 0..5 {
            for seed in [1, 2] {
                let case = Case {
                    lengths: vec![7, 64, 100],
                    present: vec![true, round % 2 == 0, true],
                    seed,
                    room: 0,
                    team: 1,
                    most: Most::InAll(1),
                };
                check_append_case(&Simulation::eager(), &case);
            }
        }
    }

    #[test]
    fn verifies() {
        check_verify(&Simulation::eager(), 32);
    }

    #[test]
    fn takes_any_number_and_length() {
        check_shapes(&Simulation::eager());
    }

    #[test]
    fn few_long_slots_are_shared_by_warps() {
        let driver = Simulation::eager();
        let memory = crate::cuda::driver::DeviceMemory(0);
        let of = |stride, count| {
            let span = DeviceSpan {
                memory,
                offset: 0,
                len: stride * count,
            };
            team(&driver, slots(span, stride, count))
        };
        assert_eq!([of(1 << 20, 1), of(1 << 20, 1 << 10)], [8, 1]);
        assert_eq!([of(4096, 1), of(16_384, 1)], [1, 4]);
    }

    #[test]
    fn wrong_geometry_is_an_error() {
        let driver = Simulation::eager();
        let attempt = |stride: usize, count: usize, length: usize, offset: usize| {
            let mut bytes = vec![0; 64];
            on(&driver, &mut [&mut bytes], |stream, spans| {
                let span = DeviceSpan {
                    offset,
                    len: 64 - offset,
                    ..spans[0]
                };
                // SAFETY: spans that do not fit are refused, which is what is tested.
                unsafe {
                    let length = Lengths::All(length);
                    append(&driver, stream, slots(span, stride, count), length, None)
                }
            })
        };
        attempt(32, 2, 28, 0).expect("fits");
        for (stride, count, length, offset) in [
            (32, 2, 29, 0),
            (24, 2, 4, 0),
            (32, 3, 4, 0),
            (32, 1, 4, 8),
            (0, 1, 0, 0),
        ] {
            let error = attempt(stride, count, length, offset).expect_err("does not fit");
            assert!(error.to_string().contains("crc32c_append"), "{error}");
        }
    }

    #[test]
    fn each_byte_is_loaded_once() {
        let driver = counting();
        let (count, length) = (8, 65_536);
        let mut bytes = noise(1, count * (length + 64));
        on(&driver, &mut [&mut bytes], |stream, spans| {
            let slots = slots(spans[0], length + 64, count);
            // SAFETY: the stride has room for a checksum.
            unsafe { append(&driver, stream, slots, Lengths::All(length), None) }
        })
        .expect("launches");
        let (moved, _) = sectors(&driver);
        let data = (count * length / 32) as u64;
        // Besides, only the checksums are written.
        assert!(
            (data..data + 16).contains(&moved),
            "{moved} sectors for {data}"
        );
        let mut verdicts = vec![0xcc; 4 * count];
        on(
            &driver,
            &mut [&mut bytes, &mut verdicts],
            |stream, spans| {
                let (slots, length) = (slots(spans[0], length + 64, count), Lengths::All(length));
                // SAFETY: the stride has room for a checksum.
                unsafe { verify(&driver, stream, slots, length, None, spans[1]) }
            },
        )
        .expect("launches");
        // Besides, the checksums are read and the results are written.
        let (moved, _) = sectors(&driver);
        assert_eq!(moved, data + 2 * count as u64);
    }
}
