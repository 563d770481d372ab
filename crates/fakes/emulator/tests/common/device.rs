//! A device of the emulated driver, and calls that must succeed.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "shared by tests that do not use all of it"
)]
#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "the emulated driver checks its arguments"
)]
#![allow(clippy::unwrap_used, reason = "a test that panics has failed")]
#![allow(
    clippy::unused_self,
    reason = "a device is there because its context is current"
)]

use std::ptr;

use cudarc::driver::sys::{CUcontext, CUdevice, CUdeviceptr, CUevent, CUstream};
use zarrs_cuda_emulator::device::Schedule;
use zarrs_cuda_emulator::driver::{self, Config};

pub const SUCCESS: u32 = 0;

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;

/// A device whose context is current on the thread.
pub struct Device {
    pub number: usize,
    pub context: CUcontext,
}

impl Device {
    pub fn new(schedule: Schedule) -> Self {
        let number = driver::add(Config {
            schedule,
            ..Config::default()
        });
        let mut context: CUcontext = ptr::null_mut();
        let device = CUdevice::try_from(number).unwrap();
        let code = unsafe { driver::cuDevicePrimaryCtxRetain(&raw mut context, device) };
        assert_eq!(code, SUCCESS);
        let device = Self { number, context };
        device.enter();
        device
    }

    pub fn enter(&self) {
        assert_eq!(
            unsafe { driver::cuCtxPushCurrent_v2(self.context) },
            SUCCESS
        );
    }

    pub fn leave(&self) {
        let mut context: CUcontext = ptr::null_mut();
        assert_eq!(
            unsafe { driver::cuCtxPopCurrent_v2(&raw mut context) },
            SUCCESS
        );
        assert_eq!(context, self.context);
    }

    pub fn memory(&self, len: usize) -> CUdeviceptr {
        let mut memory = 0;
        assert_eq!(
            unsafe { driver::cuMemAlloc_v2(&raw mut memory, len) },
            SUCCESS
        );
        memory
    }

    pub fn pinned(&self, bytes: &[u8]) -> *mut u8 {
        let mut memory = ptr::null_mut();
        assert_eq!(
            unsafe { driver::cuMemHostAlloc(&raw mut memory, bytes.len(), 0) },
            SUCCESS
        );
        let memory = memory.cast::<u8>();
        unsafe { memory.copy_from(bytes.as_ptr(), bytes.len()) };
        memory
    }

    pub fn stream(&self) -> CUstream {
        let mut stream = ptr::null_mut();
        assert_eq!(
            unsafe { driver::cuStreamCreate(&raw mut stream, NON_BLOCKING) },
            SUCCESS
        );
        stream
    }

    pub fn event(&self) -> CUevent {
        let mut event = ptr::null_mut();
        assert_eq!(unsafe { driver::cuEventCreate(&raw mut event, 0) }, SUCCESS);
        event
    }

    /// Asserts that the last use was named as wrong, with this text.
    pub fn named(&self, text: &str) {
        let violations = driver::violations(self.number);
        let last = violations.last().map(String::as_str).unwrap_or_default();
        assert!(last.contains(text), "{text}: {violations:?}");
    }

    pub fn is_right(&self) {
        assert_eq!(driver::violations(self.number), [""; 0]);
    }
}
