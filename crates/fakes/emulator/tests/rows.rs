//! Copies of rows by the emulated driver: right ones against a naive loop, and each wrong parameter is
//! named.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "the emulated driver checks its arguments"
)]
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]

#[path = "common/device.rs"]
mod device;

use std::ptr;

use cudarc::driver::sys::{CUDA_MEMCPY3D, CUdevice_attribute, CUmemorytype};
use device::{Device, SUCCESS};
use zarrs_cuda_emulator::device::Schedule;
use zarrs_cuda_emulator::driver;

const INVALID_VALUE: u32 = 1;
const NOT_SUPPORTED: u32 = 801;

const HOST: CUmemorytype = CUmemorytype::CU_MEMORYTYPE_HOST;
const DEVICE: CUmemorytype = CUmemorytype::CU_MEMORYTYPE_DEVICE;

/// Two planes of three rows of four bytes, from dense rows to rows with gaps.
fn copy(from: u64, to: u64) -> CUDA_MEMCPY3D {
    CUDA_MEMCPY3D {
        srcXInBytes: 0,
        srcY: 0,
        srcZ: 0,
        srcLOD: 0,
        srcMemoryType: DEVICE,
        srcHost: ptr::null(),
        srcDevice: from,
        srcArray: ptr::null_mut(),
        reserved0: ptr::null_mut(),
        srcPitch: 4,
        srcHeight: 3,
        dstXInBytes: 0,
        dstY: 0,
        dstZ: 0,
        dstLOD: 0,
        dstMemoryType: DEVICE,
        dstHost: ptr::null_mut(),
        dstDevice: to,
        dstArray: ptr::null_mut(),
        reserved1: ptr::null_mut(),
        dstPitch: 7,
        dstHeight: 5,
        WidthInBytes: 4,
        Height: 3,
        Depth: 2,
    }
}

/// Bytes from the first row of the destination to the last.
const LEN: usize = (5 + 2) * 7 + 4;

#[test]
fn every_wrong_parameter_is_named() {
    let device = Device::new(Schedule::Eager);
    let stream = device.stream();
    let (from, to) = (device.memory(24), device.memory(LEN));
    let copy = copy(from, to);
    let call = |copy: &CUDA_MEMCPY3D| unsafe { driver::cuMemcpy3DAsync_v2(copy, stream) };
    assert_eq!(call(&copy), SUCCESS);
    device.is_right();
    type Change = fn(&mut CUDA_MEMCPY3D);
    let changes: [(&str, Change); 19] = [
        ("nothing is copied", |copy| copy.WidthInBytes = 0),
        ("nothing is copied", |copy| copy.Height = 0),
        ("nothing is copied", |copy| copy.Depth = 0),
        ("source has a pitch of 3 bytes", |copy| copy.srcPitch = 3),
        ("destination has a pitch of 0 bytes", |copy| {
            copy.dstPitch = 0;
        }),
        ("rows of 8 bytes with their offset", |copy| {
            copy.dstXInBytes = 4;
        }),
        ("takes 2147483647 at most", |copy| copy.srcPitch = 1 << 31),
        ("source has planes of 2 rows", |copy| copy.srcHeight = 2),
        ("destination has planes of 0 rows", |copy| {
            copy.dstHeight = 0;
        }),
        ("and 6 rows with their offset", |copy| copy.dstY = 3),
        ("are in no device memory", |copy| copy.srcPitch = 5),
        ("are in no device memory", |copy| copy.dstHeight = 6),
        ("are in no device memory", |copy| copy.srcZ = 1),
        ("are in no device memory", |copy| copy.dstXInBytes = 1),
        ("an offset that is too large", |copy| copy.srcZ = usize::MAX),
        ("a level of detail", |copy| copy.srcLOD = 1),
        ("a reserved field is not null", |copy| {
            copy.reserved1 = ptr::without_provenance_mut(8);
        }),
        ("are in no pinned memory", |copy| copy.srcMemoryType = HOST),
        ("the two ends of the copy overlap", |copy| {
            copy.srcDevice = copy.dstDevice + 3;
            (copy.srcPitch, copy.srcHeight, copy.Depth) = (7, 5, 1);
        }),
    ];
    for (text, change) in changes {
        let mut wrong = copy;
        change(&mut wrong);
        assert_eq!(call(&wrong), INVALID_VALUE, "{text}");
        device.named(text);
    }
    for kind in [
        CUmemorytype::CU_MEMORYTYPE_ARRAY,
        CUmemorytype::CU_MEMORYTYPE_UNIFIED,
    ] {
        let wrong = CUDA_MEMCPY3D {
            dstMemoryType: kind,
            ..copy
        };
        assert_eq!(call(&wrong), NOT_SUPPORTED);
        device.named("which is not emulated");
    }
    let code = unsafe { driver::cuMemcpy3DAsync_v2(ptr::null(), stream) };
    assert_eq!(code, INVALID_VALUE);
    device.named("the address of the parameters is null");
    device.leave();
}

#[test]
fn one_row_needs_no_pitch_and_one_plane_no_height() {
    let device = Device::new(Schedule::Eager);
    let stream = device.stream();
    let copy = CUDA_MEMCPY3D {
        srcHeight: 0,
        dstHeight: 0,
        Depth: 1,
        ..copy(device.memory(24), device.memory(LEN))
    };
    let row = CUDA_MEMCPY3D {
        srcPitch: 0,
        dstPitch: 0,
        Height: 1,
        ..copy
    };
    for copy in [copy, row] {
        let code = unsafe { driver::cuMemcpy3DAsync_v2(&raw const copy, stream) };
        assert_eq!(code, SUCCESS);
    }
    device.is_right();
    device.leave();
}

#[test]
fn the_device_says_its_largest_pitch() {
    let device = Device::new(Schedule::Eager);
    let mut pitch = 0;
    let code = unsafe {
        driver::cuDeviceGetAttribute(
            &raw mut pitch,
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_PITCH,
            device.number.try_into().unwrap(),
        )
    };
    assert_eq!((code, pitch), (SUCCESS, i32::MAX));
    device.leave();
}

/// An end of a copy: offsets along each axis, bytes between rows, and rows between planes.
#[derive(Clone, Copy, Debug)]
struct End {
    offsets: [usize; 3],
    pitch: usize,
    height: usize,
}

impl End {
    /// Where the byte `x` of row `y` of plane `z` is.
    fn place(&self, [x, y, z]: [usize; 3]) -> usize {
        let [x0, y0, z0] = self.offsets;
        ((z0 + z) * self.height + y0 + y) * self.pitch + x0 + x
    }
}

/// Between the host and the device, and within the device: byte by byte.
#[test]
fn rows_go_where_a_naive_loop_puts_them() {
    let mut state = 7_u64;
    let mut below = |end: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as usize % end
    };
    for number in 0..200 {
        let shape = [1 + below(5), 1 + below(3), 1 + below(3)];
        let [row, rows, planes] = shape;
        let mut end = || {
            let offsets = [below(3), below(3), below(3)];
            End {
                offsets,
                pitch: offsets[0] + row + below(4),
                height: offsets[1] + rows + below(3),
            }
        };
        let (source, target) = (end(), end());
        let (from_kind, to_kind) = [(HOST, DEVICE), (DEVICE, HOST), (DEVICE, DEVICE)][number % 3];
        let what = format!("{shape:?}, {from_kind:?} {source:?}, {to_kind:?} {target:?}");
        let [from_len, to_len] =
            [source, target].map(|end| end.place([row - 1, rows - 1, planes - 1]) + 1);
        let schedules = [Schedule::Eager, Schedule::Latest];
        let device = Device::new(schedules[number / 3 % 2]);
        let stream = device.stream();
        let before: Vec<u8> = (0..=250).cycle().take(from_len).collect();
        let (given, result) = (device.pinned(&before), device.pinned(&vec![0xee; to_len]));
        let (from, to) = (device.memory(from_len), device.memory(to_len));
        let copy = CUDA_MEMCPY3D {
            srcXInBytes: source.offsets[0],
            srcY: source.offsets[1],
            srcZ: source.offsets[2],
            srcMemoryType: from_kind,
            srcHost: given.cast(),
            srcPitch: source.pitch,
            srcHeight: source.height,
            dstXInBytes: target.offsets[0],
            dstY: target.offsets[1],
            dstZ: target.offsets[2],
            dstMemoryType: to_kind,
            dstHost: result.cast(),
            dstPitch: target.pitch,
            dstHeight: target.height,
            WidthInBytes: row,
            Height: rows,
            Depth: planes,
            ..copy(from, to)
        };
        unsafe {
            driver::cuMemcpyHtoDAsync_v2(from, given.cast(), from_len, stream);
            driver::cuMemsetD8Async(to, 0xee, to_len, stream);
            let code = driver::cuMemcpy3DAsync_v2(&raw const copy, stream);
            assert_eq!(code, SUCCESS, "{what}");
            if to_kind == DEVICE {
                driver::cuMemcpyDtoHAsync_v2(result.cast(), to, to_len, stream);
            }
            assert_eq!(driver::cuStreamSynchronize(stream), SUCCESS);
        }
        let mut expected = vec![0xee; to_len];
        for z in 0..planes {
            for y in 0..rows {
                for x in 0..row {
                    expected[target.place([x, y, z])] = before[source.place([x, y, z])];
                }
            }
        }
        let result = unsafe { std::slice::from_raw_parts(result, to_len) };
        assert_eq!(result, expected, "{what}");
        device.is_right();
        device.leave();
    }
}
